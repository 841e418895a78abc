"""The verbs that measure what a mix or an engine loses, and on which data: `compare` to `drift`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from bitfront.verbs.command import Typed, prints
from search.errors import ConfigError, EvaluatorError
from studies.events import Quiet
from studies.options.config import SearchConfig, option_rows
from studies.options.diagnosis.thresholds import Thresholds
from studies.options.read_options import change_config, check_config

if TYPE_CHECKING:  # help is made of the signatures alone, so what the verbs work with is imported inside them
    from studies.events import Events
    from studies.inspect.comparison import Comparison
    from studies.inspect.drift.drift_report import DriftReport
    from studies.inspect.mix.report import MixReport
    from studies.judging.findings.sensitivity_table import Sensitivities
    from studies.judging.search_events import SearchEvents

NOTHING: Mapping[str, Any] = MappingProxyType({})


def compare(
    name: str,
    trial: int,
    *,
    groups: bool = False,
    samples: Annotated[int, Typed("N")] = 64,
    threshold_db: Annotated[float, Typed("DB", "--threshold")] = 10.0,
    outputs: Annotated[Path | None, Typed("FILE")] = None,
    changes: Mapping[str, Any] = NOTHING,
    storage: str | None = None,
    target: str | None = None,
    events: SearchEvents | None = None,
) -> Comparison:
    """Run an engine and ONNX Runtime on the same data, and show how far their outputs differ, and where.

    Args:
        groups: Compare the output of every group of layers, and name the first that differs.
        samples: Largest number of final samples to compare.
        threshold_db: Mark groups of layers whose SQNR falls by more than this, in dB.
        outputs: File with the outputs of your own program, which are compared too.
        changes: `model`, `data` where files have moved.

    Raises:
        StudyError: no such study or trial, a trial of which no engine was built, or another model.
        DataError: `outputs` cannot be compared: outputs are missing, not finite or of another shape.
        EvaluatorError: the engine cannot be loaded or run here.
    """
    from studies.artifacts.shipping import here
    from studies.inspect.compare_trial import compare_trial
    from studies.judging.study_lookup import find_target
    from studies.store.store import Store, default_url
    from studies.store.target_options import config_of

    url = storage or default_url()
    with Store.open(url, write=False) as store:
        study = store.studies.load(name)
        meant = find_target(store, study, target)
        config = change_config(config_of(study, meant, url), changes)
        return compare_trial(
            store,
            study,
            meant,
            trial,
            here(store, study, config, events or Quiet()),
            groups=groups,
            samples=samples,
            threshold_db=threshold_db,
            outputs=outputs,
            progress=events or Quiet(),
        )


@prints(compare, tells=True)
def _print_comparison(engines: Comparison) -> None:
    from bitfront.printing.output import out, print_texts, say
    from studies.inspect import comparison

    say(f"trial {engines.trial}: {engines.mix}, on {engines.samples} samples of the final split")
    names = ["output", "compared", "max_abs", "mean_abs", "relative", "cosine", "sqnr_db", "agreement", "non_finite"]
    print_texts(comparison, engines.output_rows(), names)
    if engines.groups is not None:
        levels = ["sqnr_db", "inputs_db", "fall_db", "to_float_db", "emulation_to_float_db"]
        print_texts(comparison, engines.group_rows(), ["group", "node", "op", "precision", *levels, "parts"])
    out.print()
    for line in engines.verdicts():
        say(line)


def _read_plot(text: str, option: str) -> Path:
    from studies.show import sensitivity_plot

    sensitivity_plot.check_path(Path(text))
    return Path(text)


def _write_plot(sensitivities: Sensitivities, plot: Path | None) -> None:
    from studies.show import sensitivity_plot

    if plot is not None:
        sensitivity_plot.write_plot(sensitivities, plot)


def sensitivity(
    subject: Annotated[str | SearchConfig, Typed("STUDY_OR_MODEL")],
    *,
    thresholds: Thresholds | None = None,
    again: bool = False,
    changes: Mapping[str, Any] = NOTHING,
    storage: str | None = None,
    target: str | None = None,
    events: SearchEvents | None = None,
) -> Sensitivities:
    """Show how much error each layer alone adds in a lower precision, and why. No engine is built.

    Args:
        subject: Name of a study, or an ONNX file.
        thresholds: beyond which a group is sensitive.
        again: Measure again, even where a stored result exists.
        changes: of a study, whose stored pass is read or which is given one: `sensitivity_time_s`, and `model`, `data`
            where files have moved. Of an ONNX file, of which nothing is stored: its data, and all that they are
            measured by.
        storage, target: of a study; None for the default database and the study's first target.

    Raises:
        StudyError: no such study, or model, data or target are not the study's.
        ConfigError: a threshold or an option cannot be used.
        EvaluatorError: the model cannot be run.
    """
    from studies.run.guidance import sensitivities
    from studies.store.store import default_url

    judged, listener = thresholds or Thresholds(), events or Quiet()
    judged.check()
    if not isinstance(subject, SearchConfig) and (subject.endswith(".onnx") or Path(subject).is_file()):
        subject = _without_study(subject, changes, target=target, storage=storage)
    if isinstance(subject, SearchConfig):
        return sensitivities.of_model(check_config(subject), judged, listener)
    foreign = sorted(changes.keys() - {"model", "data", "sensitivity_time_s", "trust_functions"})
    if foreign:
        shown = next((row.shown for row in option_rows() if row.key == foreign[0]), foreign[0])
        raise ConfigError(
            f"{shown}: study {subject!r} has its own, which cannot be changed. Leave it out, or name an ONNX file "
            "instead of a study."
        )
    url = storage or default_url()
    return sensitivities.of_study(url, subject, judged, again=again, changes=changes, progress=listener, wanted=target)


def _without_study(model: str, changes: Mapping[str, Any], *, target: str | None, storage: str | None) -> SearchConfig:
    """What to measure of an ONNX file.

    Raises:
        ConfigError: an option is given that belongs to a study, or there are no data.
    """
    of_study = {"--target": target, "--model": changes.get("model"), "--storage": storage}
    for name, value in of_study.items():
        if value:
            raise ConfigError(f"{name}: this option is for a study, but {model} is an ONNX file. Leave the option out.")
    if not changes.get("data"):
        raise ConfigError(f"measuring the sensitivity of {model}: expected --data to run it on. Add --data DATA.")
    return change_config(SearchConfig(model, changes["data"]), changes)


@prints(
    sensitivity,
    csv=lambda sensitivities, plot: sensitivities.table(),
    json=lambda sensitivities, plot: sensitivities.to_json(),
    write=_write_plot,
)
def _print_sensitivities(
    sensitivities: Sensitivities,
    *,
    plot: Annotated[Path | None, Typed("FILE", read=_read_plot)] = None,
) -> None:
    """Print the table of the groups, its headline, and what helps.

    Args:
        plot: HTML file to write a figure to.
    """
    from bitfront.printing.output import out, print_table, print_texts, say
    from studies.judging.findings import sensitivity_table

    print_texts(sensitivity_table, sensitivities.table(), sensitivity_table.COLUMNS)
    say(sensitivities.headline())
    if rows := sensitivities.cause_rows():
        out.print()
        print_table(rows, sensitivity_table.CAUSE_COLUMNS)
    for remedy in sensitivities.remedies():
        count = len(remedy.groups)
        out.print()
        say(f"{remedy.cause.name}, {count} group{'s' * (count > 1)}: {remedy.text}")


def evaluate(
    config: SearchConfig,
    assign: Annotated[str, Typed("MIX", "--assign")],
    *,
    keep_sensitive: bool = False,
    bisect: bool = False,
    thresholds: Thresholds | None = None,
    events: SearchEvents | None = None,
) -> MixReport:
    """Build and measure one given mix of precisions beside FP32, and show what is lost, and where.

    Nothing is stored.

    Args:
        config: the model, its data and what it is to run on.
        assign: The precisions to use: all=int8, 'REGEX=fp16,REGEX=int8' or a JSON file.
        keep_sensitive: Keep layers in FP16 or FP32 that are sensitive in the given mix.
        bisect: Find the smallest set of layers that explains the loss.
        thresholds: the thresholds beyond which a group is sensitive.

    Raises:
        InputError: the model, the data, the mix, a rule or the target cannot be used.
        EvaluatorError: uniform FP32 cannot be measured. That the mix cannot is part of what is returned.
    """
    from studies.inspect.mix.evaluate import MixRequest, evaluate_mix

    judged = thresholds or Thresholds()
    judged.check()
    request = MixRequest(assign, keep_sensitive, bisect)
    return evaluate_mix(check_config(config), request, judged, events or Quiet())


def _warn_of_mix(report: MixReport) -> None:
    from bitfront.printing.output import warn

    for text in report.warnings():
        warn(text)
    if report.failure is not None:
        raise EvaluatorError(f"evaluating the mix: it failed at {report.failure.stage.value}: {report.failure.message}")


@prints(evaluate, warn=_warn_of_mix)
def _print_mix(report: MixReport) -> None:
    from bitfront.printing.output import out, print_cells, print_table, say
    from studies.inspect.mix import report as mix_report
    from studies.judging.findings import rescue_table

    say(report.headline())
    print_table(report.engine_texts(), report.engine_columns)
    if cells := report.rescue_cells():
        out.print()
        print_cells(rescue_table.rescue_header(report.metric), cells)
        if text := rescue_table.rescue_legend(cells):
            say(f"{text}.")
    out.print()
    print_table(report.group_texts(), mix_report.GROUP_COLUMNS)
    if trials := report.trial_texts():
        out.print()
        print_table(trials, tuple(trials[0]))
    out.print()
    for line in report.verdicts():
        say(line)


def drift(
    name: str,
    data: str,
    changes: Mapping[str, Any] = NOTHING,
    *,
    storage: str | None = None,
    target: str | None = None,
    events: Events | None = None,
) -> DriftReport:
    """Test whether fresh data still resemble the data that a study was calibrated on.

    Nothing is stored.

    Args:
        data: the fresh data, in any form that `search` takes; labels may be missing.
        changes: `model`, where the file has moved.
        storage: URL of the database; None for the default one.
        target: which of the study's; None for the first.
        events: told what happens.

    Raises:
        StudyError: no such study or target, it has not been calibrated, or the model is another one.
        DataError: the fresh data cannot be used.
        ArtifactError: the study's ranges or statistics are gone or damaged.
        EvaluatorError: the model or the engine cannot be run.
    """
    from studies.artifacts.shipping import here
    from studies.inspect.drift.find_drift import find_drift
    from studies.judging.study_lookup import standing_of
    from studies.store.store import Store, default_url
    from studies.store.target_options import config_of

    if not data:
        raise ConfigError("looking for drift: expected fresh data to compare with the study's. Add --data DATA.")
    url = storage or default_url()
    with Store.open(url, write=False) as store:
        now = standing_of(store, name, wanted=target)
        config = change_config(config_of(now.study, now.target, url), {**changes, "data": data})
        listener = events or Quiet()
        return find_drift(store, now, here(store, now.study, config, listener), listener)


@prints(drift, exit_code=lambda report: {"no drift": 0, "drift": 1, "not judged": 3}[report.verdict.value])
def _print_drift(report: DriftReport) -> None:
    from bitfront.printing.output import out, print_table, say
    from studies.inspect.drift.drift_report import COLUMNS

    print_table(report.cells(), COLUMNS)
    out.print()
    for line in report.lines():
        say(line)
