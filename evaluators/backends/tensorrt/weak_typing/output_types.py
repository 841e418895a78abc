"""The types of tensors between layers of one precision, which TensorRT need not find out by trying.

Its builder compiles and times the kernels of every layer for each type and layout that the layer's output may have. For
an activation that is not fused into a convolution it compiles up to 250 kernels, one after the other. In all INT8 of
PP-OCRv4's recognizer (TensorRT 8.6.0, an H200) that took three quarters of the build, and most of these kernels were
for floats, which no INT8 layer reads.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from evaluators.backends.tensorrt.api import inputs_of, layer_kinds, outputs_of
from evaluators.backends.tensorrt.weak_typing.precisions import WEIGHTED_KINDS
from evaluators.backends.tensorrt.weak_typing.ranged_tensors import layers_with_precisions
from search.graph.grouping import Group
from search.values import Assignment, Precision

_CONVOLUTIONS = ("CONVOLUTION", "DECONVOLUTION")
_TYPED = (*_CONVOLUTIONS, "ACTIVATION", "ELEMENTWISE")
# What these read is in memory, also where kernels are fused, so that its type rounds nothing more.
_READING = (*_CONVOLUTIONS, "CONCATENATION", "POOLING", "RESIZE")

_Around = frozenset[Precision | None]


def fix_output_types(
    trt: Any, layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment, ranged: Set[str]
) -> None:
    """Give outputs the type of their precision where all weighted layers before and behind them run in that one.

    The builder chooses all other types: between different precisions, behind the last group, before the first, and of
    tensors that fused kernels need not write to memory. INT8 needs a range.

    All terms of a sum count, as TensorRT may fuse the sum into either convolution: 8.6.0 on an H200 refused all six
    mixes of ResNet-18 in which the sum of an INT8 convolution and a float one of the skip connection was to be INT8.

    Args:
        layers: in topological order.
        ranged: as `ranged_tensors` gives them.
    """
    owned = [precision for _, precision in layers_with_precisions(layers, groups, assignment)]
    before, behind = _precisions_before(trt, layers, owned), _precisions_behind(layers, owned)
    typed, reading = layer_kinds(trt, _TYPED), layer_kinds(trt, _READING)
    kept = {tensor.name for layer in layers if layer.type in reading for tensor in inputs_of(layer)}
    for layer, precisions in zip(layers, before, strict=True):
        tensor = layer.get_output(0)
        around = precisions | behind.get(tensor.name, frozenset({None}))
        precision = next(iter(around), None)
        if layer.type not in typed or tensor.name not in kept or len(around) > 1 or precision is None:
            continue
        if tensor.dtype == trt.float32 and (tensor.name in ranged or not precision.quantized):
            layer.set_output_type(0, getattr(trt, precision.dtype))


def _precisions_before(trt: Any, layers: Sequence[Any], owned: Sequence[Precision | None]) -> list[_Around]:
    """For each layer, the precisions of the nearest weighted layers before it, or its own; None for an input."""
    weighted = layer_kinds(trt, WEIGHTED_KINDS)
    made: dict[str, _Around] = {}
    precisions: list[_Around] = []
    for layer, own in zip(layers, owned, strict=True):
        if own is not None and layer.type in weighted:
            here: _Around = frozenset({own})
        elif layer.type == trt.LayerType.CONSTANT:
            here = frozenset()
        else:
            here = frozenset().union(*(made.get(tensor.name, frozenset({None})) for tensor in inputs_of(layer)))
        precisions.append(here)
        made.update(dict.fromkeys((tensor.name for tensor in outputs_of(layer)), here))
    return precisions


def _precisions_behind(layers: Sequence[Any], owned: Sequence[Precision | None]) -> dict[str, _Around]:
    """For each tensor, the precisions of the groups that it reaches first; None where it reaches an output."""
    precisions: dict[str, _Around] = {}
    for layer, own in reversed(list(zip(layers, owned, strict=True))):
        made = outputs_of(layer)
        reached = (precisions.get(tensor.name, frozenset({None})) for tensor in made)
        here: _Around = frozenset().union(*reached) if own is None else frozenset({own})
        for tensor in made:
            if tensor.is_network_output:
                precisions[tensor.name] = precisions.get(tensor.name, frozenset()) | {None}
        for tensor in inputs_of(layer):
            precisions[tensor.name] = precisions.get(tensor.name, frozenset()) | here
    return precisions
