"""Profiles of trials: stored ones are read, missing ones are measured and stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from search.errors import ConfigError
from search.values import LayerTime
from studies.inspect.profile import Profile
from studies.judging.search_events import SearchEvents
from studies.judging.selection import load_built
from studies.judging.sentences.evaluations import mix_text
from studies.judging.standing import Standing
from studies.store.records import OF_PROFILE, GroupRecord, StoredEvaluation
from studies.store.store import Store

_MOST_COUNT = 100_000


def profile_trials(
    url: str,
    now: Standing,
    trials: Sequence[int],
    *,
    count: int,
    again: bool,
    changes: Mapping[str, Any],
    progress: SearchEvents,
) -> tuple[Profile, ...]:
    """Profiles of trials, stored ones where there are any; the others are made on the device and stored.

    Args:
        url: of the study's database.
        now: where the study stands.
        count: inferences of a profiled run.
        again: make all of them again.
        changes: `model` and `data`, where files have moved.

    Raises:
        StudyError: no such trial, one without an engine, or model, data or target are not the study's.
        ConfigError: `count` is out of range.
        EvaluatorError: an engine cannot be loaded or run here.
    """
    if not 1 <= count <= _MOST_COUNT:
        raise ConfigError(f"--count {count}: expected 1 to {_MOST_COUNT} inferences.")
    with Store.open(url, write=False) as store:
        records = [load_built(store, now.study, now.target, trial, "profile") for trial in trials]
        groups = {group.id: group for group in store.studies.groups(now.study.id)}
        known = {} if again else {record.id: store.engines.profile(record.id) for record in records}
    missing = {record.id: record for record in records if not known.get(record.id)}
    profiles = {record.id: (known[record.id], _stored_notes(record)) for record in records if record.id not in missing}
    if missing:
        from studies.inspect.profile_engines import profile_engines

        profiles |= profile_engines(url, now, list(missing.values()), count, changes, progress)
    return tuple(
        _profile(now, trial, record, groups, *profiles[record.id], again=record.id in missing)
        for trial, record in zip(trials, records, strict=True)
    )


def _profile(
    now: Standing,
    trial: int,
    record: StoredEvaluation,
    groups: Mapping[str, GroupRecord],
    layers: tuple[LayerTime, ...],
    notes: tuple[str, ...],
    *,
    again: bool,
) -> Profile:
    return Profile(
        study=now.study.name,
        trial=trial,
        mix=mix_text(record.evaluation.assignment),
        layers=layers,
        latency_ms=_latency_ms(now, record),
        audit={row.group: row for row in record.evaluation.audit},
        groups=groups,
        again=again,
        notes=notes,
    )


def _stored_notes(record: StoredEvaluation) -> tuple[str, ...]:
    return tuple(note.removeprefix(OF_PROFILE) for note in record.evaluation.notes if note.startswith(OF_PROFILE))


def _latency_ms(now: Standing, record: StoredEvaluation) -> float | None:
    latencies_ms = now.measures.latency_ms[now.table.id == record.id]
    return float(latencies_ms[0]) if len(latencies_ms) and np.isfinite(latencies_ms[0]) else None
