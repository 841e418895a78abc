"""From values to ranges, and from ranges and weights to scales. Arithmetic only, without a runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.values import TensorRange

BINS = 2048

Histogram = NDArray[np.int64]

# Levels on one side of zero in int8. Limits are chosen for them, whatever type a backend takes in the end.
_LEVELS = 128
# Two weights whose sum is this much below a limit keep it, though each is rounded and then changed by one, as recovery
# may do.
_ROUNDED = 2.5
# Below the smallest normal float32 engines may flush to zero, and a scale of zero divides by zero.
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
_BLOCK_VALUES = 2**20


def weight_scales(
    weight: NDArray[Any], axis: int | None, bits: int = 8, pair_limit: int | None = None
) -> NDArray[np.float32]:
    """Symmetric scales of a weight: largest magnitude ÷ largest level (127 for 8 bits, 63 for 7).

    Args:
        weight: float array of any shape.
        axis: the output channel axis, or None for one scale for the whole tensor.
        bits: width of the signed integer.
        pair_limit: the largest sum that the codes of `weight_pairs` may have; None for any. Without an axis every two
            codes may be a pair.

    Returns:
        (channels,) float32, or () when `axis` is None; 1.0 for channels that hold only zeros.

    Raises:
        ValueError: `bits` outside 2…8, an axis the weight does not have, or NaN/Inf in the weight.
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"weights are quantized to 2…8 bits, not {bits}")
    others = None if axis is None else _other_axes(weight, axis)
    # Not of np.abs(weight), which is a second weight: the largest one may be a large part of the memory.
    largest = np.maximum(weight.max(axis=others, initial=0.0), -weight.min(axis=others, initial=0.0)).astype(np.float64)
    if not np.isfinite(largest).all():
        raise ValueError(f"a weight of shape {weight.shape} holds NaN or Inf; it has no scale")
    scales = largest / (2 ** (bits - 1) - 1)
    if pair_limit is not None:
        pairs = 2 * largest if axis is None else _largest_pairs(weight, axis)
        scales = np.maximum(scales, pairs / (pair_limit - _ROUNDED))
    return np.asarray(np.where(scales >= _SMALLEST_SCALE, scales, 1.0), np.float32)


