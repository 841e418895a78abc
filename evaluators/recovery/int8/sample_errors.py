"""Errors of a tensor by sample, in which samples that are unlike all others count little.

An error is relative to what each channel usually holds, and at most 1 for each channel of each sample. So a wild sample
adds no more to a mean than a sample that is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Array = NDArray[Any]

USUAL = 0.5  # least weight of a sample that is no garbage
_WILD = 100.0  # times the usual power: ten times the usual amplitude, which no brighter image has


def rows_of(array: Array, axis: int, count: int, batch: int) -> Array:
    """(samples, channels, values) of a tensor.

    Args:
        axis: which axis counts channels.
        count: real samples of the batch, the others being padding.
        batch: samples in a batch. A tensor whose first axis does not count samples is taken as one sample.
    """
    if array.ndim < 2:
        return array.reshape(1, -1, 1) if array.ndim and axis == -1 else array.reshape(1, 1, -1)
    channels = np.moveaxis(array, axis, 0)
    size = channels.shape[0]
    if axis % array.ndim != 0 and array.shape[0] % batch == 0:
        by_sample = channels.reshape(size, batch, -1)
        return np.moveaxis(by_sample[:, :count], 0, 1)
    return channels.reshape(1, size, -1)


def usual_power(rows: Sequence[Array]) -> Floats:
    """(channels,) mean square of each channel in the sample in the middle; of a channel that is mostly 0, a little.

    Samples that hold NaN or infinity in a channel do not count there.

    Args:
        rows: (samples, channels, values) of each batch.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        power = np.concatenate([np.square(part, dtype=np.float64).mean(axis=2) for part in rows])
    finite = np.isfinite(power)
    some = finite.any(axis=0)
    middle: Floats = np.zeros(power.shape[1])
    middle[some] = np.nanmedian(np.where(finite, power, np.nan)[:, some], axis=0)
    floor = 1e-4 * float(middle.mean()) or np.finfo(np.float64).tiny
    return np.maximum(middle, floor)


def sample_errors(rows: Array, reference: Array, power: Floats) -> Floats:
    """(samples,) error of (samples, channels, values) against a reference, 0 to 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        # In float32, which is four times as fast. Differences above 1e19 overflow, and count as lost.
        difference = rows - reference
        noise = np.square(difference, out=difference).mean(axis=2, dtype=np.float64) / power
    return np.asarray(np.minimum(np.where(np.isnan(noise), 1.0, noise), 1.0).mean(axis=1))


def sample_weights(rows: Sequence[Array]) -> list[Floats]:
    """(samples,) for each batch: 1 for a sample of usual amplitude, less for a wild one, 0 for what is not finite."""
    powers = [sample_powers(part) for part in rows]
    weights = power_weights(np.concatenate(powers))
    return np.split(weights, np.cumsum([len(each) for each in powers])[:-1])


def sample_powers(rows: Array) -> Floats:
    """(samples,) mean square of (samples, channels, values)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.square(rows, dtype=np.float64).mean(axis=(1, 2)))


def power_weights(powers: Floats) -> Floats:
    """(samples,) weights as `sample_weights` gives them, from mean squares.

    The usual amplitude is that of the samples that hold anything: an input may be empty in most of them.
    """
    known = powers[np.isfinite(powers) & (powers > 0)]
    limit = _WILD * float(np.median(known)) if len(known) else 0.0
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(powers), np.minimum(1.0, (limit + 1e-30) / (powers + 1e-30)), 0.0)


def helps(errors: Floats, before: Floats) -> bool:
    """Whether errors of samples fell by more than chance: the mean by more than its own standard error."""
    gain = before - errors
    spread = float(gain.std(ddof=1)) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return bool(gain.mean() > spread)
