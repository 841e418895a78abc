"""The distance of a network's outputs from those of the float model, for each sample and in total.

An output may hold values of several units, as the edges of boxes in pixels beside scores of classes. A sum of squares
would only see the largest of them. So every channel of an output with two inner axes or more counts alike, by its own
power: on a YOLO detector errors so measured rank INT8 ranges as the loss in average precision does, and sums of squares
do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.engine import Arrays

Floats = NDArray[np.float64]


def compared_names(outputs: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """The outputs that tell the error: those of floats, or all of them where there are none."""
    floats = tuple(name for name, array in outputs.items() if array.dtype.kind == "f")
    return floats or tuple(outputs)


def split_rows(array: NDArray[Any], rows: int) -> NDArray[Any] | None:
    """(rows, …) an output with one row for each sample; None if its first axis is no multiple of them.

    Args:
        array: its first axis counts samples, or, as of a Reshape to (samples · tokens, …), parts of samples in turn.
    """
    size = len(array) if array.ndim else 1
    if not size or size % rows:
        return None
    return array if size == rows and array.ndim else array.reshape(rows, size // rows, *array.shape[1:])


def sample_noise(outputs: Arrays, reference: Arrays, rows: int) -> Floats:
    """(rows,) error of every sample, relative to the batch.

    An output without a row for each sample counts with its error in every one. One of another shape, as that of NonZero
    may be, is infinitely far.
    """
    errors = np.zeros(rows)
    for name in compared_names(reference):
        array = reference[name]
        if outputs[name].shape != array.shape:
            errors += np.inf
            continue
        split = split_rows(array, rows)
        exact = array[None] if split is None else split
        noise, power = channel_squares(outputs[name].reshape(exact.shape), exact)
        errors += mean_ratio(noise, np.maximum(power.mean(axis=0), np.finfo(np.float64).tiny))
    return np.where(np.isfinite(errors), errors, np.inf)


def mean_ratio(noise: Floats, power: Floats) -> Floats:
    """(rows,) mean over channels of noise divided by power.

    With several channels each ratio is at most 1, which stands for a channel that is lost. That of an only channel may
    be larger.

    Args:
        noise: (rows, channels).
        power: (channels,) of the float outputs.

    Returns:
        Infinite where noise is not finite.
    """
    ratios = relative(noise, power)
    if ratios.shape[1] > 1:
        ratios = np.where(np.isfinite(noise), np.minimum(ratios, 1.0), np.inf)
    return np.asarray(ratios.mean(axis=1))


class OutputNoise:
    """Sums over weighted samples, batch after batch.

    Args:
        by_channel: whether every channel counts alike; otherwise noise and power are those of all of them.
    """

    def __init__(self, *, by_channel: bool = True) -> None:
        self._by_channel = by_channel
        self._noise: dict[str, Floats] = {}
        self._power: dict[str, Floats] = {}
        self._flipped = self._classified = 0.0

    def add(self, outputs: Arrays, reference: Arrays, weights: Floats) -> None:
        """Count one batch.

        Args:
            weights: (count,) of the real samples; rows beyond them do not count. An output without a row per sample
                counts with all of them.
        """
        rows = max((len(array) for array in reference.values() if array.ndim), default=0)
        names = compared_names(reference)
        for name in names:
            noise, power = channel_squares(outputs[name], reference[name])
            if not self._by_channel:
                noise, power = sum_channels(noise), sum_channels(power)
            each = np.full(len(noise), weights.sum() / max(1, len(noise)))
            if len(noise) == rows:
                noise, power, each = noise[: len(weights)], power[: len(weights)], weights
            self._noise[name] = _add_channels(self._noise.get(name), each @ noise)
            self._power[name] = _add_channels(self._power.get(name), each @ power)
        self._count_classes(outputs[names[0]], reference[names[0]], weights)

    def _count_classes(self, values: NDArray[Any], reference: NDArray[Any], weights: Floats) -> None:
        if reference.ndim == 2 and reference.shape[1] > 1 and reference.dtype.kind == "f":
            differs = values.argmax(axis=1) != reference.argmax(axis=1)
            self._flipped += float(weights @ differs[: len(weights)])
            self._classified += float(weights.sum())

    @property
    def error(self) -> float:
        """Noise over the float outputs' power, mean over the outputs; infinite where values are not finite."""
        ratios = [mean_ratio(noise[None], self._power[name])[0] for name, noise in self._noise.items()]
        return float(sum(ratios)) / len(ratios)

    @property
    def flip_share(self) -> float | None:
        """Share of the samples whose class changes; None if the outputs are no classes."""
        return self._flipped / self._classified if self._classified else None


def row_squares(values: NDArray[Any], reference: NDArray[Any]) -> tuple[Floats, Floats]:
    """(rows,) sums of squared differences and squares; of what is no float, how many differ, and how many there are."""
    noise, power = channel_squares(values, reference)
    return noise.sum(axis=1), power.sum(axis=1)


def channel_squares(values: NDArray[Any], reference: NDArray[Any]) -> tuple[Floats, Floats]:
    """(rows, channels) sums of squared differences and squares; of what is no float, how many differ, and how many are.

    Channels are on the shortest axis behind the first, where there are two such axes or more: a detector's 84 beside
    its 8,400 places, the classes of a mask beside height and width. Other outputs are one channel.
    """
    kind = reference.dtype.kind
    if kind != "f":  # codes and classes: far apart is no more wrong than near
        differs = _channels(values != reference)
        return differs.sum(axis=2, dtype=np.float64), np.ones_like(differs, np.float64).sum(axis=2)
    theirs = _channels(reference).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        noise = np.square(_channels(values).astype(np.float64) - theirs).sum(axis=2)
    return np.where(np.isnan(noise), np.inf, noise), np.square(theirs).sum(axis=2)


def sum_channels(squares: Floats) -> Floats:
    """(rows, 1) of all channels together."""
    return np.asarray(squares.sum(axis=1, keepdims=True))


def _add_channels(known: Floats | None, more: Floats) -> Floats:
    """(channels,) sums; of all channels together where batches differ in their number, as those of tokens may."""
    if known is None or len(known) == len(more):
        return more if known is None else known + more
    return np.atleast_1d(known.sum() + more.sum())


def _channels(array: NDArray[Any]) -> NDArray[Any]:
    """(rows, channels, values)."""
    if array.ndim < 3 or not array.size:
        return array.reshape(len(array) if array.ndim else 1, 1, math.prod(array.shape[1:]))
    axis = 1 + int(np.argmin(array.shape[1:]))
    return np.moveaxis(array, axis, 1).reshape(len(array), array.shape[axis], -1)


def relative(noise: Floats | float, power: Floats | float) -> Floats:
    """Noise over power, element by element; infinite if there is noise without power, or it is not finite."""
    noise, power = np.asarray(noise, np.float64), np.asarray(power, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where((power > 0) & np.isfinite(noise), noise / power, np.inf)
    return np.asarray(np.where(noise == 0, 0.0, ratios))
