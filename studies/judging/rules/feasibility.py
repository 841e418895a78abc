"""Which evaluations keep the limits, and how far the others are from them.

Arrays are columns of evaluations of one target: latency in milliseconds, loss against FP32 in the metric's unit
(≥ 0 when worse), NaN if a stage was not reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from studies.options.limits import LATENCY_MS, LOSS, Limit, Limits
from studies.store.columns import FLOATS

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Columns = Mapping[str, ArrayLike]  # column of a table of evaluations → (n,) values, NaN or negative where unknown


def overshoots(measures: Columns, limits: Limits, *, higher_is_better: bool) -> dict[str, Floats]:
    """How far each row is beyond each limit that is set, relative to the limit; ≤ 0 if it is kept.

    A limit of zero has no scale: the overshoot is then the plain difference. Missing measures (NaN) give NaN.

    Args:
        measures: those that the limits bound.

    Returns:
        what messages call the measure (`latency`, `loss`, `accuracy`, `memory`) → (n,) float64.
    """
    return {
        limit.word: _beyond(measures, limit, bound, higher_is_better) / (abs(bound) or 1.0)
        for limit, bound in limits.rows()
    }


def feasible(measures: Columns, not_obeyed: ArrayLike, limits: Limits, *, higher_is_better: bool) -> Bools:
    """Rows that have both objectives, obey the audit and keep every limit; a limit met exactly is kept.

    Args:
        measures: latency, loss, and those that the limits bound.
        not_obeyed: (n,) int, groups whose audit answer is *not obeyed*.

    Returns:
        (n,) bool; False for failed rows (NaN latency or loss).
    """
    measured = np.isfinite(np.asarray(measures[LATENCY_MS], float)) & np.isfinite(np.asarray(measures[LOSS], float))
    keeps = keeps_limits(measures, limits, higher_is_better=higher_is_better)
    result: Bools = measured & (np.asarray(not_obeyed) == 0) & keeps
    return result


def keeps_limits(measures: Columns, limits: Limits, *, higher_is_better: bool) -> Bools:
    """Rows that keep every limit that is set, by these measures: of the search, or of the final split.

    A limit met exactly is kept; a measure that is missing keeps no limit that bounds it. A bound that is not known yet
    is kept by none.

    Args:
        measures: latency, and those that the limits bound.
    """
    rows = limits.rows()
    keeps = np.full(np.shape(measures[LATENCY_MS]), len(rows) == len(limits))
    for limit, bound in rows:
        keeps &= _beyond(measures, limit, bound, higher_is_better) <= 0
    return keeps


def _beyond(measures: Columns, limit: Limit, bound: float, higher_is_better: bool) -> Floats:
    """(n,) how far each row is beyond a limit, in its unit; NaN if the measure is missing."""
    values = np.asarray(measures[limit.column], float)
    # Integer columns of the store hold negative numbers where nothing is known; what floats tell may be negative.
    known = values if limit.bounds_accuracy or limit.column in FLOATS else np.where(values < 0, np.nan, values)
    result: Floats = limit.sign(higher_is_better) * (known - bound)
    return result


@dataclass(frozen=True)
class Near:
    """A row that misses limits: by how much, relative to each, worst first."""

    row: int
    misses: tuple[tuple[str, float], ...]


def nearest(over: dict[str, Floats], eligible: ArrayLike, count: int = 3) -> list[Near]:
    """The rows nearest to limits that nobody keeps, nearest first.

    Args:
        over: what `overshoots` gives.
        eligible: (n,) bool: finished and audited as asked; of rows that were stopped early only those whose other
            measures are not in question. Rows with a NaN overshoot are left out.

    Returns:
        At most `count` rows, by their worst overshoot, then by the sum of overshoots, then by row number.
    """
    if not over:
        return []
    matrix = np.stack(list(over.values()))
    rows = np.flatnonzero(np.asarray(eligible, bool) & np.isfinite(matrix).all(axis=0))
    missed = np.maximum(matrix[:, rows], 0.0)
    order = rows[np.lexsort((rows, missed.sum(axis=0), missed.max(axis=0)))][:count]
    return [Near(int(row), _misses(over, int(row))) for row in order]


def misses_only(over: dict[str, Floats], name: str) -> Bools:
    """(n,) bool: rows beyond this one limit that keep all others; none if it is not set."""
    if name not in over:
        return np.zeros(len(next(iter(over.values()), ())), bool)
    result: Bools = over[name] > 0
    for other in over.keys() - {name}:
        result &= over[other] <= 0
    return result


def _misses(over: dict[str, Floats], row: int) -> tuple[tuple[str, float], ...]:
    misses = [(name, float(column[row])) for name, column in over.items() if column[row] > 0]
    return tuple(sorted(misses, key=lambda miss: -miss[1]))
