"""Candidate ranges of a tensor, from its values in some samples, and the tensor after quantization with each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.calibration.scales import activation_scale, bins_of, clip
from evaluators.lowering.placement import Placement
from evaluators.lowering.weights import holdable_scales
from evaluators.recovery.int8.sample_errors import USUAL
from search.graph.floats.bounds import Bounds, cut
from search.values import TensorRange

Array = NDArray[Any]

MINMAX = "minmax"
_PERCENTILES = (99.99, 99.9)
# Ranges whose steps differ by less are tried once. Less gains less than `tensor_ranges` asks for: the noise of rounding
# goes with the square of the step.
_ALIKE = 0.1


@dataclass(frozen=True)
class Grid:
    """The 8-bit levels that a target gives a range.

    Attributes:
        bounds: that ops put on the tensor, within which its range is cut.
    """

    placement: Placement
    bounds: Bounds

    def levels(self, chosen: TensorRange) -> tuple[float, int]:
        """Scale and zero point."""
        symmetric = self.placement.symmetric
        within = chosen if symmetric else cut(chosen, self.bounds)
        scale, zero = activation_scale(within, signed=symmetric, symmetric=symmetric)
        return float(holdable_scales(np.asarray(scale, np.float32), self.placement)), zero

    def round_values(self, array: Array, chosen: TensorRange) -> Array:
        """What is left of float32 values of any shape."""
        scale, zero = self.levels(chosen)
        low, high = (-128, 127) if self.placement.symmetric else (-zero, 255 - zero)
        codes: Array = np.multiply(array, np.float32(1 / scale), dtype=np.float32)
        np.rint(codes, out=codes)
        np.clip(codes, low, high, out=codes)
        codes *= np.float32(scale)
        return codes


def propose_ranges(
    seen: TensorRange, arrays: Sequence[Array], weights: Sequence[Array], grid: Grid
) -> Mapping[str, TensorRange]:
    """Ranges by method, those left out that hardly differ from one before; the first is `minmax`.

    Args:
        seen: least and largest value in all calibration samples.
        arrays: (samples, …) values in some of them.
        weights: (samples,) of each: what counts less than half is no usual sample, and all but `minmax` leave it out.
    """
    candidates = {MINMAX: seen}
    usual = [array[each >= USUAL] for array, each in zip(arrays, weights, strict=True)]
    usual = [array for array in usual if array.size and np.isfinite(array).all()]
    if usual and seen.low < seen.high:
        for name, chosen in _of_usual(usual):
            if chosen.low < chosen.high and all(_differ(grid, chosen, other) for other in candidates.values()):
                candidates[name] = chosen
    return candidates


def _of_usual(arrays: Sequence[Array]) -> Iterator[tuple[str, TensorRange]]:
    low, high = min(float(array.min()) for array in arrays), max(float(array.max()) for array in arrays)
    whole = TensorRange(low, high)
    yield "usual", whole
    if low < high:
        counts = sum(bins_of(whole, magnitudes=False).count(array) for array in arrays)
        for percentile in _PERCENTILES:
            yield f"percentile:{percentile}", clip(whole, np.asarray(counts), "percentile", percentile)
        sizes = np.asarray(sum(bins_of(whole, magnitudes=True).count(array) for array in arrays))
        if sizes.any():
            for method in ("entropy", "mse"):
                yield method, clip(whole, sizes, method, 0.0)


def _differ(grid: Grid, one: TensorRange, other: TensorRange) -> bool:
    (scale, zero), (known, known_zero) = grid.levels(one), grid.levels(other)
    return abs(scale - known) > _ALIKE * known or abs(zero - known_zero) > 2
