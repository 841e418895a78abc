"""The second pass: histograms of the tensors between their extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.calibration.extremes import Extremes, is_finite
from evaluators.calibration.graph_sessions import open_chain, run_chain
from evaluators.calibration.sample_runs import SampleRuns, runs_of
from evaluators.calibration.scales import BINS, Bins, bins_of
from search.values import TensorRange

FETCH_BYTES = 64 * 2**20


def count_values(
    run: SampleRuns,
    ranges: Mapping[str, TensorRange],
    seen: Extremes,
    *,
    magnitudes: Sequence[bool],
    most: int | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Run the model over all samples again and count.

    Args:
        ranges: of the tensors to look at.
        seen: what the first pass saw.
        magnitudes: for each kind of histogram whether it counts non-zero |x| over 0…magnitude, instead of values over
            the range.
        most: about how many values of a tensor to count, evenly spread; None for all.

    Returns:
        (kinds, BINS) counts per tensor.
    """
    bins = {name: [bins_of(range_, magnitudes=each) for each in magnitudes] for name, range_ in ranges.items()}
    counts = {name: np.zeros((len(magnitudes), BINS), np.int64) for name in ranges}
    inputs = [spec.name for spec in run.model.inputs if spec.name in ranges]
    runs = runs_of(run.model, run.indices)
    # Odd, so that a step shares no factor with the usual even dimensions.
    steps = {n: 1 if most is None else max(1, runs * seen.elements[n] // most) | 1 for n in ranges}
    parts = cut_parts({name: 4 * seen.elements[name] for name in ranges if name not in inputs}, FETCH_BYTES)
    with ExitStack() as stack:
        chain = open_chain(run.model.graph, parts, run.threads, stack)
        for batch in run.batches():
            for name in inputs:
                counts[name] += _count(bins[name], run.real(batch.inputs[name], batch), steps[name])
            for name, array in run_chain(chain, batch):
                if name in counts:
                    real = run.real(array, batch)
                    finite = real[is_finite(real)] if name in seen.infinite else real
                    counts[name] += _count(bins[name], finite, steps[name])
    return counts


def _count(bins: Sequence[Bins], values: NDArray[Any], step: int) -> NDArray[np.int64]:
    some = values.reshape(-1)[::step]
    return np.stack([each.count(some) for each in bins])


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
