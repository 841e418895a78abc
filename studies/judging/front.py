"""Choosing: front, feasibility, picks and hypervolume, as pure functions of the stored rows.

Arrays are columns of evaluations of one target: latency in milliseconds, loss against FP32 in the metric's unit
(≥ 0 when worse), NaN where a stage was not reached. Indices that come back are row numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from studies.options.limits import LATENCY_MS, LOSS, Limit, Limits

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Measures = Mapping[str, ArrayLike]  # column of a table of evaluations → (n,) values, NaN or negative where unknown


def front(
    latency_ms: ArrayLike, loss: ArrayLike, latency_band: float, loss_band: ArrayLike, eligible: ArrayLike
) -> Bools:
    """The eligible rows that no other eligible row knocks out, beyond measurement noise.

    j *beats* i in latency when `latency_j · (1 + latency_band) < latency_i`, and in loss when the difference is more
    than the wider of their two half-widths. j knocks i out when it beats i in one objective and i does not beat j in
    the other; so rows that tie in both all stay. O(n log n): rows sorted by latency, and for each row the prefix that
    can knock it out, of which only minima of the loss are asked.

    Where very unequal loss bands make rows knock each other out in a circle until nobody is left, the bands say
    nothing, and the front without bands is given: eligible rows always have a front.

    Args:
        latency_ms, loss: (n,) floats; finite, latency above zero, in eligible rows.
        latency_band: relative tie band of latency, 0.02 for 2 %.
        loss_band: (n,) half-widths of the loss intervals, ≥ 0 in eligible rows.
        eligible: (n,) bool; early-stopped and infeasible rows are not.

    Returns:
        (n,) bool.

    Raises:
        ValueError: an eligible row is not finite or out of range.
    """
    rows = np.flatnonzero(np.asarray(eligible, bool))
    lat, los, band = (np.asarray(column, float)[rows] for column in (latency_ms, loss, loss_band))
    _check(lat, los, band, latency_band)
    stays = ~_knocked_out(lat, los, latency_band, band)
    if not stays.any():
        stays = ~_knocked_out(lat, los, 0.0, np.zeros_like(band))
    result = np.zeros(len(np.asarray(eligible)), bool)
    result[rows[stays]] = True
    return result


def _check(lat: Floats, los: Floats, band: Floats, latency_band: float) -> None:
    if not (np.isfinite(lat).all() and (lat > 0).all() and np.isfinite(los).all()):
        raise ValueError("front: eligible rows need a finite latency above zero and a finite loss")
    if not (np.isfinite(band).all() and (band >= 0).all() and 0 <= latency_band < np.inf):
        raise ValueError("front: bands must be finite and not negative")


def _knocked_out(lat: Floats, los: Floats, latency_band: float, band: Floats) -> Bools:
    """(n,) bool: some row beats this one beyond the bands in one objective and is not beaten by it in the other."""
    order = np.argsort(lat, kind="stable")
    lat, los, band = lat[order], los[order], band[order]
    out = np.empty(len(lat), bool)
    beaten = _beaten_in_latency(lat, los, latency_band, band)
    beaten |= _plainly_beaten_in_loss(lat, los, latency_band, band)
    if (~beaten & _maybe_beaten_in_loss(lat, los, latency_band, band)).any():
        beaten |= _beaten_in_loss(lat, los, latency_band, band)
    out[order] = beaten
    return out


def _beaten_in_latency(lat: Floats, los: Floats, latency_band: float, band: Floats) -> Bools:
    """Rows, sorted by latency, with a clearly faster one whose loss they do not clearly beat.

    i does not beat j in loss when `loss_j ≤ loss_i + band_i` or `loss_j − band_j ≤ loss_i`: two prefix minima.
    """
    faster = np.searchsorted(lat * (1 + latency_band), lat, side="left")
    least = _prefix_minima(los)[faster]
    least_low = _prefix_minima(los - band)[faster]
    return (least <= los + band) | (least_low <= los)


def _plainly_beaten_in_loss(lat: Floats, los: Floats, latency_band: float, band: Floats) -> Bools:
    """As `_beaten_in_loss`, of one row j alone: that of the least upper end. With equal bands no other can do more."""
    end = np.searchsorted(lat, lat * (1 + latency_band), side="right")
    uppers = los + band
    new = uppers < _prefix_minima(uppers)[:-1]
    least = np.maximum.accumulate(np.where(new, np.arange(len(lat)), 0))[end - 1]
    result: Bools = (uppers[least] < los) & (los[least] + band < los)
    return result


def _maybe_beaten_in_loss(lat: Floats, los: Floats, latency_band: float, band: Floats) -> Bools:
    """What `_beaten_in_loss` asks of one row, asked of any two: False where that cannot be True."""
    end = np.searchsorted(lat, lat * (1 + latency_band), side="right")
    result: Bools = (_prefix_minima(los + band)[end] < los) & (_prefix_minima(los)[end] + band < los)
    return result


def _beaten_in_loss(lat: Floats, los: Floats, latency_band: float, band: Floats) -> Bools:
    """Rows, sorted by latency, with one of clearly less loss that they do not clearly beat in latency.

    j must keep `loss_j + band_j < loss_i` and `loss_j + band_i < loss_i`. The rows that are fast enough are a prefix
    that grows with i; of these a staircase of (loss + band, loss) answers "least loss among those whose upper end is
    below loss_i" by bisection.
    """
    not_slower = np.searchsorted(lat, lat * (1 + latency_band), side="right").tolist()
    loss, half = los.tolist(), band.tolist()  # one by one, an array's values take three times as long
    uppers: list[float] = []
    losses: list[float] = []
    beaten = np.zeros(len(lat), bool)
    taken = 0
    for i, end in enumerate(not_slower):
        for j in range(taken, end):
            _add_step(uppers, losses, loss[j] + half[j], loss[j])
        taken = max(taken, end)
        below = bisect_left(uppers, loss[i])
        beaten[i] = below > 0 and losses[below - 1] + half[i] < loss[i]
    return beaten


def _prefix_minima(values: Floats) -> Floats:
    """(n + 1,): least of the first k values, for k = 0 … n."""
    return np.concatenate([[np.inf], np.minimum.accumulate(values)])


def _add_step(xs: list[float], ys: list[float], x: float, y: float) -> bool:
    """Add (x, y) to a staircase of rising x and falling y, both to be small; False when a step already covers it."""
    at = bisect_right(xs, x)
    if at and ys[at - 1] <= y:
        return False
    start = bisect_left(xs, x)
    stop = start
    while stop < len(ys) and ys[stop] >= y:
        stop += 1
    xs[start:stop], ys[start:stop] = [x], [y]
    return True


def overshoots(measures: Measures, limits: Limits, *, higher_is_better: bool) -> dict[str, Floats]:
    """How far each row is beyond each limit that is set, relative to the limit; ≤ 0 where it is kept.

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


