"""The verbs that write files: `export` and `report` from a study, `recover` from a model alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from bitfront.verbs.command import Typed, prints
from search.errors import ConfigError, EvaluatorError
from search.values import REFERENCE
from studies.events import Quiet
from studies.options.config import SearchConfig, options_of
from studies.options.quantities import parse_tolerance
from studies.options.read_options import change_config

if TYPE_CHECKING:  # help is made of the signatures alone, so what the verbs work with is imported inside them
    from studies.events import Events
    from studies.export.export import Export
    from studies.judging.findings.sensitivity_table import Sensitivities
    from studies.judging.search_events import SearchEvents
    from studies.judging.study_lookup import LimitChanges
    from studies.lifecycle.recovered_model import RecoveredModel
    from studies.lifecycle.written_mix import WrittenMix
    from studies.run.search_result import SearchResult


NOTHING: Mapping[str, Any] = MappingProxyType({})
DELIVERED = ("diagnosis", "engine", "safe", "report")
_MOST_CAUSES = 3
_OF_MODELS = ("batch", "shapes", "input_values", "calibration_cache")
_OF_MIXES = (*_OF_MODELS, "data", "calibration_data", "final_data", "preprocess")


def export(
    name: str,
    out: Annotated[Path, Typed("DIR", "--out")],
    changes: Mapping[str, Any] = NOTHING,
    *,
    pick: Annotated[str | None, Typed("PICK")] = None,
    trial: Annotated[int | None, Typed("N", "--trial")] = None,
    triton: Annotated[str | None, Typed("NAME")] = None,
    tools: Annotated[Sequence[str], Typed("TOOL", "--for")] = (),
    latency_tolerance: Annotated[float | None, Typed("SHARE", read=parse_tolerance)] = None,
    typing: Annotated[str | None, Typed("KIND")] = None,
    assign: Annotated[str | None, Typed("MIX", "--assign")] = None,
    storage: str | None = None,
    target: str | None = None,
    events: SearchEvents | None = None,
) -> Export | WrittenMix:
    """Write the chosen engine to a folder, with a description and a program that runs it, and check it.

    If a pick was not scored on the final split, it is scored first, and replaced by the next one if it fails the
    limits there. An export beyond the latency tolerance is kept, and `Export.warning` says so.

    Args:
        out: New or empty folder.
        pick: The recommendation to export: best, accurate, fast, knee or score:0.6,0.4. [default: best]
        trial: Number of the trial to export instead of a recommendation.
        triton: Also write a model of this name for the Triton server.
        tools: Also write files for other tools: nncf, polygraphy, modelopt, qat. Can be repeated; commas work too.
        latency_tolerance: Largest allowed difference between the latencies of the exported and the measured engine,
            for example 5%. [default: the study's tie band]
        typing: Strong also writes a weakly typed mix of TensorRT as an ONNX file for strongly typed networks.
        assign: Write this mix of a model file, which takes the place of STUDY, for strongly typed networks.
        changes: limits, options of the builder for this engine (`final_optimization_level`), and `model` and `data` if
            files have moved; as for `resume`. With `assign`: shapes, calibration cache, and data to calibrate on.
        storage: the URL of the database; None for the default one.
        target: the target of the study; None for the first. The engine is exported where it was measured.

    Raises:
        StudyError: nothing keeps the limits, or there is no such study, target, trial or pick.
        ConfigError: the folder cannot be used, or an option does not apply to the backend or the mix.
        ArtifactError: the written engine does not work.
    """
    from studies.export.explicit import check_typing
    from studies.export.export import Extras, check_folder
    from studies.lifecycle.delivery import export_study
    from studies.lifecycle.written_mix import export_mix
    from studies.store.store import default_url

    rows = {row.key: row.shown for row in options_of("export")}
    if assign is not None:
        check_folder(out)
        check_typing(typing)
        own: dict[str, Any] = {"--pick": pick, "--trial": trial, "--triton": triton, "--for": tools, "--target": target}
        own |= {"--latency-tolerance": latency_tolerance}
        own |= {rows.get(key, key): value for key, value in changes.items() if key not in _OF_MIXES}
        _refuse_given(own, "with --assign there is no study")
        return export_mix(change_config(SearchConfig(name, ""), changes), assign, out, events or Quiet())
    _refuse_given({rows[key]: changes.get(key) for key in _OF_MODELS}, "a study has its own")
    return export_study(
        storage or default_url(),
        name,
        out,
        changes,
        pick=pick,
        trial=trial,
        extras=Extras(triton, tuple(dict.fromkeys(each for text in tools for each in text.split(","))), typing),
        latency_tolerance=latency_tolerance,
        target=target,
        events=events or Quiet(),
    )


def _refuse_given(options: Mapping[str, Any], why: str) -> None:
    for shown, value in options.items():
        if value not in (None, ()):
            raise ConfigError(f"{shown}: {why}. Leave it out.")


def warn_of_export(done: Export) -> None:
    """Print the warnings of an export, even where nothing else is printed."""
    from bitfront.printing.output import warn

    for text in (*done.manifest["warnings"], done.warning):
        if text:
            warn(text)


def _export_json(done: Export) -> Mapping[str, Any]:
    return {"folder": str(done.folder), "trial": done.trial, "manifest": done.manifest}


def _warn_of_mix(done: WrittenMix) -> None:
    from bitfront.printing.output import warn

    for text in done.notes:
        warn(text)


@prints(export, kind="WrittenMix", warn=_warn_of_mix)
def _print_mix(done: WrittenMix) -> None:
    from bitfront.printing.output import say

    say(done.text)


@prints(export, json=_export_json, warn=warn_of_export, quiet=True)
def _print_export(done: Export) -> None:
    from bitfront.printing.output import say

    _print_exported(done)
    if text := done.manifest["no_gain"]:
        say(f"{text}.")
    if done.manifest["final"]["disagreement"] is not None:
        say(f"{done.manifest['final']['disagreement']['text']}.")


def _print_exported(done: Export) -> None:
    """Where an export lies and what it loses; what else is to be said of it stands below the front of a search too."""
    from bitfront.printing.output import say
    from studies.judging.findings.optimization_levels import compared_levels_text

    say(f"exported trial {done.trial} to {done.folder}")
    if text := compared_levels_text(done.manifest):
        say(text)
    say(done.final_text)


def report(
    name: str,
    out: Annotated[Path, Typed("FILE", "--out")],
    limits: LimitChanges = NOTHING,
    *,
    storage: str | None = None,
    targets: Annotated[Sequence[str], Typed("TARGET", "--target")] = (),
    picks: Sequence[str] = (),
) -> Path:
    """Write a report about a study as one HTML file that needs no network.

    Args:
        out: The HTML file to write.
        limits: as of `front`.
        storage: URL of the database; None for the default one.
        targets: Target to show. Can be repeated, to show several side by side; the first is shown in full.
            [default: all]
        picks: beside the usual ones: `score:0.6,0.4`.
    """
    from studies.judging.study_lookup import standing_of
    from studies.show.report.builder import build_report
    from studies.show.report.page import write_report
    from studies.store.store import Store, default_url

    with Store.open(storage or default_url(), write=False) as store:
        study = store.studies.load(name)
        every = [record.target.fingerprint for record in store.targets.of_study(study.id)]
        wanted: Sequence[str | None] = targets or every or [None]
        standings = [standing_of(store, name, limits, one, picks) for one in wanted]
        write_report(build_report(store, standings[0], standings[1:]), out)
    return out


@prints(report, json=lambda written: {"file": str(written)})
def _print_written(written: Path) -> None:
    from bitfront.printing.output import say

    say(f"Wrote {written}.")


@dataclass(frozen=True)
class Delivery:
    """What a search found, ready to serve.

    Attributes:
        engine: the export of the best, checked; None where nothing keeps the limits.
        safe: that of FP32, which a guard falls back to; None where that is the best, or there is no best.
        report: its file.
        sensitivities: what every layer loses alone, and why; None where it could not be measured.

    Each is also None where the user skips it.
    """

    finished: SearchResult
    engine: Export | None
    safe: Export | None
    report: Path | None
    sensitivities: Sensitivities | None = None

    @property
    def storage(self) -> str:
        """URL of the study's database."""
        return self.finished.standing.details.storage


def deliver_best(
    finished: SearchResult,
    folder: Path,
    events: SearchEvents | None,
    skip: Sequence[str] = (),
    *,
    new: bool = True,
) -> Delivery:
    """Find out why layers lose, export the best of a search and FP32, check both, and write the report into one folder.

    Args:
        skip: some of `DELIVERED`.
        new: whether the search made its study, and so told the user what batches its engines take.

    Raises:
        ArtifactError: a written engine does not work.
    """
    from studies.lifecycle.delivery import export_study

    now = finished.standing
    name, best, base = now.study.name, now.picks.best, now.measures.row_of(REFERENCE.role)
    url = now.details.storage
    where: dict[str, Any] = {"target": now.target.target.fingerprint, "events": events or Quiet()}
    engine = safe = sensitivities = None
    folder.mkdir(parents=True, exist_ok=True)
    # All or nothing: whoever goes on with an interrupted one names the same folder.
    with TemporaryDirectory(prefix=".", dir=folder) as made:
        part = Path(made)
        if "diagnosis" not in skip:  # first, so that the report has it too
            sensitivities = _diagnose(name, events or Quiet(), storage=url, target=where["target"])
        if best is not None and "engine" not in skip:
            engine = export_study(url, name, part / "engine", NOTHING, user_knows_batch=new, **where)
        trial = -1 if base is None or "safe" in skip else int(now.table.trial[base])
        if engine is not None and trial not in (-1, engine.trial):
            safe = export_study(url, name, part / "safe", NOTHING, trial=trial, user_knows_batch=True, **where)
        if "report" not in skip:
            report(name, part / "report.html", storage=url)
        for path in part.iterdir():
            path.rename(folder / path.name)
    engine, safe = (each and replace(each, folder=folder / each.folder.name) for each in (engine, safe))
    return Delivery(finished, engine, safe, None if "report" in skip else folder / "report.html", sensitivities)


def _diagnose(name: str, events: SearchEvents | Quiet, **where: Any) -> Sensitivities | None:
    """The stored sensitivities of a study's layers, or a new pass; where it fails, a note says why."""
    from bitfront.verbs.analyses import sensitivity

    try:
        return sensitivity(name, events=events, **where)
    except EvaluatorError as error:
        events.note(f"why layers lose could not be measured: {error}")
        return None


def delivery_json(done: Delivery) -> Mapping[str, Any]:
    engine_fields: dict[str, Any] = {"folder": None, "trial": None, "safe": None}
    if done.engine is not None:
        engine_fields = {"folder": str(done.engine.folder), "trial": done.engine.trial}
        engine_fields["safe"] = None if done.safe is None else str(done.safe.folder)
    report = None if done.report is None else str(done.report)
    causes = None if done.sensitivities is None else done.sensitivities.cause_rows()
    return {"storage": done.storage, "report": report, "causes": causes, **engine_fields}


def warn_of_delivery(done: Delivery) -> None:
    """Print the warnings of both exports, even where nothing else is printed."""
    for each in (done.engine, done.safe):
        if each is not None:
            warn_of_export(each)


def print_delivery(done: Delivery) -> None:
    """What was found, where it lies, and how it goes into a server and a pipeline."""
    from bitfront.printing.output import out, say, say_command
    from bitfront.printing.study_results import print_finished
    from studies.store.suggestions import command, program

    print_finished(done.finished, exported=True)
    out.print()
    now = done.finished.standing
    if done.engine is not None:
        _print_exported(done.engine)
    if done.report is not None:
        say(f"Report: {done.report}")
    if done.sensitivities is not None:
        _print_causes(done.sensitivities)
    say_command("Why layers lose:", command("sensitivity", now.study.name, storage=done.storage))
    base = now.measures.row_of(REFERENCE.role)
    if done.engine is not None and base is not None and done.engine.trial == now.table.trial[base]:
        say("The best is FP32 itself, so there is nothing to guard or to gate.")
    if done.engine is not None and done.safe is not None:
        fast, safe = str(done.engine.folder), str(done.safe.folder)
        inputs = ", ".join(f"{each[0]!r}: …" for each in now.study.model["inputs"])
        say_command("In a server:", f"from studies.guard import Guard; guard = Guard.open({fast!r}, {safe!r})")
        say_command("For each request:", f"outputs = guard.run({{{inputs}}})")
        drop = now.limits.get("max_drop")
        limit_text = "1%" if drop is None else f"{100 * drop:g}%" if now.metric.ratio else f"{drop:g}"
        words = (shlex.quote(fast), "--against", shlex.quote(safe), "--data", "FRESH.npz", "--max-drop", limit_text)
        say_command("In a pipeline:", " ".join([program(), "gate", *words]))


def _print_causes(sensitivities: Sensitivities) -> None:
    """The layers that lose most alone, with the likeliest cause of each."""
    from bitfront.printing.output import print_table, say
    from studies.judging.findings.sensitivity_table import CAUSE_COLUMNS

    say(sensitivities.headline())
    if rows := sensitivities.cause_rows()[:_MOST_CAUSES]:
        print_table(rows, CAUSE_COLUMNS)


def recover(
    config: SearchConfig,
    out: Annotated[Path | None, Typed("DIR", "--out")] = None,
    *,
    latency: bool = False,
    events: Events | None = None,
) -> RecoveredModel:
    """Reduce the loss of a model in INT8 at no cost in latency, and show what each step wins back.

    Args:
        config: the model, its data, the target and the steps.
        out: New or empty folder for the changed model and its INT8 ranges.
        latency: Also build INT8 before and after recovery, and measure both latencies.

    Raises:
        InputError: the model, its data or an option cannot be used; `model` is the name of a study.
        EvaluatorError: the model cannot be run, or a step that was named fails.
        ArtifactError: the folder cannot be written, or the float model is not the user's.
    """
    from studies.lifecycle.recovered_model import recover_model

    return recover_model(config, out, latency=latency, events=events or Quiet())


@prints(recover)
def _print_recovered(model: RecoveredModel) -> None:
    from bitfront.printing.output import say
    from bitfront.printing.study_results import print_rescue
    from studies.options.limits import MetricScale

    print_rescue(model.rows, model.notes, MetricScale.of(model.metric))
    if model.folder is not None:
        anew = " Search model.float.onnx to calibrate and recover INT8 anew." if model.record.own else ""
        say(f"Wrote model.float.onnx and ranges.json to {model.folder}.{anew}")
