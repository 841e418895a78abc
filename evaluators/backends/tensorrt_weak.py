"""Weak typing (TensorRT 8.6 to 10.x): precision set on layers and obeyed, a range on every tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

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
    """A dynamic range on every float input and layer output; one without its own takes that of what feeds it.

    Args:
        tensors: names of the model's own float tensors.

    Returns:
        Those of `tensors` that calibration has no range for; what the parser adds (shuffles, constants) has none by
        nature.
    """
    setter = _RangeSetter(trt, ranges)
    for i in range(network.num_inputs):
        setter.set(network.get_input(i), 1.0)
    for layer in layers_of(network):
        fed = [layer.get_input(i) for i in range(layer.num_inputs)]
        inherited = max((setter.known.get(t.name, 0.0) for t in fed if t is not None), default=0.0)
        for i in range(layer.num_outputs):
            setter.set(layer.get_output(i), inherited or 1.0)
    return [name for name in setter.inherited if name in tensors]


class _RangeSetter:
    def __init__(self, trt: Any, ranges: Ranges) -> None:
        self._floats = (trt.float32, trt.float16, trt.int8)
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
