"""Which tensors of a weakly typed network may be INT8.

A layer that computes cannot run in INT8 if one of its tensors has no range. A layer that only moves values can:
TensorRT 8.6.0 ran a Resize in INT8 although its output had no range, and the next layer read that output with a wrong
scale. A detector with one head in INT8 lost 72 points of mAP in the other head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from evaluators.backends.tensorrt.api import inputs_of, layer_kinds, outputs_of
from search.graph.grouping import Group
from search.values import Assignment, Precision

_MOVES = ("RESIZE", "SHUFFLE", "SLICE", "CONCATENATION", "POOLING", "PADDING", "SQUEEZE", "UNSQUEEZE")


def int8_tensors(layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment) -> set[str]:
    """Names of the tensors that INT8 groups read and compute, and of those from which others are made for them to read.

    With the flag INT8 TensorRT may run every layer in it that has no precision of its own, if that is fastest and its
    tensors have ranges. Where no INT8 group reads the result, this can cost accuracy that nobody chose to give up, for
    example of the boxes that a detector computes behind its last convolution. Every tensor that an INT8 group computes
    keeps its range, even if no layer reads it in INT8: without that range, TensorRT 8.6.0 builds no convolution
    with its SiLU or its residual Add.

    Args:
        layers: in topological order.
    """
    found: set[str] = set()
    for layer, owned in reversed(list(_with_precisions(layers, groups, assignment))):
        made = _names(outputs_of(layer))
        if owned is Precision.INT8:
            found |= made
        if owned is Precision.INT8 or (owned is None and made & found):
            found |= _names(inputs_of(layer))
    return found


def move_in_float(
    trt: Any, layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment, int8: Collection[str]
) -> set[str]:
    """Give a float precision to layers that only move or pool what is INT8, and whose result no INT8 group reads.

    It is FP32 behind a group that runs in FP32, or where no group runs in FP16.

    Args:
        layers: in topological order.
        int8: as `int8_tensors` gives them.

    Returns:
        Names of the tensors that these layers make. They need ranges too: a layer that took no notice of its precision
        would read with a wrong scale otherwise.
    """
    half = trt.float16 if Precision.FP16 in assignment.values() else trt.float32
    kinds = layer_kinds(trt, _MOVES)
    wide: set[str] = set()  # tensors that FP32 holds
    moved: set[str] = set()
    for layer, owned in _with_precisions(layers, groups, assignment):
        made, read = _names(outputs_of(layer)), _names(inputs_of(layer))
        if owned is Precision.FP32 or (owned is None and read & wide):
            wide |= made
        floats = all(tensor.dtype in (trt.float32, trt.float16) for tensor in outputs_of(layer))
        if layer.type not in kinds or owned is Precision.INT8 or not floats:
            continue
        if made & set(int8) or not read & {*int8, *moved}:
            continue
        moved |= made
        layer.precision = trt.float32 if made & wide else half
        for index, tensor in enumerate(outputs_of(layer)):
            if not tensor.is_network_output:
                layer.set_output_type(index, layer.precision)
    return moved


def _with_precisions(
    layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment
) -> Iterator[tuple[Any, Precision | None]]:
    """Each layer with the precision of its group, if it has one.

    A node of the model may become several layers, of which the first or the last has its name or its tensor.
    """
    by_node = {name: assignment[group.id] for group in groups for name in group.nodes}
    by_tensor = {name: assignment[group.id] for group in groups for name in group.tensors}
    for layer in layers:
        names = _names(outputs_of(layer))
        yield layer, by_node.get(layer.name) or next((by_tensor[n] for n in names if n in by_tensor), None)


def _names(tensors: Sequence[Any]) -> set[str]:
    return {tensor.name for tensor in tensors}
