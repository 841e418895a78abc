"""The second pass: histograms of the tensors between their extremes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np

from evaluators.calibration.extremes import Extremes, is_finite
from evaluators.calibration.graph_sessions import open_chain, run_chain
from evaluators.calibration.sample_runs import SampleRuns
from evaluators.calibration.scales import BINS, Histogram, bins_of
from search.values import TensorRange

FETCH_BYTES = 64 * 2**20


def count_values(
    run: SampleRuns, ranges: Mapping[str, TensorRange], seen: Extremes, *, magnitudes: bool
) -> dict[str, Histogram]:
    """Run the model over all samples again and count.

    Args:
        ranges: of the tensors to look at.
        seen: what the first pass saw.
        magnitudes: count non-zero |x| over 0…magnitude, instead of values over the range.

    Returns:
        (BINS,) counts per tensor.
    """
    bins = {name: bins_of(range_, magnitudes=magnitudes) for name, range_ in ranges.items()}
    counts = {name: np.zeros(BINS, np.int64) for name in ranges}
    inputs = [spec.name for spec in run.model.inputs if spec.name in ranges]
    parts = cut_parts({name: 4 * seen.elements[name] for name in ranges if name not in inputs}, FETCH_BYTES)
    with ExitStack() as stack:
        chain = open_chain(run.model.graph, parts, run.threads, stack)
        for batch in run.batches():
            for name in inputs:
                counts[name] += bins[name].count(run.real(batch.inputs[name], batch))
            for name, array in run_chain(chain, batch):
                if name in counts:
                    real = run.real(array, batch)
                    counts[name] += bins[name].count(real[is_finite(real)] if name in seen.infinite else real)
    return counts


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
