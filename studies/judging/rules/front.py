"""The front: evaluations that no other beats by more than measurement noise.

Arrays are columns of evaluations of one target: latency in milliseconds, loss against FP32 in the metric's unit
(≥ 0 when worse), NaN if a stage was not reached.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def front(
    latency_ms: ArrayLike, loss: ArrayLike, latency_band: float, loss_band: ArrayLike, eligible: ArrayLike
) -> Bools:
    """The eligible rows that no other eligible row dominates beyond measurement noise.

    j *beats* i in latency when `latency_j · (1 + latency_band) < latency_i`, and in loss when the difference is more
    than the wider of their two half-widths. j knocks i out when it beats i in one objective and i does not beat j in
    the other; so rows that tie in both all stay. O(n log n): rows sorted by latency, and for each row the prefix that
    can knock it out, of which only minima of the loss are asked.

    With very unequal loss bands, rows may knock each other out in a circle until none is left. Then the front without
    bands is returned, so eligible rows always have a front.

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
    check_columns(lat, los, band, latency_band)
    stays = ~_knocked_out(lat, los, latency_band, band)
    if not stays.any():
        stays = ~_knocked_out(lat, los, 0.0, np.zeros_like(band))
    result = np.zeros(len(np.asarray(eligible)), bool)
    result[rows[stays]] = True
    return result


def check_columns(lat: Floats, los: Floats, band: Floats, latency_band: float) -> None:
    """Raise ValueError where a latency, a loss or a band is not finite or out of range."""
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
    """What `_beaten_in_loss` asks of one row, asked of any two: False if that cannot be True."""
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
            add_step(uppers, losses, loss[j] + half[j], loss[j])
        taken = max(taken, end)
        below = bisect_left(uppers, loss[i])
        beaten[i] = below > 0 and losses[below - 1] + half[i] < loss[i]
    return beaten


def _prefix_minima(values: Floats) -> Floats:
    """(n + 1,): least of the first k values, for k = 0 … n."""
    return np.concatenate([[np.inf], np.minimum.accumulate(values)])


def add_step(xs: list[float], ys: list[float], x: float, y: float) -> bool:
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
