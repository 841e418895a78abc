"""The hypervolume of a front over the uniform baselines, and its growth.

Arrays are columns of evaluations of one target: latency in milliseconds, loss against FP32 in the metric's unit
(≥ 0 when worse), NaN if a stage was not reached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from studies.judging.rules.front import add_step, check_columns

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Corner:
    """The corner that hypervolume is measured from: worse than this counts nothing."""

    latency_ms: float
    loss: float


def reference_of(baseline_latency_ms: Sequence[float], baseline_loss: Sequence[float]) -> Corner:
    """1.02 × the slowest and 1.05 × the worst loss of the uniform baselines that finished.

    When none of them lost anything there is no scale for the loss; the reference loss is then 1.0 in the metric's
    unit, and hypervolume is nearly the logarithm of the speed-up.

    Raises:
        ValueError: no baseline, or one that is not finite, or a latency not above zero.
    """
    lat, los = np.asarray(baseline_latency_ms, float), np.asarray(baseline_loss, float)
    if not len(lat) or len(lat) != len(los):
        raise ValueError("reference_of: needs the latency and loss of at least one baseline")
    check_columns(lat, los, np.zeros_like(los), 0.0)
    worst = float(los.max())
    return Corner(1.02 * float(lat.max()), 1.05 * worst if worst > 0 else 1.0)


def hypervolume(latency_ms: ArrayLike, loss: ArrayLike, reference: Corner) -> float:
    """Area between the rows and the reference: ln(latency) × loss, in the metric's unit.

    Losses below zero count as zero: being better than FP32 is noise more often than gain, and would otherwise make
    the volume grow without bound. Rows that are not finite, or not better than the reference in both, add nothing.
    """
    x, y = _gains(latency_ms, loss, reference)
    inside = (x > 0) & (y > 0)
    order = np.argsort(-x[inside], kind="stable")
    x, y = x[inside][order], y[inside][order]
    if not len(x):
        return 0.0
    # From the fastest row on, each strip reaches as far as the best loss so far.
    return float(np.sum((x - np.append(x[1:], 0.0)) * np.maximum.accumulate(y)))


def hypervolume_history(latency_ms: ArrayLike, loss: ArrayLike, eligible: ArrayLike, reference: Corner) -> Floats:
    """Hypervolume after each row, rows in the order in which they finished; O(n log n).

    Args:
        eligible: (n,) bool; other rows (failed, infeasible, stopped early) repeat the volume before them.

    Returns:
        (n,) float64, never falling; the last equals `hypervolume` of the eligible rows.
    """
    gain_x, gain_y = _gains(latency_ms, loss, reference)
    counts = np.asarray(eligible, bool) & (gain_x > 0) & (gain_y > 0)
    history = np.zeros(len(counts))
    xs: list[float] = []
    ys: list[float] = []
    volume = 0.0
    for row in range(len(counts)):
        if counts[row]:
            volume += _new_area(xs, ys, -float(gain_x[row]), -float(gain_y[row]))
        history[row] = volume
    return history


def _gains(latency_ms: ArrayLike, loss: ArrayLike, reference: Corner) -> tuple[Floats, Floats]:
    """(n,) gains over the reference in log latency and in loss; zero if a measure is missing."""
    lat, los = np.asarray(latency_ms, float), np.asarray(loss, float)
    valid = np.isfinite(lat) & (lat > 0) & np.isfinite(los)
    x = np.log(reference.latency_ms) - np.log(np.where(valid, lat, reference.latency_ms))
    y = reference.loss - np.maximum(np.where(valid, los, reference.loss), 0.0)
    return x, y


def _new_area(xs: list[float], ys: list[float], x: float, y: float) -> float:
    """Add (x, y) to a staircase whose corner is (0, 0), all coordinates negative; the area that it adds.

    Each strip of the added area lies under one step that the point replaces, so all calls together are O(n log n).
    """
    at = bisect_right(xs, x)
    ceiling = ys[at - 1] if at else 0.0
    if ceiling <= y:
        return 0.0
    area, left, k = 0.0, x, at
    while k < len(xs) and ys[k] >= y:
        area += (xs[k] - left) * (ceiling - y)
        left, ceiling, k = xs[k], ys[k], k + 1
    right = xs[k] if k < len(xs) else 0.0
    area += (right - left) * (ceiling - y)
    add_step(xs, ys, x, y)
    return area
