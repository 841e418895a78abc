"""Comparing float activations with those in a lower precision: histograms, divergence, overlap, saturation.

Also what makes a tensor hard to round: values far from all others, and channels of very different ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.lowering.int8.dynamic import dynamic_weight
from evaluators.measure.output_noise import relative
from search.graph.grouping import is_constant
from search.values import Precision

Floats = NDArray[np.float64]

_BINS = 16  # of a channel's own range; with a full range of 8 bits, 16 levels fall into each
_PER_BIN = 8  # values, at least: fewer say nothing about a distribution
_SMOOTHING = 0.01  # mass spread over all bins, so that a divergence is finite
_VALUES = 2**18  # of one tensor, at most
_HALF_STEP = 2.0**-5  # of the largest number of FP8, relative to it
TAIL_SIGMAS = 4.0
HIGHEST_DB = 150.0  # two float32 that differ at all differ by more


@dataclass(frozen=True)
class Levels:
    """The levels of an 8-bit tensor: x ≈ (q - zero) · scale with low ≤ q ≤ high."""

    scale: float
    zero: int
    low: int
    high: int

    def round_values(self, values: NDArray[Any]) -> Floats:
        """What is left of values of any shape."""
        codes = np.clip(np.rint(values.astype(np.float64) / self.scale) + self.zero, self.low, self.high)
        return np.asarray((codes - self.zero) * self.scale)

    def saturated_share(self, values: NDArray[Any]) -> float:
        """Share of the values that lie more than half a level outside."""
        codes = values.astype(np.float64) / self.scale + self.zero
        return float(np.mean((codes < self.low - 0.5) | (codes > self.high + 0.5)))


@dataclass(frozen=True)
class Narrow:
    """A narrow float type."""

    precision: Precision

    def round_values(self, values: NDArray[Any]) -> Floats:
        with np.errstate(over="ignore"):
            return values.astype(self.precision.dtype).astype(np.float64)

    def saturated_share(self, values: NDArray[Any]) -> float:
        return float(np.mean(np.abs(values) > self.precision.largest))


@dataclass(frozen=True)
class Scaled:
    """A narrow float type with a scale: x ≈ scale · number."""

    precision: Precision
    scale: float

    def round_values(self, values: NDArray[Any]) -> Floats:
        limit = self.precision.largest_code
        numbers = np.clip(values.astype(np.float64) / self.scale, -limit, limit)
        return np.asarray(numbers.astype(self.precision.dtype).astype(np.float64) * self.scale)

    def saturated_share(self, values: NDArray[Any]) -> float:
        return float(np.mean(np.abs(values) > self.scale * self.precision.largest_code * (1 + _HALF_STEP)))


@dataclass(frozen=True)
class Distance:
    """How far a tensor is from its rounded self.

    Attributes:
        kl: Kullback-Leibler divergence of the rounded histogram from the float one, in nats, mean over channels.
        overlap: mass that both histograms share, mean over channels, 0 to 1.
        saturated: share of values that lie outside of what the precision can hold.
        tails: share of values more than `TAIL_SIGMAS` standard deviations from the mean of the whole tensor.
        peak: farthest value from the mean of the whole tensor, in standard deviations.
        channel_ratio: largest magnitude of the widest channel over that of the median one; 1 for a single channel.
    """

    kl: float
    overlap: float
    saturated: float
    tails: float
    peak: float
    channel_ratio: float


def distance(rows: NDArray[Any], grid: Levels | Narrow | Scaled) -> Distance:
    """Compare a tensor with its rounded self, channel by channel.

    Every channel's histogram covers its own float range: a channel that lies within one level of a scale that it
    shares with wider ones loses everything, which a histogram over the whole tensor does not show.

    Args:
        rows: (channels, values) of finite floats.
    """
    kl, overlap = compare_histograms(rows, grid.round_values(rows))
    return Distance(kl, overlap, grid.saturated_share(rows), *tails(rows), channel_ratio(rows))


def tails(values: NDArray[Any]) -> tuple[float, float]:
    """Share of values of any shape beyond `TAIL_SIGMAS` standard deviations from their mean, and the farthest one."""
    far = np.abs(values.astype(np.float64) - values.mean(dtype=np.float64))
    sigma = math.sqrt(float(np.square(far).mean()))
    return float(np.mean(far > TAIL_SIGMAS * sigma)), float(far.max()) / sigma if sigma else 0.0


def channel_ratio(rows: NDArray[Any]) -> float:
    """How much wider the widest of (channels, values) is than the median one; channels of zeros do not count."""
    reach = np.abs(rows).max(axis=1).astype(np.float64)
    reach = reach[reach > 0]
    return float(reach.max() / np.median(reach)) if len(reach) else 1.0


def by_channel(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """A tensor of any shape as (channels, values), evenly thinned to about a quarter of a million values."""
    if values.ndim < 2 or not -values.ndim <= axis < values.ndim:
        rows = values.reshape(1, -1)
    else:
        rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    step = math.ceil(rows.size / _VALUES)
    # A step that divides the width of an image would take the same column of every row.
    thin: NDArray[Any] = rows[:, :: step | 1] if step > 1 else rows
    return thin


def compare_histograms(rows: NDArray[Any], rounded: Floats, cut: float = 0.0) -> tuple[float, float]:
    """KL divergence and overlap of (channels, values) and their rounded values, mean over the channels that vary.

    Args:
        cut: share of a channel's values at each end that its outer bins take in, so that a few far ones do not push
            all others into one bin.
    """
    ends = (rows.min, rows.max) if not cut else (partial(np.quantile, rows, cut), partial(np.quantile, rows, 1 - cut))
    low, high = (end(axis=1, keepdims=True) for end in ends)
    varies = (high > low)[:, 0]
    if not varies.any():
        return 0.0, 1.0
    low, width = low[varies].astype(np.float64), (high - low)[varies].astype(np.float64)
    bins = min(_BINS, max(2, rows.shape[1] // _PER_BIN))
    p, q = (_histograms((values[varies] - low) / width, bins) for values in (rows, rounded))
    smooth = [(1 - _SMOOTHING) * h + _SMOOTHING / bins for h in (p, q)]
    kl = (smooth[0] * np.log(smooth[0] / smooth[1])).sum(axis=1)
    return float(kl.mean()), float(np.minimum(p, q).sum(axis=1).mean())


def _histograms(places: Floats, bins: int) -> Floats:
    """(channels, n) places in 0…1 to (channels, bins) shares; what lies outside counts to the outer bins."""
    channels = len(places)
    at = np.clip(places * bins, 0, bins - 1).astype(np.int64)
    counts = np.bincount((at + bins * np.arange(channels)[:, None]).ravel(), minlength=channels * bins)
    return np.asarray(counts.reshape(channels, bins) / max(1, places.shape[1]))


@dataclass(frozen=True)
class OutputError:
    """How far the rounded output of a group is from the exact one.

    Attributes:
        mse: mean squared error, in the tensor's own unit; infinite where values are not finite, as all below.
        relative: that over the mean square of the exact output.
        by_channel: mean over channels of a channel's error over its own variance, at most 1 each: what follows may
            scale a narrow channel up, so its loss counts like a wide one's.
        shift: share of the error that is one constant per channel, 0 to 1.
    """

    mse: float
    relative: float
    by_channel: float
    shift: float


def output_error(values: NDArray[Any], reference: NDArray[Any]) -> OutputError:
    """Compare (channels, values) with the exact values."""
    theirs = reference.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = values.astype(np.float64) - theirs
        noise = np.square(difference).mean(axis=1)
    if not np.isfinite(noise).all():
        return OutputError(math.inf, math.inf, math.inf, 0.0)
    power, variance, mse = float(np.square(theirs).mean()), theirs.var(axis=1), float(noise.mean())
    lost = np.divide(noise, variance, out=(noise > 0).astype(np.float64), where=variance > 0)
    constant = float(np.square(difference.mean(axis=1)).mean())
    return OutputError(
        mse, float(relative(mse, power)), float(np.minimum(lost, 1.0).mean()), min(1.0, constant / mse) if mse else 0.0
    )


def decibels(error: float) -> float | None:
    """A relative noise power as signal-to-noise ratio, at most `HIGHEST_DB`; None if it is not finite."""
    if not math.isfinite(error):
        return None
    return min(HIGHEST_DB, -10 * math.log10(error)) if error > 0 else HIGHEST_DB


_CUT = 0.01  # one far weight would put all others of its channel into one bin


def weight_divergence(exact: ir.Model, lowered: ir.Model, anchors: Sequence[str]) -> float | None:
    """Kullback-Leibler divergence of the rounded from the float weights, in nats; of several weights the worst.

    Histograms are taken of each output channel and, in another pass, of each input channel, over the middle 98 % of
    its own values; the greater of the two means over channels counts. That of output channels shows weights that
    vanish beside a few far larger ones, that of input channels shows inputs that are all but cut off.

    Args:
        exact: a model in float.
        lowered: the same in a lower precision, its nodes under the same names.
        anchors: names of the nodes whose weights are meant.

    Returns:
        None if none of them has a constant weight that is rounded.
    """
    divergences = [
        _divergence(
            weight,
            _read_factor(lowered.graph.node(name), reader, exact.graph.node(name)) if product is None else product,
        )
        for name in anchors
        for product in [dynamic_weight(lowered.graph.node(name), exact.graph.node(name))]
        for value, reader in zip(exact.graph.node(name).inputs[:2], lowered.graph.node(name).inputs[:2], strict=True)
        if value is not None and is_constant(value) and value.const_value is not None
        for weight in [value.const_value.numpy()]
    ]
    return max((each for each in divergences if each is not None), default=None)


def _read_factor(node: ir.Node, value: ir.Value | None, exact: ir.Node) -> NDArray[Any] | None:
    """What a node reads there, in the order of axes in which `exact` reads it."""
    turned = [each.attributes.get_int("transB", 0) for each in (node, exact)]
    factor = read_constant(value)
    return factor if factor is None or turned[0] == turned[1] else factor.T


def read_constant(value: ir.Value | None) -> NDArray[Any] | None:
    """What a node reads there, where that is a constant behind Q/DQ and casts at most; else None."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Cast":
        inner = read_constant(node.inputs[0])
        return None if inner is None else inner.astype(ir.DataType(node.attributes["to"].as_int()).numpy())
    return _dequantize(node) if node.op_type == "DequantizeLinear" else None


