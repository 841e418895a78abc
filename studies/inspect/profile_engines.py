"""Profiling the engines of trials on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from search.values import LayerTime
from studies.artifacts.shipping import here
from studies.judging.search_events import SearchEvents
from studies.judging.standing import Standing
from studies.options.read_options import change_config
from studies.run.finalists import engine_of, why_lacking
from studies.run.session.data_caches import check_artifacts, study_cache
from studies.run.session.join import join_study
from studies.run.session.setup import check_inputs
from studies.run.session.study_rows import check_unchanged
from studies.run.work import Work
from studies.store.records import StoredEvaluation
from studies.store.store import Store
from studies.store.target_options import config_of


def profile_engines(
    url: str,
    now: Standing,
    records: Sequence[StoredEvaluation],
    count: int,
    changes: Mapping[str, Any],
    progress: SearchEvents,
) -> dict[int, tuple[tuple[LayerTime, ...], tuple[str, ...]]]:
    """Run each engine with per-layer times, which are stored; those that were not kept are built again.

    Args:
        count: inferences of a profiled run.
        changes: `model` and `data`, where files have moved.

    Returns:
        Evaluation id → its layers in the order they run, and what is noteworthy.

    Raises:
        StudyError: model, data or target are not the study's.
        EvaluatorError: an engine cannot be loaded or run here.
    """
    config = change_config(config_of(now.study, now.target, url), changes)
    check_artifacts(config)
    with Store.open(url) as store, ExitStack() as stack:
        config = here(store, now.study, config, progress)
        good = stack.enter_context(check_inputs(config, events=progress, cache=study_cache(config)))
        check_unchanged(good, now.study, now.target)
        # No worker may throw away an engine meanwhile.
        with join_study(store, good, now.study, progress) as work, work.crew.hold("prune"):
            return {record.id: _profile_one(work, now, record, count) for record in records}


def _profile_one(
    work: Work, now: Standing, record: StoredEvaluation, count: int
) -> tuple[tuple[LayerTime, ...], tuple[str, ...]]:
    row = int(np.flatnonzero(now.table.id == record.id)[0])
    lacking = why_lacking(work.ledger.artifacts, record.artifact)
    notes = (f"trial {record.trial}: {lacking}; it was built again for this profile",) if lacking else ()
    for note in notes:
        work.events.note(note)
    engine = engine_of(work, now, row)
    layers = tuple(work.bench.keeper.ask(f"profiling trial {record.trial}").timings.profile(engine, count))
    work.ledger.store.engines.set_profile(record.id, layers, " ".join(notes))
    return layers, notes