def feasible(measures: Measures, not_obeyed: ArrayLike, limits: Limits, *, higher_is_better: bool) -> Bools:
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


def keeps_limits(measures: Measures, limits: Limits, *, higher_is_better: bool) -> Bools:
    """Rows that keep every limit that is set, by these measures: of the search, or of the final split.

    A limit met exactly is kept; a measure that is missing keeps no limit that bounds it.

    Args:
        measures: latency, and those that the limits bound.
    """
    keeps = np.ones(np.shape(measures[LATENCY_MS]), bool)
    for limit, bound in limits.rows():
        keeps &= _beyond(measures, limit, bound, higher_is_better) <= 0
    return keeps


def _beyond(measures: Measures, limit: Limit, bound: float, higher_is_better: bool) -> Floats:
    """(n,) how far each row is beyond a limit, in its unit; NaN where the measure is missing."""
    values = np.asarray(measures[limit.column], float)
    # Integer columns of the store hold negative numbers where nothing is known; losses and metrics may be negative.
    known = values if limit.bounds_accuracy else np.where(values < 0, np.nan, values)
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
    """(n,) bool: rows beyond this one limit that keep all others; none where it is not set."""
    if name not in over:
        return np.zeros(len(next(iter(over.values()), ())), bool)
    result: Bools = over[name] > 0
    for other in over.keys() - {name}:
        result &= over[other] <= 0
    return result


def _misses(over: dict[str, Floats], row: int) -> tuple[tuple[str, float], ...]:
    found = [(name, float(column[row])) for name, column in over.items() if column[row] > 0]
    return tuple(sorted(found, key=lambda miss: -miss[1]))


@dataclass(frozen=True)
class Reference:
    """The corner that hypervolume is measured from: worse than this counts nothing."""

    latency_ms: float
    loss: float


def reference_of(baseline_latency_ms: Sequence[float], baseline_loss: Sequence[float]) -> Reference:
    """1.02 × the slowest and 1.05 × the worst loss of the uniform baselines that finished.

    When none of them lost anything there is no scale for the loss; the reference loss is then 1.0 in the metric's
    unit, and hypervolume is nearly the logarithm of the speed-up.

    Raises:
        ValueError: no baseline, or one that is not finite, or a latency not above zero.
    """
    lat, los = np.asarray(baseline_latency_ms, float), np.asarray(baseline_loss, float)
    if not len(lat) or len(lat) != len(los):
        raise ValueError("reference_of: needs the latency and loss of at least one baseline")
    _check(lat, los, np.zeros_like(los), 0.0)
    worst = float(los.max())
    return Reference(1.02 * float(lat.max()), 1.05 * worst if worst > 0 else 1.0)


def hypervolume(latency_ms: ArrayLike, loss: ArrayLike, reference: Reference) -> float:
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


def hypervolume_history(latency_ms: ArrayLike, loss: ArrayLike, eligible: ArrayLike, reference: Reference) -> Floats:
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


def _gains(latency_ms: ArrayLike, loss: ArrayLike, reference: Reference) -> tuple[Floats, Floats]:
    """(n,) gains over the reference in log latency and in loss; zero where a measure is missing."""
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
    _add_step(xs, ys, x, y)
    return area
