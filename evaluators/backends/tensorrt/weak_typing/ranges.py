"""The dynamic ranges of a network whose tensors TensorRT may run in INT8."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from evaluators.backends.tensorrt.api import inputs_of, layer_kinds, layers_of, outputs_of
from search.values import Ranges

_LARGEST = float(np.finfo(np.float32).max)
# Layers whose output holds the values of their first input.
_MOVES = ("IDENTITY", "SHUFFLE", "SQUEEZE", "UNSQUEEZE")


def set_ranges(
    trt: Any, network: Any, ranges: Ranges, tensors: Collection[str], only: Collection[str] | None = None
) -> list[str]:
    """A dynamic range on the float inputs and layer outputs that may be INT8.

    A constant has that of its values. What else calibration does not know, because the parser made it, takes a bound
    that follows from its neighbours: see `_Neighbours`.

    Args:
        tensors: names of the model's own float tensors.
        only: names of those that may be INT8; None for all.

    Returns:
        Those of `tensors` that may be INT8, and that calibration has no range for.
    """
    layers = layers_of(network)
    setter, around = _RangeSetter(trt, ranges, only), _Neighbours(trt, layers, ranges)
    for i in range(network.num_inputs):
        setter.set(network.get_input(i), 1.0)
    for layer in layers:
        reaches = [setter.known.get(tensor.name, 0.0) for tensor in inputs_of(layer)]
        for i in range(layer.num_outputs):
            setter.set(layer.get_output(i), around.bound(layer, i, reaches) or max(reaches, default=0.0))
    return [name for name in setter.inherited if name in tensors]


class _RangeSetter:
    def __init__(self, trt: Any, ranges: Ranges, only: Collection[str] | None) -> None:
        self._floats = _floats(trt)
        self._ranges = ranges
        self._only = only
        self.known: dict[str, float] = {}
        self.inherited: list[str] = []

    def set(self, tensor: Any, fallback: float) -> None:
        own = self._ranges.tensors.get(tensor.name)
        magnitude = (own.magnitude if own is not None else fallback) or 1.0
        self.known[tensor.name] = magnitude
        if tensor.dtype not in self._floats or (self._only is not None and tensor.name not in self._only):
            return
        tensor.set_dynamic_range(-magnitude, magnitude)
        if own is None:
            self.inherited.append(tensor.name)


class _Neighbours:
    """Bounds on tensors that the parser made: a range too narrow would cut their values off wherever TensorRT runs the
    layer in INT8, which it may do with every layer that has no precision of its own.

    - A constant: the largest of its values.
    - What only moves on the way to a tensor of the model, as a 1-D convolution between two changes of shape: that
      tensor's range.
    - A softmax, and an activation that ends at 1: 1.
    - A product of two tensors: the product of their bounds.
    - A sum below a square root that the model has, as of a norm: the square of that.
    - The product that a Gemm with a bias becomes, whose sum alone is a tensor of the model: as far as the sum and the
      bias together reach.
    """

    def __init__(self, trt: Any, layers: Sequence[Any], ranges: Ranges) -> None:
        self._trt = trt
        self._floats = _floats(trt)
        self._moves = layer_kinds(trt, _MOVES)
        self._ranges = ranges
        self._makers = {tensor.name: layer for layer in layers for tensor in outputs_of(layer)}
        self._readers: dict[str, list[Any]] = {}
        for layer in layers:
            for tensor in inputs_of(layer):
                self._readers.setdefault(tensor.name, []).append(layer)

    def bound(self, layer: Any, index: int, reaches: Sequence[float]) -> float:
        """The largest magnitude that one of a layer's outputs may have; 0 if nothing is known.

        Args:
            reaches: magnitudes of the layer's inputs.
        """
        if layer.type == self._trt.LayerType.CONSTANT:
            return self._largest(layer)
        moved = self._find_magnitude(layer.get_output(index))
        if moved is not None:
            return moved or 1.0
        if layer.type == self._trt.LayerType.SOFTMAX or self._ends_at_one(layer):
            return 1.0
        if layer.type == self._trt.LayerType.REDUCE:
            return max(map(self._below_root, self._readers.get(layer.get_output(0).name, [])), default=0.0)
        if self._operation(layer) == self._trt.ElementWiseOperation.PROD:
            return min(math.prod(reaches), _LARGEST)
        if layer.type == self._trt.LayerType.MATRIX_MULTIPLY:
            return max(map(self._term, self._readers.get(layer.get_output(0).name, [])), default=0.0)
        return 0.0

    def _find_magnitude(self, tensor: Any) -> float | None:
        """The magnitude that calibration knows of a tensor, or of one that holds the same values later on."""
        for reached in self._same_values(tensor):
            known = self._ranges.tensors.get(reached.name)
            if known is not None:
                return known.magnitude
        return None

    def _same_values(self, tensor: Any) -> Iterator[Any]:
        """The tensor, and what layers that only move it make of it, nearest first; no casts to other than floats."""
        reached = [tensor]
        for current in reached:
            yield current
            for reader in self._readers.get(current.name, []):
                made = reader.get_output(0)
                if reader.type in self._moves and _is_first(reader, current) and made.dtype in self._floats:
                    reached.append(made)

    def _term(self, reader: Any) -> float:
        """How far one term of a sum reaches, the other being constant; 0 for what is no such sum."""
        total = self._find_magnitude(reader.get_output(0))
        if total is None or self._operation(reader) != self._trt.ElementWiseOperation.SUM:
            return 0.0
        return total + sum(self._constant(tensor.name) for tensor in inputs_of(reader))

    def _below_root(self, reader: Any) -> float:
        """How far the input of a square root reaches; 0 for what is none, or none of the model's."""
        root = self._find_magnitude(reader.get_output(0))
        if root is None or reader.type != self._trt.LayerType.UNARY:
            return 0.0
        is_root = _shown(reader, self._trt.IUnaryLayer, "op") == self._trt.UnaryOperation.SQRT
        return min(root**2, _LARGEST) if is_root else 0.0

    def _ends_at_one(self, layer: Any) -> bool:
        if layer.type != self._trt.LayerType.ACTIVATION:
            return False
        kinds = self._trt.ActivationType
        return _shown(layer, self._trt.IActivationLayer, "type") in (kinds.HARD_SIGMOID, kinds.SIGMOID, kinds.TANH)

    def _operation(self, layer: Any) -> Any:
        """The operation of an elementwise layer; None for any other."""
        if layer.type != self._trt.LayerType.ELEMENTWISE:
            return None
        return _shown(layer, self._trt.IElementWiseLayer, "op")

    def _constant(self, name: str) -> float:
        """The largest value of a constant, also through what only reshapes it; 0 for what is none."""
        maker = self._makers.get(name)
        if maker is None:
            return 0.0
        if maker.type in self._moves:
            return self._constant(maker.get_input(0).name)
        return self._largest(maker) if maker.type == self._trt.LayerType.CONSTANT else 0.0

    def _largest(self, layer: Any) -> float:
        if layer.get_output(0).dtype not in self._floats:
            return 0.0
        values = np.abs(np.asarray(_shown(layer, self._trt.IConstantLayer, "weights"), np.float64))
        # Masks hold infinities, or the least number of their type.
        return float(min(values[~np.isnan(values)].max(initial=0.0), _LARGEST))


def _shown(layer: Any, kind: Any, attribute: str) -> Any:
    """What only one kind of layer has: the bindings show it to who changes the class.

    It is changed back, as `type` of an activation is another `type` than that of layers.
    """
    before = layer.__class__
    layer.__class__ = kind
    try:
        return getattr(layer, attribute)
    finally:
        layer.__class__ = before


def _is_first(layer: Any, tensor: Any) -> bool:
    """Whether a layer takes the tensor as its data; a second input is a shape, or axes."""
    first = layer.get_input(0)
    return first is not None and first.name == tensor.name


def _floats(trt: Any) -> tuple[Any, ...]:
    return trt.float32, trt.float16, trt.int8
