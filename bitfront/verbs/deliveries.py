"""The verbs that write files: `export` and `report` from a study, `recover` from a model alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from bitfront.verbs.command import Typed, prints
from studies.events import Quiet
from studies.options.quantities import parse_tolerance

if TYPE_CHECKING:  # help is made of the signatures alone, so what the verbs work with is imported inside them
    from studies.events import Events
    from studies.export.export import Export
    from studies.judging.search_events import SearchEvents
    from studies.judging.study_lookup import LimitChanges
    from studies.lifecycle.recovered_model import RecoveredModel
    from studies.options.config import SearchConfig


NOTHING: Mapping[str, Any] = MappingProxyType({})


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
    storage: str | None = None,
    target: str | None = None,
    events: SearchEvents | None = None,
) -> Export:
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
        changes: limits, options of the builder for this engine (`final_optimization_level`), and `model` and `data` if
            files have moved; as for `resume`.
        storage: the URL of the database; None for the default one.
        target: the target of the study; None for the first. The engine is exported where it was measured.

    Raises:
        StudyError: nothing keeps the limits, or there is no such study, target, trial or pick.
        ConfigError: the folder cannot be used, or an option does not apply to the backend or the mix.
        ArtifactError: the written engine does not work.
    """
    from studies.export.export import Extras
    from studies.lifecycle.delivery import export_study
    from studies.store.store import default_url

    return export_study(
        storage or default_url(),
        name,
        out,
        changes,
        pick=pick,
        trial=trial,
        extras=Extras(triton, tuple(dict.fromkeys(each for text in tools for each in text.split(",")))),
        latency_tolerance=latency_tolerance,
        target=target,
        events=events or Quiet(),
    )


def warn_of_export(done: Export) -> None:
    """Print the warnings of an export, even where nothing else is printed."""
    from bitfront.printing.output import warn

    for text in (*done.manifest["warnings"], done.warning):
        if text:
            warn(text)


def _export_json(done: Export) -> Mapping[str, Any]:
    return {"folder": str(done.folder), "trial": done.trial, "manifest": done.manifest}


@prints(export, json=_export_json, warn=warn_of_export, quiet=True)
def print_exported(done: Export) -> None:
    """Print where an export lies and what is to be said of it."""
    from bitfront.printing.output import say
    from studies.judging.findings.optimization_levels import compared_levels_text

    say(f"exported trial {done.trial} to {done.folder}")
    if text := compared_levels_text(done.manifest):
        say(text)
    say(done.final_text)
    if text := done.manifest["no_gain"]:
        say(f"{text}.")
    if done.manifest["final"]["disagreement"] is not None:
        say(f"{done.manifest['final']['disagreement']['text']}.")


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
        found = [standing_of(store, name, limits, one, picks) for one in wanted]
        write_report(build_report(store, found[0], found[1:]), out)
    return out


@prints(report, json=lambda written: {"file": str(written)})
def _print_written(written: Path) -> None:
    from bitfront.printing.output import say

    say(f"Wrote {written}.")


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
def _print_recovered(found: RecoveredModel) -> None:
    from bitfront.printing.output import say
    from bitfront.printing.study_results import print_rescue
    from studies.options.limits import MetricScale

    print_rescue(found.rows, found.notes, MetricScale.of(found.metric))
    if found.folder is not None:
        say(f"Wrote model.float.onnx and ranges.json to {found.folder}.")
