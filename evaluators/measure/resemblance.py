"""Whether the outputs of an engine are correlated with those of FP32, as a last check under any metric.

A metric may be blind to a broken engine: one that gives 1 always, or one that reads another output. So a few outputs of
every engine are compared with FP32's on the same samples, whatever the metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Rows = NDArray[np.int64]

SAMPLES = 64  # kept of a split
VALUES = 2**16  # kept of one sample, over all outputs: 16 MiB of float32 in all
_LEAST_FREEDOM = 8  # independent values below which a correlation is chance; that an engine is constant shows with two
_ROUNDING = 1e-5  # variation beside FP32's magnitude, or variation, that counts as none: its rounding makes as much
_BLOCK = 8192  # columns that are widened to float64 at a time


def first_rows(total: int | None = None) -> Rows:
    """The first samples of a split, as where scoring may stop early."""
    return np.arange(SAMPLES if total is None else min(SAMPLES, total), dtype=np.int64)


def spread_rows(total: int) -> Rows:
    """Samples over the whole of a split, whose neighbours may be alike, as those of one class or one video are."""
    return np.unique(np.linspace(0, max(0, total - 1), SAMPLES).astype(np.int64))


class Excerpt:
    """A part of the float outputs of an engine on some samples of a split, collected batch after batch.

    Args:
        rows: numbers of those samples in the split, ascending.

    Outputs without a row per sample, or whose rows differ in size, are left out: they cannot be compared by element.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._parts: dict[str, list[NDArray[Any]]] = {}
        self._uneven: set[str] = set()

    def add(self, outputs: Mapping[str, NDArray[Any]], first: int, count: int) -> None:
        """Take in the wanted rows of a batch of `count` samples, the first of which is sample `first` of the split."""
        low, high = np.searchsorted(self._rows, [first, first + count])
        if low == high:
            return
        wanted = self._rows[low:high] - first
        floats = {name: array for name, array in outputs.items() if array.dtype.kind == "f" and array.size}
        for name, array in floats.items():
            if array.ndim == 0 or len(array) != count:
                self._uneven.add(name)
                continue
            flat = array.reshape(count, -1)
            parts = self._parts.setdefault(name, [])
            parts.append(flat[np.ix_(wanted, _columns(flat.shape[1], VALUES // len(floats)))])
            if parts[-1].shape[1] != parts[0].shape[1]:
                self._uneven.add(name)

    def arrays(self) -> Arrays:
        """The excerpt by output name, (samples, values) in the type that the engine gives."""
        return {name: np.concatenate(parts) for name, parts in self._parts.items() if name not in self._uneven}


def resemblance(reference: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> float | None:
    """The least correlation of an engine's outputs with FP32's, over the outputs that both have.

    Pearson's correlation over all values of an output, each element centred over the samples. So what an element is on
    average counts for nothing: an engine that gives the same on every sample has 0, however near that is to FP32's
    mean.

    Args:
        reference: FP32's excerpt by output name, (samples, values).
        outputs: the engine's, of as many samples or of the first of them.

    Returns:
        From -1 to 1; None if nothing can be told: FP32's own outputs do not vary, or there are too few values.
    """
    correlations = []
    for name, mine in outputs.items():
        theirs = reference.get(name)
        if theirs is not None and theirs.shape[1:] == mine.shape[1:]:
            correlations.append(_correlation(theirs[: len(mine)], mine[: len(theirs)]))
    return min((value for value in correlations if value is not None), default=None)


def save(excerpt: Excerpt, file: Path) -> None:
    """Write an excerpt and the rows that it is of."""
    arrays = excerpt.arrays()
    np.savez(file, excerpt._rows, np.array(list(arrays), dtype=np.str_), *arrays.values())


def load(file: Path) -> tuple[Rows, Arrays]:
    """The rows that an excerpt is of, and its arrays; raises FileNotFoundError where there is none."""
    with np.load(file, allow_pickle=False) as stored:
        names = [str(name) for name in stored["arr_1"]]
        return stored["arr_0"], {name: stored[f"arr_{place}"] for place, name in enumerate(names, 2)}


def _columns(size: int, most: int) -> Rows:
    """Which values of a sample are kept: all, or some over the whole of it."""
    most = max(1, most)
    return np.arange(size) if size <= most else np.linspace(0, size - 1, most).astype(np.int64)


def _correlation(theirs: NDArray[Any], mine: NDArray[Any]) -> float | None:
    """The correlation of one output; None where FP32's does not vary, or where there are too few values to tell."""
    sums = np.zeros(3)  # products of theirs with theirs, mine with mine, theirs with mine
    variation = magnitude = 0.0
    for start in range(0, theirs.shape[1], _BLOCK):
        x, y = (np.asarray(array[:, start : start + _BLOCK], dtype=np.float64) for array in (theirs, mine))
        magnitude = max(magnitude, float(np.abs(x).max()))
        x, y = (values - values.mean(axis=0) for values in (x, y))
        variation = max(variation, float(np.abs(x).max()))
        sums += np.vdot(x, x), np.vdot(y, y), np.vdot(x, y)
    if variation <= _ROUNDING * magnitude:
        return None
    if sums[1] <= _ROUNDING**2 * sums[0]:
        return 0.0
    if (len(theirs) - 1) * theirs.shape[1] < _LEAST_FREEDOM:
        return None
    return float(sums[2] / np.sqrt(sums[0] * sums[1]))
