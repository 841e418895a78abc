"""Which tensors of a weakly typed network may be INT8: no layer that computes runs in INT8 if one has no range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from evaluators.backends.tensorrt.api import inputs_of, outputs_of
from search.graph.grouping import Group
from search.values import Assignment, Precision


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
    for layer, owned in reversed(list(layers_with_precisions(layers, groups, assignment))):
        made = names_of(outputs_of(layer))
        if owned is Precision.INT8:
            found |= made
        if owned is Precision.INT8 or (owned is None and made & found):
            found |= names_of(inputs_of(layer))
    return found


def layers_with_precisions(
    layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment
) -> Iterator[tuple[Any, Precision | None]]:
    """Each layer with the precision of its group, if it has one.

    A node of the model may become several layers, of which the first or the last has its name or its tensor.
    """
    by_node = {name: assignment[group.id] for group in groups for name in group.nodes}
    by_tensor = {name: assignment[group.id] for group in groups for name in group.tensors}
    for layer in layers:
        names = names_of(outputs_of(layer))
        yield layer, by_node.get(layer.name) or next((by_tensor[n] for n in names if n in by_tensor), None)


def names_of(tensors: Sequence[Any]) -> set[str]:
    return {tensor.name for tensor in tensors}
