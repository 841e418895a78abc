"""The verbs that write what a study found: `export` and `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from bitfront.verbs.command import Typed, prints
from evaluators.backends.registry import kind_named
from search.errors import ConfigError
from studies.artifacts.shipping import here
from studies.events import Events, Quiet
from studies.export import export as exports
from studies.export.export import Export, Extras
from studies.export.handover import check_tools
from studies.export.triton import check_triton_name, check_triton_platform
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.selection import find_row
from studies.judging.standing import Standing
from studies.judging.study_lookup import NO_LIMITS, LimitChanges, standing_of
from studies.options.builder_options import FINAL, export_options
from studies.options.config import SearchConfig
from studies.options.quantities import parse_tolerance
from studies.options.read_options import change_config
from studies.run.session.backend_values import final_options
from studies.run.session.data_caches import study_cache
from studies.run.session.folders import check_artifacts
from studies.run.session.join import join_study
from studies.run.session.setup import checked
from studies.run.session.study_rows import check_unchanged
from studies.run.session.trusted_functions import check_trusted, take_names_again
from studies.run.work import Work
from studies.run_clock import limit_start
from studies.show.report.builder import build_report
from studies.show.report.page import write_report
from studies.store.records import StudyRecord
from studies.store.store import Store, default_url
from studies.store.target_options import config_of

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
    exports.check_folder(out)
    extras = Extras(triton, tuple(dict.fromkeys(name for text in tools for name in text.split(","))))
    _check_extras(extras)
    url, told = storage or default_url(), events or Quiet()
    told.timing(RunTime(limit_start()))  # behind a search its time limit counts no more
    with Store.open(url) as store:
        now = standing_of(store, name, changes, target)
        row = find_row(now, pick, trial)  # refuses what cannot be exported, before anything starts
        stored = config_of(now.study, now.target, url)
        config = take_names_again(change_config(stored, changes), stored, str(now.study.metric["name"]))
        check_trusted(config)
        _check_export(config, changes)
        config = _prepare_config(store, now.study, config, extras, told)
        with checked(config, events=told, cache=study_cache(config)) as good:
            check_unchanged(good, now.study, now.target)
            # No worker may throw away the engine meanwhile.
            with join_study(store, good, now.study, told) as work, work.crew.hold("prune"):
                now, row, how = _confirm(work, now, row, pick, trial)
                request = exports.Request(
                    int(now.table.trial[row]), how, final_options(good.config), extras, latency_tolerance
                )
                return exports.export_evaluation(work, now, row, request, out)


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


def _confirm(work: Work, now: Standing, row: int, pick: str | None, trial: int | None) -> tuple[Standing, int, str]:
    """What is exported, and what asked for it: a trial as it is, a pick once the final split has confirmed it."""
    if trial is not None:
        return now, row, f"trial {trial}"
    how = pick or "best"
    now, row = exports.confirm_pick(work, now, how)
    return now, row, how


def _check_extras(extras: Extras) -> None:
    """Refuse what cannot be written for other programs, before anything is opened."""
    if extras.triton is not None:
        check_triton_name(extras.triton)
    check_tools(extras.tools)


def _prepare_config(
    store: Store, study: StudyRecord, config: SearchConfig, extras: Extras, events: Events
) -> SearchConfig:
    """What an engine is exported by, with the study's files where this host has them.

    Raises:
        ConfigError: the study's backend has no engines for Triton, or the artifacts cannot be reached.
    """
    check_artifacts(config)
    if extras.triton is not None:
        check_triton_platform(config.backend)
    return here(store, study, config, events)


def _check_export(config: SearchConfig, changes: Mapping[str, Any]) -> None:
    """Refuse options of a builder that are for this one engine, where the study's backend has none.

    Raises:
        ConfigError: the study's backend has no such option.
    """
    foreign = [row for row in export_options() if row.item in changes and row.item not in _final_items(config)]
    if foreign:
        raise ConfigError(
            f"{foreign[0].shown}: this study ran on backend {config.backend}, which has no such option. Leave it out."
        )


def _final_items(config: SearchConfig) -> set[str]:
    return {FINAL + row.keyword for row in kind_named(config.backend).options if row.final}


def report(
    name: str,
    out: Annotated[Path, Typed("FILE", "--out")],
    limits: LimitChanges = NO_LIMITS,
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
