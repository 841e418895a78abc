"""Exporting an engine of a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluators.backends.registry import kind_named
from search.errors import ConfigError
from studies.artifacts.shipping import here
from studies.events import Events
from studies.export import export as exports
from studies.export.explicit import check_typing
from studies.export.export import Export, Extras
from studies.export.handover import check_tools
from studies.export.triton import check_triton_name, check_triton_platform
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.selection import find_row
from studies.judging.standing import Standing
from studies.judging.study_lookup import standing_of
from studies.options.backend_options import FINAL, export_options
from studies.options.config import SearchConfig
from studies.options.read_options import change_config
from studies.run.session.backend_values import final_options
from studies.run.session.data_caches import check_artifacts, study_cache
from studies.run.session.join import join_study
from studies.run.session.setup import check_inputs
from studies.run.session.study_rows import check_unchanged
from studies.run.session.trusted_functions import check_trusted, take_names_again
from studies.run.work import Work
from studies.run_clock import limit_start
from studies.store.records import StudyRecord
from studies.store.store import Store
from studies.store.target_options import config_of


def export_study(
    url: str,
    name: str,
    out: Path,
    changes: Mapping[str, Any],
    *,
    pick: str | None = None,
    trial: int | None = None,
    extras: Extras = Extras(),
    latency_tolerance: float | None = None,
    target: str | None = None,
    user_knows_batch: bool = False,
    events: SearchEvents,
) -> Export:
    """Write an engine of a study to a folder and check it; see `bitfront.verbs.export` and `Request`."""
    exports.check_folder(out)
    _check_extras(extras)
    events.report_time(RunTime(limit_start()))  # behind a search its time limit counts no more
    with Store.open(url) as store:
        now = standing_of(store, name, changes, target)
        check_typing(extras.typing, now.target.target)
        row = find_row(now, pick, trial)  # refuses what cannot be exported, before anything starts
        stored = config_of(now.study, now.target, url)
        config = take_names_again(change_config(stored, changes), stored, str(now.study.metric["name"]))
        check_trusted(config)
        _check_export(config, changes)
        config = _prepare_config(store, now.study, config, extras, events)
        with check_inputs(config, events=events, cache=study_cache(config)) as good:
            check_unchanged(good, now.study, now.target)
            # No worker may throw away the engine meanwhile.
            with join_study(store, good, now.study, events) as work, work.crew.hold("prune"):
                now, row, how = _confirm(work, now, row, pick, trial)
                number = int(now.table.trial[row])
                options = final_options(good.config)
                request = exports.Request(number, how, options, extras, latency_tolerance, user_knows_batch)
                return exports.export_evaluation(work, now, row, request, out)


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
    check_typing(extras.typing)


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