def _largest_pairs(weight: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """(outputs,) the largest of the `weight_pairs` of each output; a few outputs at a time, which saves memory."""
    outputs = np.moveaxis(weight, axis, 0)
    largest = np.zeros(len(outputs))
    for rows in row_blocks(outputs.shape):
        largest[rows] = weight_pairs(outputs[rows].astype(np.float64), 0).max(axis=1, initial=0.0)
    return largest


def row_blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Parts of the first axis of an array of this shape with about a million values each."""
    step = max(1, _BLOCK_VALUES // max(1, math.prod(shape[1:])))
    return (slice(start, start + step) for start in range(0, shape[0], step))


def weight_pairs(weight: NDArray[Any], axis: int) -> NDArray[Any]:
    """Sums of the magnitudes of every two weights of one sign whose products kernels add first.

    Kernels of x86 without VNNI add two products of UINT8 and INT8 in 16 bits, which saturates beyond 32,767, before
    they add pairs in 32 bits. In the order of places of the kernel, and of input channels within each, the first two
    weights are a pair, then the next two. The codes of activations are not negative, so that weights of different signs
    never add up. See "When and why do I need to try U8U8?" in
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html. That pairs are these was found by
    trying ONNX Runtime 1.32; a test holds it against the installed one.

    Args:
        weight: (outputs, inputs, …kernel) or a matrix, with the outputs on `axis`.

    Returns:
        (outputs, pairs) of the weight's type; a sum is the larger one of both signs. One that is left over is alone.
    """
    rows = np.moveaxis(weight, axis, 0)
    rows = (np.moveaxis(rows, 1, -1) if rows.ndim > 2 else rows).reshape(len(rows), -1)
    rows = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2))).reshape(len(rows), -1, 2)
    return np.asarray(np.maximum(np.maximum(rows, 0).sum(axis=2), np.maximum(-rows, 0).sum(axis=2)))


def activation_scale(observed: TensorRange, *, signed: bool, symmetric: bool) -> tuple[float, int]:
    """Scale and zero point of an 8-bit activation.

    Symmetric uses 127 levels on each side of zero, as for a range that is symmetric itself; asymmetric widens the range
    to hold zero and spreads it over all 256 levels. Zero is always exactly representable, and
    x ≈ (q − zero point) · scale.

    Args:
        observed: finite range, in the tensor's own unit.
        signed: int8 levels (−128…127) instead of uint8 levels (0…255).
        symmetric: zero point in the middle (0 for int8, 128 for uint8).

    Returns:
        The scale, > 0 and exactly a float32 (1.0 for a range of nothing but zero), and the zero point.
    """
    lowest_level = -128 if signed else 0
    low, high = min(observed.low, 0.0), max(observed.high, 0.0)
    symmetric = symmetric or -low == high > 0
    scale = observed.magnitude / 127 if symmetric else (high - low) / 255
    scale = float(np.float32(scale)) if scale >= _SMALLEST_SCALE else 1.0
    if symmetric:
        return scale, lowest_level + 128
    return scale, lowest_level + min(255, round(-low / scale))


def _other_axes(weight: NDArray[Any], axis: int) -> tuple[int, ...]:
    if not -weight.ndim <= axis < weight.ndim:
        raise ValueError(f"a weight of shape {weight.shape} has no axis {axis}")
    return tuple(other for other in range(weight.ndim) if other != axis % weight.ndim)


# Histograms and limits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bins:
    """BINS equal bins from `low` to `low + width`; of |x| without zeros when `magnitudes`."""

    low: float
    width: float
    magnitudes: bool

    def count(self, array: NDArray[Any]) -> Histogram:
        """(BINS,) counts of an array of any shape; values outside, by an ulp or so, go to the outer bins."""
        flat = _as_float32(array).reshape(-1)
        counts = np.zeros(BINS + 1, np.int64)
        # float32 keeps a block in cache, but neither 3e38 nor 1e-40 survives the arithmetic in it.
        dtype = np.float32 if 1e-30 < self.width < 1e30 else np.float64
        for start in range(0, flat.size, 2**15):
            block = flat[start : start + 2**15].astype(dtype, copy=False)
            place = (np.abs(block) if self.magnitudes else block - dtype(self.low)) * dtype(BINS / self.width)
            np.clip(place, 0, BINS, out=place)
            counts += np.bincount(place.astype(np.intp), minlength=BINS + 1)
        counts[BINS - 1] += counts[BINS]
        if self.magnitudes:
            counts[0] -= flat.size - np.count_nonzero(flat)
        return counts[:BINS]


def bins_of(seen: TensorRange, *, magnitudes: bool) -> Bins:
    return Bins(0.0, seen.magnitude, True) if magnitudes else Bins(seen.low, seen.high - seen.low, False)


def clip(seen: TensorRange, counts: Histogram, method: str, percentile: float) -> TensorRange:
    if method == "percentile":
        first, last = percentile_bins(counts, percentile)
        width = (seen.high - seen.low) / BINS
        low = seen.low if first == 0 else seen.low + first * width
        high = seen.high if last == BINS else seen.low + last * width
        return TensorRange(low, min(high, seen.high))
    kept = entropy_bins(counts) if method == "entropy" else mse_bins(counts)
    limit = seen.magnitude * kept / BINS
    return TensorRange(min(max(seen.low, -limit), limit), max(min(seen.high, limit), -limit))


def percentile_bins(counts: Histogram, percentile: float) -> tuple[int, int]:
    """First bin kept and first bin left out above it: outside lies at most 100 − `percentile` % on each side."""
    below = np.cumsum(counts)
    tail = below[-1] * (1 - percentile / 100)
    first = int(np.searchsorted(below, tail, side="right"))
    above = np.cumsum(counts[::-1])
    return min(first, BINS - 1), BINS - min(int(np.searchsorted(above, tail, side="right")), BINS - 1)


def entropy_bins(counts: Histogram) -> int:
    """How many bins of |x| to keep so that 128 levels lose the least information (Kullback–Leibler divergence).

    The method of S. Migacz, "8-bit Inference with TensorRT", GTC 2017 (S7310), as in pytorch-quantization's
    `_compute_amax_entropy`: p is the kept histogram with all outliers in its last bin; q spreads the mass of each
    level evenly over the level's non-empty bins. All limits are tried at once: with bins grouped by level,
    Σ p·log q needs only each level's mass and number of non-empty bins, which differences of running sums give.

    Args:
        counts: (BINS,) of |x|, exact zeros left out, at least one count.
    """
    mass = counts.astype(np.float64)
    ends, cuts = _level_cuts()
    level_mass = np.diff(_cumulate(mass)[cuts], axis=1)
    level_bins = np.diff(_cumulate(mass > 0)[cuts], axis=1)
    log_q = np.log(level_mass / np.maximum(level_bins, 1), where=level_mass > 0, out=np.zeros_like(level_mass))
    kept = _cumulate(mass)[ends]
    outliers = mass.sum() - kept
    last = mass[ends - 1]
    p_log_p = _cumulate(_x_log_x(mass))[ends] - _x_log_x(last) + _x_log_x(last + outliers)
    p_log_q = (level_mass * log_q).sum(axis=1) + outliers * log_q[:, -1]
    possible = (kept > 0) & ((last > 0) | (outliers == 0))
    loss = (p_log_p - p_log_q) / mass.sum() + np.log(np.where(possible, kept, 1.0) / mass.sum())
    loss[~possible] = np.inf
    return int(ends[_last_least(loss)])


@cache
def _level_cuts() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(limits,) bins that each limit keeps, and the (limits, levels + 1) bins where its levels begin and end."""
    ends = np.arange(_LEVELS, BINS + 1)
    return ends, -(-np.arange(_LEVELS + 1) * ends[:, np.newaxis] // _LEVELS)


def mse_bins(counts: Histogram) -> int:
    """How many bins of |x| to keep so that rounding to 127 steps, and clipping, give the least squared error.

    Values count as spread evenly inside their bin: the error is integrated exactly, ∫(x − round(x))² being
    k/12 + d³/3 at x = k + d, with k the nearest integer.

    Args:
        counts: (BINS,) of |x|, exact zeros left out.
    """
    ends, costs = _mse_costs()
    return int(ends[_last_least(costs @ counts)])


@cache
def _mse_costs() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(limits,) bins that each limit keeps, and the (limits, BINS) squared error of one count in each bin."""
    steps = _LEVELS - 1
    ends = np.arange(_LEVELS, BINS + 1, 16)
    edges = np.arange(BINS + 1)
    unit = ends[:, np.newaxis] / steps
    inside = np.minimum(edges, ends[:, np.newaxis]) / unit
    nearest = np.rint(inside)
    rounding = unit**3 * (nearest / 12 + (inside - nearest) ** 3 / 3)
    clipping = np.maximum(edges - ends[:, np.newaxis], 0) ** 3 / 3
    return ends, np.diff(rounding + clipping, axis=1)


def _cumulate(values: NDArray[Any]) -> NDArray[np.float64]:
    """(n + 1,) sums of the first 0…n values."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _x_log_x(values: NDArray[np.float64]) -> NDArray[np.float64]:
    logs: NDArray[np.float64] = values * np.log(np.where(values > 0, values, 1.0))
    return logs


def _last_least(values: NDArray[np.float64]) -> int:
    """Index of the least value, the last among equals: clip no more than pays."""
    return int(len(values) - 1 - np.argmin(values[::-1]))


def _as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)
