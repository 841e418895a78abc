"""Weak typing (TensorRT 8.6 to 10.x): precision set on layers and obeyed, a range on every tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from evaluators.backends.base import RefusedError
from evaluators.backends.tensorrt_api import layers_of
from search.grouping import Group
from search.values import Assignment, Precision, Ranges

_LAYER_KINDS = ("CONVOLUTION", "DECONVOLUTION", "FULLY_CONNECTED", "MATRIX_MULTIPLY")


def set_flags(trt: Any, config: Any, precisions: set[Precision], *, obey: bool = True) -> None:
    """Let the builder use the precisions that an assignment has, and make it obey."""
    if obey:
        config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    for precision, flag in ((Precision.FP16, trt.BuilderFlag.FP16), (Precision.INT8, trt.BuilderFlag.INT8)):
        if precision in precisions:
            config.set_flag(flag)


def set_precisions(trt: Any, network: Any, groups: Sequence[Group], assignment: Assignment) -> None:
    """Set the precision of every group's weighted layers.

    Raises:
        RefusedError: the parsed network has no weighted layer of that name.
    """
    types = {Precision.FP32: trt.float32, Precision.FP16: trt.float16, Precision.INT8: trt.int8}
    kinds = {getattr(trt.LayerType, kind) for kind in _LAYER_KINDS if hasattr(trt.LayerType, kind)}
    wanted = {anchor: assignment[group.id] for group in groups for anchor in group.anchors}
    found = set()
    for layer in layers_of(network):
        if layer.name in wanted and layer.type in kinds:
            layer.precision = types[wanted[layer.name]]
            found.add(layer.name)
    missing = sorted(wanted.keys() - found)
    if missing:
        raise RefusedError(f"the parsed network has no weighted layer named {missing[0]!r} (of {len(missing)})")


def set_ranges(trt: Any, network: Any, ranges: Ranges, tensors: Collection[str]) -> list[str]:
    """A dynamic range on every float input and layer output.

    A constant has that of its values. What else calibration does not know, because the parser made it, takes a bound
    that follows from its neighbours: see `_Neighbours`.

    Args:
        tensors: names of the model's own float tensors.

    Returns:
        Those of `tensors` that calibration has no range for.
    """
    layers = layers_of(network)
    setter, around = _RangeSetter(trt, ranges), _Neighbours(trt, layers, ranges)
    for i in range(network.num_inputs):
        setter.set(network.get_input(i), 1.0)
    for layer in layers:
        inherited = max((setter.known.get(tensor.name, 0.0) for tensor in _inputs(layer)), default=0.0)
        for i in range(layer.num_outputs):
            setter.set(layer.get_output(i), around.bound(layer) or inherited)
    return [name for name in setter.inherited if name in tensors]


class _RangeSetter:
    def __init__(self, trt: Any, ranges: Ranges) -> None:
        self._floats = _floats(trt)
        self._ranges = ranges
        self.known: dict[str, float] = {}
        self.inherited: list[str] = []

    def set(self, tensor: Any, fallback: float) -> None:
        own = self._ranges.tensors.get(tensor.name)
        magnitude = (own.magnitude if own is not None else fallback) or 1.0
        self.known[tensor.name] = magnitude
        if tensor.dtype not in self._floats:
            return
        tensor.set_dynamic_range(-magnitude, magnitude)
        if own is None:
            self.inherited.append(tensor.name)


class _Neighbours:
    """Bounds on tensors that the parser made: a range too narrow would cut their values off wherever TensorRT runs the
    layer in INT8, which it may do with every layer that has no precision of its own.

    - A constant: the largest of its values.
    - The product that a Gemm with a bias becomes, whose sum alone is a tensor of the model: as far as the sum and the
      bias together reach.
    """

    def __init__(self, trt: Any, layers: Sequence[Any], ranges: Ranges) -> None:
        self._trt = trt
        self._floats = _floats(trt)
        self._ranges = ranges
        self._makers = {layer.get_output(i).name: layer for layer in layers for i in range(layer.num_outputs)}
        self._readers: dict[str, list[Any]] = {}
        for layer in layers:
            for tensor in _inputs(layer):
                self._readers.setdefault(tensor.name, []).append(layer)

    def bound(self, layer: Any) -> float:
        """Of the layer's outputs; 0 where nothing is known."""
        if layer.type == self._trt.LayerType.CONSTANT:
            return self._largest(layer)
        if layer.type == self._trt.LayerType.MATRIX_MULTIPLY:
            return max(map(self._term, self._readers.get(layer.get_output(0).name, [])), default=0.0)
        return 0.0

    def _term(self, reader: Any) -> float:
        """How far one term of a sum reaches, the other being constant; 0 for what is no such sum."""
        total = self._ranges.tensors.get(reader.get_output(0).name)
        if total is None or reader.type != self._trt.LayerType.ELEMENTWISE:
            return 0.0
        reader.__class__ = self._trt.IElementWiseLayer  # how the bindings show what only such a layer has
        if reader.op != self._trt.ElementWiseOperation.SUM:
            return 0.0
        return total.magnitude + sum(self._constant(tensor.name) for tensor in _inputs(reader))

    def _constant(self, name: str) -> float:
        """The largest value of a constant, also through what only reshapes it; 0 for what is none."""
        maker = self._makers.get(name)
        if maker is None:
            return 0.0
        if maker.type == self._trt.LayerType.SHUFFLE:
            return self._constant(maker.get_input(0).name)
        return self._largest(maker) if maker.type == self._trt.LayerType.CONSTANT else 0.0

    def _largest(self, layer: Any) -> float:
        if layer.get_output(0).dtype not in self._floats:
            return 0.0
        layer.__class__ = self._trt.IConstantLayer
        values = np.abs(np.asarray(layer.weights, np.float64))
        # Masks hold infinities, or the least number of their type.
        return float(min(values[~np.isnan(values)].max(initial=0.0), np.finfo(np.float32).max))


def _floats(trt: Any) -> tuple[Any, ...]:
    return trt.float32, trt.float16, trt.int8


def _inputs(layer: Any) -> list[Any]:
    found = [layer.get_input(i) for i in range(layer.num_inputs)]
    return [tensor for tensor in found if tensor is not None]
