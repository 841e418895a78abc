"""Scales and offsets: an output that is a multiple of the expected values or shifted from them, whole or by channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.diagnose.wrapper.fault import Fault, FaultKind, by_axis, channel_powers, mends, ratio_db, simplest

_LEAST_VALUES = 16  # of a channel, on either side of the division: with fewer, some of a thousand fit by chance

Floats = NDArray[np.float64]


def find_scaling(values: NDArray[Any], expected: NDArray[Any], threshold_db: float) -> Fault | None:
    """The simplest of one offset, one scale, both, and those of each channel, that explains the difference, or None.

    Numbers are fitted on every second sample and checked on the others.

    Args:
        values, expected: (samples, …) of one shape.
    """
    return simplest(list(_explanations(values, expected, threshold_db)))


def _explanations(values: NDArray[Any], expected: NDArray[Any], threshold_db: float) -> Iterator[Fault]:
    """Faults of scale and offset that explain the difference, the simplest first."""
    views: list[tuple[int | None, Floats, Floats]] = [
        (None, by_axis(values[:, None], 1), by_axis(expected[:, None], 1))
    ]
    axes = dict.fromkeys((1, expected.ndim - 1)) if expected.ndim > 1 else {}
    views += [(each, by_axis(values, each), by_axis(expected, each)) for each in axes]
    for axis, mine, theirs in views:
        if mine[0, ::2].size >= _LEAST_VALUES <= mine[0, 1::2].size:
            for kind in (FaultKind.OFFSET, FaultKind.SCALE, FaultKind.AFFINE):
                fault = _explain(kind, axis, mine, theirs, threshold_db)
                if fault is not None:
                    yield fault


def _explain(kind: FaultKind, axis: int | None, mine: Floats, theirs: Floats, threshold_db: float) -> Fault | None:
    scales, offsets = _fit(kind, mine[:, ::2], theirs[:, ::2])
    usable = np.abs(scales) > 1e-12
    mine, theirs = mine[:, 1::2], theirs[:, 1::2]
    mended = (mine - offsets[:, None, None]) / np.where(usable, scales, 1.0)[:, None, None]
    power, before = channel_powers(mine, theirs)
    _, after = channel_powers(mended, theirs)
    # What is common has to vary with the samples: an offset alone would make a constant of any output fit.
    varying = np.square(theirs - theirs.mean(axis=(1, 2), keepdims=True)).sum(axis=(1, 2))
    wrong = np.flatnonzero(usable & (before > after * 10 ** (threshold_db / 10)) & (varying > 2 * after))
    before_db, after_db = (ratio_db(power[wrong].sum(), noise[wrong].sum()) for noise in (before, after))
    if not len(wrong) or not mends(before_db, after_db, threshold_db):
        return None
    whole_db = ratio_db(power.sum(), np.delete(before, wrong).sum() + after[wrong].sum())
    details: dict[str, Any] = {
        "channels": () if axis is None else wrong.tolist(),
        "scales": () if kind is FaultKind.OFFSET else scales[wrong].tolist(),
        "offsets": () if kind is FaultKind.SCALE else offsets[wrong].tolist(),
    }
    return Fault(kind, before_db, after_db, whole_db, axis, 0 if axis is None else len(mine), **details)


def _fit(kind: FaultKind, mine: Floats, theirs: Floats) -> tuple[Floats, Floats]:
    """(channels,) scales and offsets with the least squares of mine - (scale · theirs + offset)."""
    axes = (1, 2)
    if kind is FaultKind.OFFSET:
        return np.ones(len(mine)), (mine - theirs).mean(axis=axes)
    means = (0.0, 0.0)
    if kind is FaultKind.AFFINE:
        means = mine.mean(axis=axes), theirs.mean(axis=axes)
    left, right = (each - np.reshape(mean, (-1, 1, 1)) for each, mean in zip((mine, theirs), means, strict=True))
    power = np.square(right).sum(axis=axes)
    scales = np.divide((left * right).sum(axis=axes), power, out=np.zeros_like(power), where=power > 0)
    return scales, np.broadcast_to(np.asarray(means[0]) - scales * means[1], scales.shape)