def _dequantize(node: ir.Node) -> NDArray[Any] | None:
    parts = [read_constant(value) for value in node.inputs]
    if any(part is None for part in parts):
        return None
    codes, scale = np.array(parts[0], np.float32), np.asarray(parts[1], np.float32)
    zero = np.asarray(parts[2], np.float32) if len(parts) > 2 else np.float32(0)
    if scale.ndim > 1:
        scale = np.repeat(scale, len(codes) // len(scale), axis=0)
    elif scale.size > 1:
        axis = node.attributes["axis"].as_int() % codes.ndim if "axis" in node.attributes else 1
        shape = [-1 if i == axis else 1 for i in range(codes.ndim)]
        scale, zero = scale.reshape(shape), np.broadcast_to(zero, scale.shape).reshape(shape)
    codes -= zero
    codes *= scale
    return codes


def _divergence(weight: NDArray[Any], rounded: NDArray[Any] | None) -> float | None:
    if rounded is None or rounded.shape != weight.shape or weight.dtype.kind != "f" or weight.ndim < 2:
        return None
    divergences = [0.0]
    for axis in (0, 1):
        if weight.shape[axis] > 1:
            rows = by_channel(weight, axis)
            divergences.append(compare_histograms(rows, by_channel(rounded, axis).astype(np.float64), _CUT)[0])
    return max(divergences)
