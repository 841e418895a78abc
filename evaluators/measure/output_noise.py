"""The distance of a network's outputs from those of the float model, for each sample and in total."""

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


def sample_noise(outputs: Arrays, reference: Arrays, rows: int) -> Floats:
    """(rows,) error of every sample, relative to the batch: 0 throughout where no output has a row per sample."""
    found = np.zeros(rows)
    for name in compared_names(reference):
        array = reference[name]
        if array.ndim and len(array) == rows:
            noise, power = row_squares(outputs[name], array)
            found += noise / max(float(power.mean()), np.finfo(np.float64).tiny)
    return np.where(np.isfinite(found), found, np.inf)


class OutputNoise:
    """Sums over weighted samples, batch after batch."""

    def __init__(self) -> None:
        self._noise: dict[str, float] = {}
        self._power: dict[str, float] = {}
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
            noise, power = row_squares(outputs[name], reference[name])
            each = np.full(len(noise), weights.sum() / max(1, len(noise)))
            if len(noise) == rows:
                noise, power, each = noise[: len(weights)], power[: len(weights)], weights
            self._noise[name] = self._noise.get(name, 0.0) + float(each @ noise)
            self._power[name] = self._power.get(name, 0.0) + float(each @ power)
        self._count_classes(outputs[names[0]], reference[names[0]], weights)

    def _count_classes(self, values: NDArray[Any], reference: NDArray[Any], weights: Floats) -> None:
        if reference.ndim == 2 and reference.shape[1] > 1 and reference.dtype.kind == "f":
            differs = values.argmax(axis=1) != reference.argmax(axis=1)
            self._flipped += float(weights @ differs[: len(weights)])
            self._classified += float(weights.sum())

    @property
    def error(self) -> float:
        """Noise over the float outputs' power, mean over the outputs; infinite where values are not finite."""
        ratios = [relative(self._noise[name], self._power[name]) for name in self._noise]
        return sum(ratios) / len(ratios)

    @property
    def flipped(self) -> float | None:
        """Share of the samples whose class changes; None if the outputs are no classes."""
        return self._flipped / self._classified if self._classified else None


def row_squares(values: NDArray[Any], reference: NDArray[Any]) -> tuple[Floats, Floats]:
    """(rows,) squared differences and squares; of what is no number, whether it differs and one."""
    if reference.dtype.kind not in "fiu":
        differs = (values != reference).astype(np.float64)
        return _row_sums(differs), _row_sums(np.ones_like(differs))
    theirs = reference.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        noise = np.square(values.astype(np.float64) - theirs)
    if reference.dtype.kind in "iu":  # codes and classes: far apart is no more wrong than near
        return _row_sums((noise > 0).astype(np.float64)), _row_sums(np.ones_like(noise))
    return _row_sums(np.where(np.isnan(noise), np.inf, noise)), _row_sums(np.square(theirs))


def _row_sums(array: Floats) -> Floats:
    return np.asarray(np.atleast_1d(array).reshape(array.shape[0] if array.ndim else 1, -1).sum(axis=1))


def relative(noise: float, power: float) -> float:
    """Noise over power; infinite if there is noise without power, or it is not finite."""
    if noise == 0:
        return 0.0
    return noise / power if power > 0 and math.isfinite(noise) else math.inf
