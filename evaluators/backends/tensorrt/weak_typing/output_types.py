"""The types of tensors between layers of one precision, which TensorRT need not find out by trying.

Its builder compiles and times the kernels of every layer for each type and layout that the layer's output may have. For
an activation that no convolution computes along it compiles up to 250 kernels, one after the other: in all INT8 of
PP-OCRv4's recognizer (TensorRT 8.6.0, an H200) three quarters of the build, more than half of it for floats that no
INT8 layer would read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
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

Around = frozenset[Precision | None]


def fix_output_types(
    trt: Any, layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment, ranged: Set[str]
) -> None:
    """Give outputs the type of their precision where all weighted layers before and behind them run in that one.

    Between other precisions, behind the last group and before the first the builder chooses, as it does for what a
    kernel may keep to itself. INT8 needs a range.

    What is added counts too, as TensorRT may compute the sum in either convolution: 8.6.0 on an H200 refused all six
    mixes of ResNet-18 in which the sum of an INT8 convolution and a float one on the way around it had the type INT8.

    Args:
        layers: in topological order.
        ranged: as `ranged_tensors` gives them.
    """
    owned = dict(enumerate(precision for _, precision in layers_with_precisions(layers, groups, assignment)))
    before, behind = _precisions_before(trt, layers, owned), _precisions_behind(layers, owned)
    typed, reading = layer_kinds(trt, _TYPED), layer_kinds(trt, _READING)
    kept = {tensor.name for layer in layers if layer.type in reading for tensor in inputs_of(layer)}
    for index, layer in enumerate(layers):
        tensor = layer.get_output(0)
        around = before[index] | behind.get(tensor.name, frozenset({None}))
        precision = next(iter(around), None)
        if layer.type not in typed or tensor.name not in kept or len(around) > 1 or precision is None:
            continue
        if tensor.dtype == trt.float32 and (tensor.name in ranged or not precision.quantized):
            layer.set_output_type(0, getattr(trt, precision.dtype))


def _precisions_before(trt: Any, layers: Sequence[Any], owned: Mapping[int, Precision | None]) -> list[Around]:
    """Of every layer: the precisions of the nearest weighted layers before it, or its own; None for an input."""
    weighted = layer_kinds(trt, WEIGHTED_KINDS)
    made: dict[str, Around] = {}
    found: list[Around] = []
    for index, layer in enumerate(layers):
        own = owned[index]
        if own is not None and layer.type in weighted:
            here: Around = frozenset({own})
        elif layer.type == trt.LayerType.CONSTANT:
            here = frozenset()
        else:
            here = frozenset().union(*(made.get(tensor.name, frozenset({None})) for tensor in inputs_of(layer)))
        found.append(here)
        made.update(dict.fromkeys((tensor.name for tensor in outputs_of(layer)), here))
    return found


def _precisions_behind(layers: Sequence[Any], owned: Mapping[int, Precision | None]) -> dict[str, Around]:
    """Of every tensor: the precisions of the groups that it reaches first; None where it reaches an output."""
    found: dict[str, Around] = {}
    for index, layer in reversed(list(enumerate(layers))):
        own, made = owned[index], outputs_of(layer)
        reached = (found.get(tensor.name, frozenset({None})) for tensor in made)
        here: Around = frozenset().union(*reached) if own is None else frozenset({own})
        for tensor in made:
            if tensor.is_network_output:
                found[tensor.name] = found.get(tensor.name, frozenset()) | {None}
        for tensor in inputs_of(layer):
            found[tensor.name] = found.get(tensor.name, frozenset()) | here
    return found
