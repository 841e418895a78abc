"""What a quantized file says of INT8 itself: ranges of its activations and scales of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.graph.grouping import Group
from search.values import Ranges, TensorRange

Array = NDArray[Any]

_LARGEST_CODE = 128


@dataclass(frozen=True)
class OwnScales:
    """What a quantized file says of INT8, by names of the clean model; empty of a float model.

    Attributes:
        tensors: range of each activation that it has in 8 bits.
        weights: weighted op → float32 scales of its weight, which broadcast to it.
    """

    tensors: Mapping[str, TensorRange] = field(default_factory=dict)
    weights: Mapping[str, Array] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tensors or self.weights)

    def owns(self, group: Group) -> bool:
        """Whether a group's INT8 is the file's."""
        return any(anchor in self.weights for anchor in group.anchors)

    def fix(self, ranges: Ranges) -> Ranges:
        """The ranges with the file's in place of those that were calibrated, which no recovery step changes."""
        own = {name: tensor_range for name, tensor_range in self.tensors.items() if name in ranges.tensors}
        fixed = tuple(sorted({*ranges.fixed, *own}))
        return replace(ranges, tensors={**ranges.tensors, **own}, fixed=fixed) if own else ranges


def scales_in(weight: Array, codes: Array, file_scales: Array) -> Array | None:
    """Scales with which a weight of the clean model is codes: the file's, or another one for each of the channels.

    Returns:
        float32, of as many axes as the weight; None where there are none, or codes have no room in INT8.
    """
    if weight.shape != codes.shape or np.abs(codes).max(initial=0) > _LARGEST_CODE:
        return None
    if np.array_equal(weight, np.asarray(codes.astype(np.float32) * file_scales, np.float32)):
        return np.asarray(file_scales, np.float32).reshape(
            [1] * (codes.ndim - file_scales.ndim) + list(file_scales.shape)
        )
    for axis in range(codes.ndim):  # a BatchNorm or a factor was taken into it
        rows, numbers = (np.moveaxis(part, axis, 0).reshape(codes.shape[axis], -1) for part in (codes, weight))
        place = np.abs(rows).argmax(axis=1)
        first = np.arange(len(rows)), place
        ratio = np.divide(numbers[first], rows[first], out=np.ones(len(rows), np.float32), where=rows[first] != 0)
        if np.allclose(rows * ratio[:, None], numbers, rtol=1e-5, atol=1e-6 * float(np.abs(numbers).max(initial=0))):
            scales: Array = np.abs(ratio).astype(np.float32)
            return scales.reshape([-1 if each == axis else 1 for each in range(codes.ndim)])
    return None
