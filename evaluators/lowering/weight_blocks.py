"""Weights as codes in blocks along K, each with a scale of its own. Arithmetic only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.values import Precision

# Of the scale that cuts nothing off: with 16 codes smaller ones lose less, and 8 of them are on one side alone.
TRIED = np.linspace(0.75, 1.0, 11)
_SMALLEST = float(np.finfo(np.float32).tiny)


def limits_of(precision: Precision) -> tuple[int, int]:
    """The lowest and the highest code."""
    high = precision.largest_code
    return (-high - 1, high) if precision.dtype == "int4" else (-high, high)


def block_scales(
    matrix: NDArray[Any], block: int, precision: Precision, clip: NDArray[np.int8] | None = None
) -> NDArray[np.float32]:
    """(K ÷ block, N) scales of a (K, N) matrix; of four bits those of the least squared error.

    Args:
        clip: which of `TRIED` each has instead.
    """
    low, high = limits_of(precision)
    largest = np.abs(matrix.reshape(-1, block, matrix.shape[1])).max(axis=1) / np.float32(high)
    largest = np.where(largest >= _SMALLEST, largest, 1.0).astype(np.float32)
    if -low == high:
        return largest
    clip = best_clip(matrix, block, precision) if clip is None else clip
    return (largest * TRIED[clip]).astype(np.float32)


def best_clip(
    matrix: NDArray[Any], block: int, precision: Precision, powers: NDArray[Any] | None = None
) -> NDArray[np.int8]:
    """(K ÷ block, N) which of `TRIED` has the least squared error of each block; the largest of equal ones.

    Args:
        powers: (K,) what the error of each input counts; None for all alike.
    """
    shape = (len(matrix) // block, matrix.shape[1])
    best, least = np.zeros(shape, np.int8), np.full(shape, np.inf)
    for place in range(len(TRIED)):
        scales = block_scales(matrix, block, precision, np.full(shape, place, np.int8))
        made = codes_in_blocks(matrix, scales, precision) * np.repeat(scales, block, axis=0)
        squares = np.square(made - matrix) if powers is None else np.square(made - matrix) * powers[:, None]
        error = squares.reshape(-1, block, matrix.shape[1]).sum(axis=1)
        best, least = np.where(error <= least, np.int8(place), best), np.minimum(error, least)
    return best


def codes_in_blocks(
    matrix: NDArray[Any],
    scales: NDArray[np.float32],
    precision: Precision,
    rounding: NDArray[np.int8] | None = None,
) -> NDArray[Any]:
    """(K, N) the nearest codes: floats of the precision's type, or INT8, moved by a rounding where there is one."""
    codes, limits = matrix / np.repeat(scales, len(matrix) // len(scales), axis=0), limits_of(precision)
    if not precision.dtype.startswith("int"):
        return np.clip(codes, *limits).astype(precision.dtype)
    codes = np.clip(np.rint(codes), *limits)
    return (codes if rounding is None else np.clip(codes + rounding, *limits)).astype(np.int8)
