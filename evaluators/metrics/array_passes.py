"""Passes over large arrays in blocks that fit the CPU's cache, without conversion of the whole array.

NumPy's own `argmax` over a leading axis, and its work on float16, are ten times slower than a pass over memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 65536  # values of one array that are worked on at a time
_SHORT = 64  # positions per class below which a pass per class costs more than NumPy's argmax
_HALF_EXPONENT = 0x7C00  # all ones: infinite or NaN
_HALF_MAGNITUDE = 0x7FFF


def row_blocks(array: NDArray[Any]) -> Iterator[slice]:
    """Slices of the first axis, each of about a block of values, at least one row."""
    row = max(1, array[:1].size)
    step = max(1, _BLOCK // row)
    return (slice(start, start + step) for start in range(0, len(array), step))


def count_non_finite(array: NDArray[Any]) -> int:
    """How many values of a float array are NaN or infinite."""
    flat = np.ascontiguousarray(array).reshape(-1)
    half = flat.dtype == np.float16
    values = flat.view(np.uint16) if half else flat
    mask, bits = np.empty(min(_BLOCK, flat.size), bool), np.empty(_BLOCK if half else 0, np.uint16)
    total = 0
    for start in range(0, flat.size, _BLOCK):
        part = values[start : start + _BLOCK]
        good = mask[: len(part)]
        if half:
            np.not_equal(np.bitwise_and(part, _HALF_EXPONENT, out=bits[: len(part)]), _HALF_EXPONENT, out=good)
        else:
            np.isfinite(part, out=good)
        if not good.all():
            total += len(part) - int(np.count_nonzero(good))
    return total


def largest_class(scores: NDArray[Any]) -> NDArray[Any]:
    """`scores.argmax(axis=1)` of finite scores (n, C, …): (n, …) in the smallest unsigned type that holds C.

    Ties go to the lower class.
    """
    rows, classes = scores.shape[:2]
    largest = np.empty((rows, *scores.shape[2:]), np.min_scalar_type(classes))
    size = math.prod(scores.shape[2:])
    places, flat = largest.reshape(rows, size), scores.reshape(rows, classes, size)
    if size < _SHORT:
        for part in row_blocks(flat):
            places[part] = comparable(flat[part]).argmax(axis=1)
        return largest
    for part in row_blocks(places):
        _keep_largest(flat[part], places[part])
    return largest


def _keep_largest(scores: NDArray[Any], largest: NDArray[Any]) -> None:
    """The largest class at each place of (n, C, places), a pass per class: its number where it beats all before it."""
    best = comparable(scores[:, 0]).copy()
    beats, number = np.empty(best.shape, bool), np.empty_like(largest)
    largest[...] = 0
    for index in range(1, scores.shape[1]):
        values = comparable(scores[:, index])
        np.greater(values, best, out=beats)
        np.maximum(values, best, out=best)
        np.multiply(beats, largest.dtype.type(index), out=number)
        np.maximum(largest, number, out=largest)


def comparable(block: NDArray[Any]) -> NDArray[Any]:
    """Values in the same order that are quick to compare: of float16 its magnitude with its sign as int16.

    Both zeros become 0. NaN has no place in the order.
    """
    if block.dtype != np.float16:
        return block
    bits = np.ascontiguousarray(block).view(np.int16)
    sign = bits >> 15  # -1 or 0
    order: NDArray[np.int16] = ((bits & np.int16(_HALF_MAGNITUDE)) ^ sign) - sign
    return order
