"""Layers that only move or pool values, which may run in INT8 even if their output has no range.

TensorRT 8.6.0 ran a Resize so, and the next layer read its output with a wrong scale: a detector with one head in INT8
lost 72 points of mAP.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from evaluators.backends.tensorrt.api import inputs_of, layer_kinds, outputs_of
from evaluators.backends.tensorrt.weak_typing.ranged_tensors import int8_tensors, layers_with_precisions, names_of
from search.graph.grouping import Group
from search.values import REFERENCE, Assignment, Precision

_MOVES = ("RESIZE", "SHUFFLE", "SLICE", "CONCATENATION", "POOLING", "PADDING", "SQUEEZE", "UNSQUEEZE")


def move_in_float(
    trt: Any, layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment, ranged: Set[str]
) -> set[str]:
    """Give a float precision to layers that only move or pool what may be INT8, if no INT8 group needs the result.

    These are layers of no group or of a float group. They read what an INT8 group reads or computes, or what leads to
    it, or what another of these layers makes; behind the groups, where results have no range yet, they read anything
    that has one. The precision is FP32 behind a group that runs in FP32, else the coarsest of the groups in floats.

    Args:
        layers: in topological order.
        ranged: as `ranged_tensors` gives them.

    Returns:
        Names of the tensors that these layers make. They need ranges too: if the builder ran such a layer in INT8 all
        the same, what reads its result would use a wrong scale.
    """
    floats = [each for each in assignment.values() if not each.quantized]
    narrow = getattr(trt, max(floats, default=REFERENCE).dtype)
    kinds, types = layer_kinds(trt, _MOVES), {getattr(trt, p.dtype, None) for p in Precision if not p.quantized}
    int8 = int8_tensors(layers, groups, assignment)
    wide: set[str] = set()  # tensors that FP32 holds
    moved: set[str] = set()
    for layer, owned in layers_with_precisions(layers, groups, assignment):
        made, read = names_of(outputs_of(layer)), names_of(inputs_of(layer))
        if owned is REFERENCE or (owned is None and read & wide):
            wide |= made
        moves = layer.type in kinds and all(tensor.dtype in types for tensor in outputs_of(layer))
        may_be_int8 = int8 if made <= ranged else ranged
        in_float = owned is None or not owned.quantized
        if moves and in_float and not made & int8 and (read & may_be_int8 or read & moved):
            moved |= made
            _set_precision(layer, trt.float32 if made & wide else narrow)
    return moved


def _set_precision(layer: Any, precision: Any) -> None:
    layer.precision = precision
    for index, tensor in enumerate(outputs_of(layer)):
        if not tensor.is_network_output:
            layer.set_output_type(index, precision)
