"""Codes and the numbers that they stand for, as ops of a quantized file state them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from search.values import TensorRange

Array = NDArray[Any]


class UnreadError(Exception):
    """Internal: what a node computes on codes cannot be said of the numbers that they stand for."""


@dataclass(frozen=True)
class Form:
    """Codes as the number that they stand for: (codes − zero point) · scale, along `axis` where there are several."""

    value: ir.Value
    scale: Array
    zero: Array
    axis: int

    @property
    def range(self) -> TensorRange | None:
        """What the codes reach, symmetric where the zero point is in the middle; None unless it is one 8-bit scale."""
        if self.scale.size != 1 or self.zero.dtype not in (np.int8, np.uint8):
            return None
        lowest, highest = (int(limit) for limit in (np.iinfo(self.zero.dtype).min, np.iinfo(self.zero.dtype).max))
        scale, zero = float(self.scale.item()), int(self.zero.item())
        if zero == lowest + 128:
            return TensorRange(-127 * scale, 127 * scale)
        return TensorRange((lowest - zero) * scale, (highest - zero) * scale)


def numbers_of(node: ir.Node, index: int) -> Array | None:
    """A constant among the inputs as float32; None if it is computed."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None or value.const_value is None else value.const_value.numpy().astype(np.float32)


def zero_of(node: ir.Node, index: int, dtype: ir.DataType | None) -> Array:
    """The zero point among the inputs, in the type of the codes; without one 0."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return np.zeros((), np.uint8 if dtype is None else dtype.numpy())
    if value.const_value is None:
        raise UnreadError
    return np.asarray(value.const_value.numpy())


def limits_of(zero: Array) -> tuple[float, float]:
    """Lowest and highest code of a type."""
    if zero.dtype.kind in "iu":
        return float(np.iinfo(zero.dtype).min), float(np.iinfo(zero.dtype).max)
    kind: Any = ml_dtypes.iinfo if "int" in zero.dtype.name else ml_dtypes.finfo
    return float(kind(zero.dtype).min), float(kind(zero.dtype).max)


def less(codes: Array, zero: Array) -> Array:
    """Codes less their zero point: INT32 of integers, float32 of narrow floats."""
    wide = np.float32 if "float" in codes.dtype.name else np.int32
    return np.asarray(codes.astype(wide) - zero.astype(wide))


def nearest(array: Array, zero: Array) -> Array:
    """The codes next to numbers in units of their scale, less the zero point; of its type."""
    if "float" in zero.dtype.name:
        return np.clip(array, *limits_of(zero)).astype(zero.dtype).astype(np.float32)
    codes = np.clip(np.rint(array) + zero.astype(np.float32), *limits_of(zero))
    return less(codes.astype(np.int32), zero)


def spread(part: Array, axis: int, shape: Sequence[int], node: ir.Node) -> Array:
    """Scales or zero points so that they broadcast to codes: one, one for each channel, or one for each block."""
    if part.size == 1:
        return part.reshape(())
    axis %= max(1, len(shape))
    if part.ndim == 1 and part.size == shape[axis]:
        return part.reshape([-1 if each == axis else 1 for each in range(len(shape))])
    block = node.attributes.get_int("block_size") or 0
    if block and part.ndim == len(shape):
        return np.repeat(part, block, axis).take(range(shape[axis]), axis)
    raise UnreadError


def add_constant(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    made = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
    made.const_value = ir.tensor(array, name=name)
    graph.register_initializer(made)
    return made
