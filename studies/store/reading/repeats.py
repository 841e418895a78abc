"""Repeated measurements: their rounds, the one that counts, the usual baseline, and the tie band they give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from evaluators.measure.latency_scale import off_reference, reference_of, scale_latencies
from studies.store import records
from studies.store.columns import Columns, EvaluationTable
from studies.store.database import tables
from studies.store.reading.evaluation_columns import number_columns, plain_rows
from studies.store.records import PROCESS, REBUILD, REOPEN, RepeatRecord

Row = Any  # SQLAlchemy 2.0 and 2.1 type rows and selects in ways that exclude each other
Query = Any


def rounds_query(study_target_id: int) -> Query:
    """Rows for `round_table`: every round of one target but the first ones."""
    s, e = tables.SampleRecord, tables.EvaluationRecord
    return (
        select(s.evaluation_id, s.round, s.raw_ms, s.baseline_ms, s.warnings)
        .join(e, e.id == s.evaluation_id)
        .where(e.study_target_id == study_target_id, s.round > 0, s.role == "candidate")
        .order_by(s.evaluation_id, s.round)
    )


def round_table(rows: Sequence[Row]) -> Columns:
    """The rows of `rounds_query` as columns."""
    ids, numbers, raw, baseline, warnings = zip(*rows, strict=True) if rows else [()] * 5
    clean = np.array([not each for each in warnings], dtype=bool)
    integers = [np.array(column, dtype=np.int64) for column in (ids, numbers)]
    raw_ms, baseline_ms = (np.array(column, dtype=np.float64) for column in (raw, baseline))
    return Columns(evaluation_id=integers[0], number=integers[1], raw_ms=raw_ms, baseline_ms=baseline_ms, clean=clean)


def usual_baseline(
    baseline_ms: NDArray[Any], doubts: NDArray[Any], again_ms: NDArray[Any], again_clean: NDArray[Any]
) -> float | None:
    """What the baseline usually takes, from what was measured once and what was measured again.

    Evaluations that an export made are left out: what a front says would change with every export.
    """
    return reference_of(np.concatenate([baseline_ms, again_ms]), np.concatenate([doubts == 0, again_clean]))


def read_reference_ms(connection: Connection, study_target_id: int) -> float | None:
    """What the baseline usually takes on a target; None if it has no baseline."""
    e = tables.EvaluationRecord
    searched = e.role != records.EXPORT
    known = (e.study_target_id == study_target_id, e.baseline_ms.is_not(None), searched)
    baseline_ms, doubts = number_columns(plain_rows(connection, select(e.baseline_ms, e.doubts).where(*known)), 2)
    again = round_table(connection.execute(rounds_query(study_target_id).where(searched)).all())
    return usual_baseline(baseline_ms, doubts, again.baseline_ms, again.clean)


BUILDS = 3  # engines of one assignment that show how far latencies differ
PROCESSES = 3  # fresh processes that time one engine
OPENINGS = 3  # of one engine in the process that is warm, which other addresses of its buffers make differ
MORE = 6  # of either where those disagree: one of them may have met a neighbour's burst
LEAST_BAND = 0.01
NOISY_BAND = 0.05
PROVISIONAL_BAND = 0.025
"""What counts until a target's own band is measured: two builds of one mix on a GPU differed by 2.1 %, one engine in
several processes on a CPU by 2.3 %."""


def next_kind(first: float, repeats: Sequence[RepeatRecord]) -> str | None:
    """Which repetition comes next, as many as it takes; None if all are there.

    One engine opened again costs least, so it comes first; then builds and fresh processes in turn.

    Args:
        first: what the baseline itself took in the search, on the scale of `scale_repeat`.
        repeats: of that baseline.
    """
    rebuilt, loaded, reopened = _values(first, repeats)
    if _lacks(reopened, OPENINGS):
        return REOPEN
    missing = {REBUILD: len(rebuilt) - 1} if _lacks(rebuilt, BUILDS) else {}
    missing |= {PROCESS: len(loaded)} if _lacks(loaded, PROCESSES) else {}
    return min(missing, key=lambda kind: missing[kind], default=None)


def repeats_at_most(kind: str, taken: int) -> int:
    """How many repetitions of a kind there will be, the baseline itself left out.

    Args:
        taken: how many were begun; beyond the usual number, the first ones disagreed, and there will be `MORE`.
    """
    wanted, own = {REBUILD: (BUILDS, 1), PROCESS: (PROCESSES, 0), REOPEN: (OPENINGS, 0)}[kind]
    return wanted - own if taken <= wanted - own else MORE - own


def spreads(first: float, repeats: Sequence[RepeatRecord]) -> dict[str, float]:
    """`rebuild` and `repeatability`: the relative ranges of engines built again, and of one that is opened again."""
    rebuilt, loaded, reopened = _values(first, repeats)
    opened = max((band_of(values) for values in (loaded, reopened) if values), default=0.0)
    return {"repeatability": opened, "rebuild": band_of(rebuilt)}


def provisional_band(repeats: Sequence[RepeatRecord]) -> float:
    """The band that counts until there are enough repetitions: a usual one, or more where those that are there differ
    by more.
    """
    kinds = [[scale_repeat(r.raw_ms, r.baseline_ms) for r in repeats if r.kind == kind] for kind in _KINDS]
    return max([PROVISIONAL_BAND, *(band_of(values) for values in kinds if len(values) > 1)])


def scale_repeat(raw_ms: float, baseline_ms: float | None) -> float:
    """What repetitions are compared by: of relative targets the ratio to the baseline that ran in between."""
    return raw_ms if baseline_ms is None else raw_ms / baseline_ms


def band_of(values_ms: Sequence[float]) -> float:
    """Relative tie band from repeated latencies: the range of the 60 % of them nearest to the median."""
    middle = median(values_ms)
    kept = sorted(values_ms, key=lambda value: abs(value - middle))[: max(3, math.ceil(0.6 * len(values_ms)))]
    return (max(kept) - min(kept)) / middle


_KINDS = (REBUILD, PROCESS, REOPEN)


def _values(first: float, repeats: Sequence[RepeatRecord]) -> tuple[list[float], list[float], list[float]]:
    """Latencies of engines built again with the first one, of one in fresh processes, and of it opened again."""
    of = {kind: [scale_repeat(r.raw_ms, r.baseline_ms) for r in repeats if r.kind == kind] for kind in _KINDS}
    return [first, *of[REBUILD]], of[PROCESS], of[REOPEN]


def _lacks(values: Sequence[float], wanted: int) -> bool:
    """Whether more are needed: the first `wanted` decide, since to end as soon as some agree would narrow the band."""
    if len(values) < wanted:
        return True
    return wanted > 0 and len(values) < MORE and band_of(values[:wanted]) > NOISY_BAND


def confirmed_ms(table: EvaluationTable) -> NDArray[np.float64]:
    """(n,) latency in ms of the round that counts of each evaluation; NaN if that is the search's own."""
    return choose_latencies(table.id, table.baseline_ms, table.doubts, table.again, table.reference_ms)


