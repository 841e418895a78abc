"""Permutations: an output whose channels, classes, positions or axes are in another order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.diagnose.wrapper.fault import (
    EQUAL_DB,
    Fault,
    FaultKind,
    by_axis,
    channel_powers,
    level_db,
    mends,
    ratio_db,
)

MOST_CHANNELS = 2048  # that are compared each with each
_LEAST_VALUES = 8  # of a sample, by which samples are told apart

Floats = NDArray[np.float64]


def find_permutation(values: NDArray[Any], expected: NDArray[Any], threshold_db: float) -> Fault | None:
    """The axis whose entries stand in another order, and that order; None if no order explains the difference.

    The order is found on every second sample and checked on the others; that of the samples themselves, axis 0, on
    every second of their values, if there are enough: of two probabilities one tells the other.

    Args:
        values, expected: (samples, …) of one shape.
    """
    axes = range(expected.ndim) if expected.ndim > 1 else ()
    faults = [_look_along(values, expected, axis, threshold_db) for axis in axes]
    return max((each for each in faults if each), key=lambda fault: fault.whole_db, default=None)


def _look_along(values: NDArray[Any], expected: NDArray[Any], axis: int, threshold_db: float) -> Fault | None:
    mine, theirs = by_axis(values, axis), by_axis(expected, axis)
    if axis == 0:
        mine, theirs = (each.reshape(len(each), -1, 1) for each in (mine, theirs))
    if mine.shape[1] < (_LEAST_VALUES if axis == 0 else 2):
        return None
    power, noise = channel_powers(mine, theirs)
    far = np.flatnonzero(noise * 10 ** (EQUAL_DB / 10) > power)
    if not 2 <= len(far) <= MOST_CHANNELS:
        return None
    order = _match(*(each[far, ::2].reshape(len(far), -1) for each in (mine, theirs)))
    moved = np.flatnonzero(order != np.arange(len(far)))
    if not len(moved):
        return None
    here, there = far[moved], far[order[moved]]
    mine, theirs = mine[:, 1::2], theirs[:, 1::2]
    power, before = channel_powers(mine, theirs)
    wanted, after = channel_powers(mine[here], theirs[there])
    before_db, after_db = ratio_db(power[here].sum(), before[here].sum()), ratio_db(wanted.sum(), after.sum())
    if not mends(before_db, after_db, threshold_db):
        return None
    whole_db = ratio_db(power.sum(), max(0.0, before.sum() - before[here].sum()) + after.sum())
    size, details = expected.shape[axis], {"channels": here.tolist(), "order": there.tolist()}
    return Fault(FaultKind.PERMUTED, before_db, after_db, whole_db, axis, size, **details)


def _match(values: Floats, expected: Floats) -> NDArray[np.int64]:
    """(channels,) which row of `expected` each row of `values` is; one to one, the nearest pairs first."""
    count = len(values)
    squares = np.square(values).sum(axis=1)[:, None] + np.square(expected).sum(axis=1)[None]
    cost = np.maximum(squares - 2 * values @ expected.T, 0.0)
    # Rounding must not move one of two equal rows: what stands where it belongs is taken for exact.
    near = cost.diagonal() <= cost.min(axis=1) + 1e-9 * squares.diagonal()
    np.fill_diagonal(cost, np.where(near, -1.0, cost.diagonal()))
    order = np.full(count, -1)
    taken = np.zeros(count, dtype=np.bool_)
    left = count
    for place in np.argsort(cost, axis=None, kind="stable"):
        row, column = divmod(int(place), count)
        if order[row] < 0 and not taken[column]:
            order[row], taken[column], left = column, True, left - 1
            if not left:
                break
    return order


_MOST_AXES = 5  # of which all orders are tried


def find_layout(values: NDArray[Any], expected: NDArray[Any], before_db: float, threshold_db: float) -> Fault | None:
    """The order of axes in which an output holds what is expected; None if no order explains it.

    Args:
        values: (samples, …) in the shape of `expected`, or in one with the same axes in another order.
        before_db: how near the output is as it stands; minus infinity where its shape is another.
    """
    levels = {order: level_db(reading, expected) for order, reading in _readings(values, expected)}
    if not levels:
        return None
    order = max(levels, key=lambda each: levels[each])
    if not mends(before_db, levels[order], threshold_db):
        return None
    return Fault(FaultKind.LAYOUT, before_db, levels[order], levels[order], order=order)


def has_same_axes(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether a shape is the expected one with its axes behind the samples in some order."""
    return shape[:1] == expected[:1] and sorted(shape) == sorted(expected) and len(shape) <= _MOST_AXES


def _readings(values: NDArray[Any], expected: NDArray[Any]) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
    """Orders of the expected axes, and the output in the expected layout if it holds them in that order."""
    axes = tuple(range(1, expected.ndim))
    if not 2 <= len(axes) < _MOST_AXES:
        return
    for rest in permutations(axes):
        order = (0, *rest)
        shape = tuple(expected.shape[axis] for axis in order)
        if rest != axes and values.shape in (shape, expected.shape):
            yield order, values.reshape(shape).transpose(np.argsort(order))
