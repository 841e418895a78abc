"""Narrowing ranges by the error of the network's outputs.

A range that keeps its largest values leaves fewer levels to the others. What is best for the outputs of the next layer
need not be best for those of the network: an image's highlights are large, and of little use to a detector. So ranges
are changed here by what the outputs of the network say, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from search.values import Ranges, TensorRange

Floats = NDArray[np.float64]

_NARROWER = 0.7  # times as far; the step of the search, half of a bit
_WORTH = 0.97  # of the error, at most, that is left by a narrower range
_SURE = 3.0  # standard errors of the gain, at least: many ranges are tried, and some would help by chance


def narrow_ranges(
    ranges: Ranges,
    scales: Sequence[Sequence[str]],
    errors_of: Callable[[Ranges], Floats],
    *,
    has_time: Callable[[], bool],
) -> tuple[Ranges, int]:
    """Narrow the range of each scale as long as the error of the outputs falls by more than chance.

    A descent along one coordinate after the other, as the joint step of LAPQ: Y. Nahshan et al., "Loss Aware
    Post-training Quantization" (Machine Learning 110, 2021, https://arxiv.org/abs/1911.07190), with the error of the
    outputs for the loss.

    Args:
        scales: names of the tensors that have one scale, in the order of the graph.
        errors_of: (samples,) error of each sample under some ranges, always of the same samples.
        has_time: whether another range may be tried.

    Returns:
        The ranges, and how many scales are narrower.
    """
    if not scales or not has_time():
        return ranges, 0
    least, changed = errors_of(ranges), 0
    for names in scales:
        before = ranges
        while has_time():
            tried = replace(ranges, tensors={**ranges.tensors, **{n: _narrowed(ranges.tensors[n]) for n in names}})
            errors = errors_of(tried)
            if not _helps(errors, least):
                break
            ranges, least = tried, errors
        changed += ranges is not before
    return ranges, changed


def _helps(errors: Floats, before: Floats) -> bool:
    """Whether the errors of the same samples fell, surely and by enough."""
    gain = before - errors
    spread = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    return bool(errors.mean() <= _WORTH * before.mean() and gain.mean() > _SURE * spread)


def _narrowed(known: TensorRange) -> TensorRange:
    """The range without the values that are farthest from 0: a short side, as that of h-swish, stays."""
    most = _NARROWER * max(abs(known.low), abs(known.high))
    return TensorRange(max(known.low, -most), min(known.high, most))
