"""Layouts: an output whose axes are in another order, or whose values were read in another order of axes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.diagnose.wrapper.fault import Fault, FaultKind, level_db, mends

_MOST_AXES = 5  # of which all orders are tried


def find_layout(values: NDArray[Any], expected: NDArray[Any], before_db: float, threshold_db: float) -> Fault | None:
    """The order of axes in which an output holds what is expected; None if no order explains it.

    Args:
        values: (samples, …) in the shape of `expected`, or in one with the same axes in another order.
        before_db: how near the output is as it stands; minus infinity where its shape is another.
    """
    levels = {order: level_db(found, expected) for order, found in _readings(values, expected)}
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
