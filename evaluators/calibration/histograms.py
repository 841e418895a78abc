"""The second pass: histograms of the tensors between their extremes, and what the extremes of a sample usually are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.calibration.extremes import Extremes, is_finite
from evaluators.calibration.graph_sessions import open_chain, run_chain
from evaluators.calibration.sample_runs import SampleRuns, runs_of
from evaluators.calibration.scales import BINS, Bins, bins_of
from evaluators.data import Batch
from search.values import TensorRange

FETCH_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Counted:
    """What the second pass saw of one tensor.

    Attributes:
        counts: (kinds, BINS), as they were asked for.
        mean: the means over samples of their least and of their largest value; None where they were not asked for.
    """

    counts: NDArray[np.int64]
    mean: TensorRange | None


def count_values(
    run: SampleRuns,
    ranges: Mapping[str, TensorRange],
    seen: Extremes,
    *,
    magnitudes: Sequence[bool],
    most: int | None = None,
    means: bool = False,
) -> dict[str, Counted]:
    """Run the model over all samples again and count.

    Args:
        ranges: of the tensors to look at.
        seen: what the first pass saw.
        magnitudes: for each kind of histogram whether it counts non-zero |x| over 0…magnitude, instead of values over
            the range.
        most: about how many values of a tensor to count, evenly spread; None for all.
        means: whether the means of the samples' extremes are wanted too.

    Returns:
        What was counted, by tensor.
    """
    bins = {name: [bins_of(range_, magnitudes=each) for each in magnitudes] for name, range_ in ranges.items()}
    counts = {name: np.zeros((len(magnitudes), BINS), np.int64) for name in ranges}
    inputs = [spec.name for spec in run.model.inputs if spec.name in ranges]
    runs = runs_of(run.model, run.indices)
    # Odd, so that a step shares no factor with the usual even dimensions.
    steps = {n: 1 if most is None else max(1, runs * seen.elements[n] // most) | 1 for n in ranges}
    parts = cut_parts({name: 4 * seen.elements[name] for name in ranges if name not in inputs}, FETCH_BYTES)
    ends: dict[str, list[NDArray[np.float64]]] = {name: [] for name in ranges}

    def note(name: str, array: NDArray[Any], batch: Batch) -> None:
        real = run.real(array, batch)
        finite = is_finite(real) if name in seen.infinite else None
        counts[name] += _count(bins[name], real if finite is None else real[finite], steps[name])
        if means:
            rows = real.reshape(len(real) if array.ndim and len(array) == run.model.batch else 1, -1)
            ends[name].append(_ends_of(rows, None if finite is None else finite.reshape(rows.shape)))

    with ExitStack() as stack:
        chain = open_chain(run.model.graph, parts, run.threads, stack)
        for batch in run.batches():
            for name in inputs:
                note(name, batch.inputs[name], batch)
            for name, array in run_chain(chain, batch):
                if name in counts:
                    note(name, array, batch)
    return {name: Counted(counts[name], _mean_of(ends[name]) if means else None) for name in ranges}


def _mean_of(ends: Sequence[NDArray[np.float64]]) -> TensorRange:
    return TensorRange(*np.concatenate(ends, 1).mean(1).tolist())


def _ends_of(rows: NDArray[Any], finite: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """(2, rows) least and largest value of (rows, values), of those rows that have any."""
    where: dict[str, Any] = {} if finite is None else {"where": finite}
    with np.errstate(all="ignore"):
        ends = np.array([rows.min(1, initial=np.inf, **where), rows.max(1, initial=-np.inf, **where)], np.float64)
    return ends[:, ends[0] <= ends[1]]


def _count(bins: Sequence[Bins], values: NDArray[Any], step: int) -> NDArray[np.int64]:
    some = values.reshape(-1)[::step]
    return np.array([each.count(some) for each in bins], np.int64).reshape(len(bins), BINS)


def cut_parts(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names in order, cut so that the sizes of each part sum to the limit at most, but at least one name each."""
    parts: list[list[str]] = []
    used = 0
    for name, size in sizes.items():
        if not parts or used + size > limit:
            parts.append([])
            used = 0
        parts[-1].append(name)
        used += size
    return parts
