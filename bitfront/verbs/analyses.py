"""Analyses of models and engines: the verbs `layers`, `profile`, `compare`, `sensitivity`, `evaluate` as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from search.errors import ConfigError
from studies.events import Quiet
from studies.inspect.comparison import DEFAULT_SAMPLES, DEFAULT_THRESHOLD_DB, Comparison
from studies.judging.search_events import SearchEvents
from studies.judging.study_lookup import find_target, standing_of
from studies.options.config import SearchConfig
from studies.options.diagnosis.thresholds import Thresholds
from studies.options.read_options import change_config, check_config
from studies.options.table import option_rows
from studies.show.layer_table import Layers
from studies.store.store import Store, default_url
from studies.store.target_options import config_of

if TYPE_CHECKING:  # these belong to single verbs
    from studies.inspect.mix.report import MixReport
    from studies.inspect.profile import Profile
    from studies.judging.findings.sensitivity_table import Sensitivities
    from studies.run.noise.remeasurement import Remeasured

NOTHING: Mapping[str, Any] = MappingProxyType({})


def layers(config: SearchConfig) -> Layers:
    """List the groups and edges of a model and their possible precisions on a target, as `bitfront layers` does.

    Args:
        config: the model and its target. If `data` is not empty, the model is calibrated, because ranges decide which
            groups may run in FP16.

    Raises:
        InputError: the model, a rule or the target cannot be used.
    """
    from studies.run.session.setup import look_at_layers

    model, space, target = look_at_layers(check_config(config, needs_data=False), calibrated=bool(config.data))
    return Layers(model, space, target)


def profile(
    name: str,
    trial: int,
    *,
    count: int = 50,
    again: bool = False,
    against: int | None = None,
    changes: Mapping[str, Any] = NOTHING,
    storage: str | None = None,
    target: str | None = None,
    events: SearchEvents | None = None,
) -> tuple[Profile, ...]:
    """Read how long each layer of a trial's engine takes, as `bitfront profile` does; measure and store it if missing.

    Args:
        count: the number of inferences to profile.
        again: measure again even if a stored result exists.
        against: another trial of the study, which is profiled too.
        changes: `model`, `data` where files have moved.

    Returns:
        The trial's profile and, if asked for, that of the other; `inspect.profile.delta_rows` puts them side by side.

    Raises:
        StudyError: no such study or trial, a trial without an engine, or model, data or target are not the study's.
        EvaluatorError: an engine cannot be loaded or run here.
    """
    from studies.inspect.profile_trials import profile_trials

    url = storage or default_url()
    with Store.open(url, write=False) as store:
        now = standing_of(store, name, wanted=target)
    trials = (trial,) if against is None else (trial, against)
    return profile_trials(url, now, trials, count=count, again=again, changes=changes, progress=events or Quiet())


def remeasure(
    name: str,
    trials: Sequence[int] = (),
    *,
    every: bool = False,
    changes: Mapping[str, Any] = NOTHING,
    storage: str | None = None,
    target: str | None = None,
    events: SearchEvents | None = None,
) -> tuple[Remeasured, ...]:
    """Measure latencies of a study again, beside the baseline and each other, as `bitfront remeasure` does.

    Each is measured until nothing is doubtful in it, a few times at most. Older measurements stay stored.

    Args:
        trials: these, doubtful or not; empty for what is doubtful and matters: uniform baselines, front, picks and
            what is within reach of the latency budget.
        every: of all that is doubtful, whether it matters or not.
        changes: `model`, `data` where files have moved.

    Returns:
        What changed, in order of the evaluations; empty if nothing was to be measured.

    Raises:
        ConfigError: `trials` and `every` are both given.
        StudyError: no such study or trial, a trial without a latency, another process works on the study on SQLite, or
            model, data or target are not the study's.
        EvaluatorError: engines cannot be loaded or run here.
    """
    from studies.run.noise.remeasurement import remeasure_study

    if trials and every:
        raise ConfigError("measuring again: --trial and --all were both given. Give one of them.")
    url = storage or default_url()
    with Store.open(url, write=False) as store:
        now = standing_of(store, name, wanted=target)
    return remeasure_study(url, now, tuple(trials), every=every, changes=changes, progress=events or Quiet())


def compare(
    name: str,
    trial: int,
    *,
    groups: bool = False,
    samples: int = DEFAULT_SAMPLES,
    threshold_db: float = DEFAULT_THRESHOLD_DB,
    outputs: Path | None = None,
    changes: Mapping[str, Any] = NOTHING,
    storage: str | None = None,
    target: str | None = None,
    events: SearchEvents | None = None,
) -> Comparison:
    """Compare a trial's engine with ONNX Runtime on the same data, as `bitfront compare` does.

    Args:
        groups: compare group by group too.
        samples: of the final split, at most.
        threshold_db: fall of a group's SQNR below its inputs' from which on it is marked; and by how much a fault of
            `outputs`, mended, has to bring these nearer.
        outputs: `.npz` file of what the user's own program gives on the same data, by output name, to look for faults.
        changes: `model`, `data` where files have moved.

    Raises:
        StudyError: no such study or trial, a trial of which no engine was built, or another model.
        DataError: `outputs` cannot be compared: outputs are missing, not finite or of another shape.
        EvaluatorError: the engine cannot be loaded or run here.
    """
    from studies.artifacts.shipping import here
    from studies.inspect.compare_trial import compare_trial

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


def sensitivity(
    subject: str | SearchConfig,
    *,
    thresholds: Thresholds | None = None,
    again: bool = False,
    changes: Mapping[str, Any] = NOTHING,
    storage: str | None = None,
    target: str | None = None,
    events: SearchEvents | None = None,
) -> Sensitivities:
    """Measure the error that each group alone adds in a lower precision, as `bitfront sensitivity` does.

    Args:
        subject: the name of a study, whose stored pass is read or which is given one; or what to look at without a
            study, of which nothing is stored.
        thresholds: beyond which a group is sensitive.
        again: measure again what is stored.
        changes: of a study: `sensitivity_time_s`, and `model`, `data` where files have moved.
        storage, target: of a study; None for the default database and the study's first target.
        events: told what happens.

    Raises:
        StudyError: no such study, or model, data or target are not the study's.
        ConfigError: a threshold or an option cannot be used.
        EvaluatorError: the model cannot be run.
    """
    from studies.run.guidance import sensitivities

    judged, told = thresholds or Thresholds(), events or Quiet()
    judged.check()
    if isinstance(subject, SearchConfig):
        return sensitivities.of_model(check_config(subject), judged, told)
    foreign = sorted(changes.keys() - {"model", "data", "sensitivity_time_s", "trust_functions"})
    if foreign:
        shown = next((row.shown for row in option_rows() if row.key == foreign[0]), foreign[0])
        raise ConfigError(
            f"{shown}: study {subject!r} has its own, which cannot be changed. Leave it out, or name an ONNX file "
            "instead of a study."
        )
    url = storage or default_url()
    return sensitivities.of_study(url, subject, judged, again=again, changes=changes, progress=told, wanted=target)


def evaluate(
    config: SearchConfig,
    assign: str,
    *,
    keep_sensitive: bool = False,
    bisect: bool = False,
    thresholds: Thresholds | None = None,
    events: SearchEvents | None = None,
) -> MixReport:
    """Build and measure one mix of a model beside FP32, without a study, as `bitfront evaluate` does. Stores nothing.

    Args:
        config: the model, its data and what it is to run on.
        assign: the mix: `all=int8`, `REGEX=fp16,REGEX=int8`, or the path of a JSON file.
        keep_sensitive: keep groups in float that are sensitive in what the mix gives them.
        bisect: find the smallest set of groups, in sequence or of one kind, that explains the loss.
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
