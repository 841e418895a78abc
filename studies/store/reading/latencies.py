"""Choosing the measurement of an engine that counts: the latest clean one, otherwise the latest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluators.measure.latency_scale import off_reference, scale_latencies
from studies.store.columns import Columns, EvaluationTable


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
    found = np.full(len(ids), np.nan)
    clean = (doubts == 0) & ~off_reference(baseline_ms, reference_ms)
    if not len(again.evaluation_id):
        return found, clean
    again_ms = scale_latencies(again.raw_ms, again.baseline_ms, reference_ms)
    again_clean = again.clean & ~off_reference(again.baseline_ms, reference_ms)
    places = {int(ids[row]): int(row) for row in np.flatnonzero(np.isin(ids, again.evaluation_id))}
    for i, number in enumerate(again.evaluation_id):  # in the order they were measured
        row = places.get(int(number))
        if row is not None and (again_clean[i] or not clean[row]):
            found[row], clean[row] = again_ms[i], again_clean[i]
    return found, clean