def find_doubtful(table: EvaluationTable) -> NDArray[np.bool_]:
    """(n,) whether something is doubtful in the measurement that counts of each evaluation."""
    clean = _choose_rounds(table.id, table.baseline_ms, table.doubts, table.again, table.reference_ms)[1]
    result: NDArray[np.bool_] = np.isfinite(table.latency_ms) & ~clean
    return result


def choose_latencies(
    ids: NDArray[np.int64],
    baseline_ms: NDArray[np.float64],
    doubts: NDArray[np.int64],
    again: Columns,
    reference_ms: float | None,
) -> NDArray[np.float64]:
    """As `confirmed_ms`, of the columns that matter.

    Args:
        ids: (n,) of evaluations, in any order.
        baseline_ms, doubts: (n,) of the search's own measurement of each.
        again: what was measured again.
        reference_ms: what the baseline usually takes.
    """
    return _choose_rounds(ids, baseline_ms, doubts, again, reference_ms)[0]


def _choose_rounds(
    ids: NDArray[np.int64],
    baseline_ms: NDArray[np.float64],
    doubts: NDArray[np.int64],
    again: Columns,
    reference_ms: float | None,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """What `choose_latencies` gives, and whether nothing is doubtful in the measurement that counts."""
    latencies_ms = np.full(len(ids), np.nan)
    clean = (doubts == 0) & ~off_reference(baseline_ms, reference_ms)
    if not len(again.evaluation_id):
        return latencies_ms, clean
    again_ms = scale_latencies(again.raw_ms, again.baseline_ms, reference_ms)
    again_clean = again.clean & ~off_reference(again.baseline_ms, reference_ms)
    places = {int(ids[row]): int(row) for row in np.flatnonzero(np.isin(ids, again.evaluation_id))}
    for i, number in enumerate(again.evaluation_id):  # in the order they were measured
        row = places.get(int(number))
        if row is not None and (again_clean[i] or not clean[row]):
            latencies_ms[row], clean[row] = again_ms[i], again_clean[i]
    return latencies_ms, clean
