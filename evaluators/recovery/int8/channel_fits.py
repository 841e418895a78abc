"""Offset and scale of each channel that bring the output of an op in INT8 to its output in float.

What an offset or a scale can repair is the error that all values of a channel share. Two kinds of error are no such
thing, and would mislead a mean or a regression:

- A few values are clipped, and all to the same side. A mean of the errors would move every other value to make up for
  them. So errors that are far from those of the other values are cut.
- Rounding noise makes INT8's values spread more than float's. The regression of float on INT8, which has the least
  squared error, takes that as a reason to shrink every value towards the mean of its channel. Strong responses are
  rare, as an object on much ground; they would be shrunk below others. So the scale is the one after which the mean
  INT8 value of equal float values is that float value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.recovery.int8.sample_errors import USUAL

Floats = NDArray[np.float64]
Array = NDArray[Any]

_BLOCK = 2**21  # values of some channels that are looked at together
_VALUES = 2**12  # of a channel, which tell a mean of errors to a fiftieth of their deviation; of more some are drawn
_FAR = 3.0  # standard deviations of the usual errors, beyond which an error is cut
_DEVIATION = 1.4826  # of a normal distribution, in median absolute deviations
_ROUNDS = 5  # to settle a mean of errors that are cut around it
_LEAST_SCALE, _LARGEST_SCALE = 0.5, 2.0  # beyond, a channel is noise, and a factor would not make it anything else


@dataclass(frozen=True)
class ChannelFits:
    """What brings INT8 to float, by channel.

    Attributes:
        offset: (channels,) to be added, where nothing is scaled.
        scale: (channels,) factor, 1 where none can be told.
        scaled_offset: (channels,) to be added after the factor.
    """

    offset: Floats
    scale: Floats
    scaled_offset: Floats


def fit_channels(
    rows: Sequence[Array], reference: Sequence[Array], weights: Sequence[Floats], *, shifted: bool
) -> ChannelFits | None:
    """Fit the constants of every channel.

    Args:
        rows: (samples, channels, values) of each batch, of INT8.
        reference: the same of the float model.
        weights: (samples,) of each batch; a sample that counts less than half is left out.
        shifted: whether an offset can be added; if not, a scale has to do with the values as they are.

    Returns:
        None if no usual sample is left.
    """
    kept = [_usual(len(array), each) for array, each in zip(rows, weights, strict=True)]
    rough = [array[each] for array, each in zip(rows, kept, strict=True)]
    exact = [array[each] for array, each in zip(reference, kept, strict=True)]
    if not any(len(array) for array in rough):
        return None
    rough, exact = _draw_positions(rough, exact)
    parts = [_fit(q, f, shifted) for q, f in zip(_blocks(rough), _blocks(exact), strict=True)]
    offset, scale, scaled_offset = (np.concatenate(part) for part in zip(*parts, strict=True))
    return ChannelFits(offset, scale, scaled_offset)


def usual_mean(errors: Floats) -> Floats:
    """(channels,) mean of (channels, values), those that are far from the others counting no more than the cut.

    The M-estimate of location of P. J. Huber, "Robust Estimation of a Location Parameter" (Annals of Mathematical
    Statistics 35, 1964), from the median, with the median absolute deviation as scale.
    """
    middle, far = _middle(errors)
    for _ in range(_ROUNDS):
        middle = middle + np.clip(errors - middle, -far, far).mean(axis=1, keepdims=True)
    return middle[:, 0]


def _usual(count: int, weights: Floats) -> NDArray[np.bool_]:
    """(count,) which samples are fitted to; a tensor without a row per sample is taken if its samples are usual."""
    each = weights if len(weights) == count else np.full(count, weights.mean())
    return each >= USUAL


def _draw_positions(rough: list[Array], exact: list[Array]) -> tuple[list[Array], list[Array]]:
    """Both with the values at the same random positions of every sample, where there are many."""
    samples, positions = sum(len(array) for array in rough), min(array.shape[2] for array in rough)
    wanted = max(1, _VALUES // samples)
    if positions <= wanted:
        return rough, exact
    places = np.sort(np.random.RandomState(positions % 2**31).permutation(positions)[:wanted])
    return [array[:, :, places] for array in rough], [array[:, :, places] for array in exact]


def _blocks(arrays: Sequence[Array]) -> Iterator[Floats]:
    """(some channels, samples and values) float64, for all channels."""
    channels = arrays[0].shape[1]
    size = max(1, _BLOCK * channels // max(1, sum(array.size for array in arrays)))
    for first in range(0, channels, size):
        parts = [np.moveaxis(array[:, first : first + size], 1, 0) for array in arrays]
        yield np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1).astype(np.float64)


def _fit(rough: Floats, exact: Floats, shifted: bool) -> tuple[Floats, Floats, Floats]:
    """Offset, scale, and offset beside the scale, of (channels, values)."""
    errors = exact - rough
    scale = _scale(rough, exact, errors, shifted)
    return usual_mean(errors), scale, usual_mean(exact - scale[:, None] * rough)


def _scale(rough: Floats, exact: Floats, errors: Floats, shifted: bool) -> Floats:
    """(channels,) 1 over the slope of the regression of INT8 on float, without the values whose errors are far off."""
    middle, far = _middle(errors)
    usual = np.abs(errors - middle) <= far
    total = np.maximum(usual.sum(axis=1, keepdims=True), 1)
    known, made = (np.where(usual, array, 0.0) for array in (exact, rough))
    if shifted:
        known, made = (np.where(usual, a - a.sum(axis=1, keepdims=True) / total, 0.0) for a in (known, made))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        variance, product = np.square(known).sum(axis=1), (known * made).sum(axis=1)
        scales = variance / product
        usable = (
            np.isfinite(scales) & (scales > 0) & (variance > 1e-6 * np.square(np.where(usual, exact, 0.0)).sum(axis=1))
        )
    return np.where(usable, np.clip(scales, _LEAST_SCALE, _LARGEST_SCALE), 1.0)


def _middle(errors: Floats) -> tuple[Floats, Floats]:
    """(channels, 1) median of the errors of each channel, and how far from it the usual ones reach."""
    middle = np.median(errors, axis=1, keepdims=True)
    return middle, _FAR * _DEVIATION * np.median(np.abs(errors - middle), axis=1, keepdims=True)
