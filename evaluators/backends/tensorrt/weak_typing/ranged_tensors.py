"""Which tensors of a weakly typed network have a dynamic range, without which no layer that computes runs in INT8."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from evaluators.backends.tensorrt.api import inputs_of, outputs_of
from search.graph.grouping import Group
from search.values import Assignment, Precision


def ranged_tensors(layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment) -> set[str]:
    """Names of the tensors that groups read and compute, in whatever precision, and of all that lead to these.

    With the flag INT8 TensorRT may run every layer in INT8 that has no precision of its own, if that is fastest and its
    tensors have ranges. Behind the groups this costs accuracy that nobody chose to give up, for example of the boxes
    that a detector computes from its last convolutions, so nothing that is computed there has a range.

    Tensors of float groups need ranges too. With those of INT8 groups alone, TensorRT 8.6.0 on an H100 found no
    implementation for depthwise convolutions in FP16 with a SiLU, and refused 13 of 15 mixes of two networks with such
    convolutions. With ranges on all tensors it built all 15.

    Args:
        layers: in topological order.
    """
    return _tensors_around(layers, groups, assignment, tuple(Precision))


def int8_tensors(layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment) -> set[str]:
    """Names of the tensors that INT8 groups read and compute, and of all that lead to these through layers of no group.

    Args:
        layers: in topological order.
    """
    return _tensors_around(layers, groups, assignment, [each for each in Precision if each.quantized])


def _tensors_around(
    layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment, precisions: Collection[Precision]
) -> set[str]:
    """Names of the tensors around groups that run in any of some precisions, and of all that lead to these."""
    tensor_names: set[str] = set()
    for layer, owned in reversed(list(layers_with_precisions(layers, groups, assignment))):
        made, read = names_of(outputs_of(layer)), names_of(inputs_of(layer))
        if owned in precisions:
            tensor_names |= made | read
        elif owned is None and made & tensor_names:
            tensor_names |= read
    return tensor_names


def layers_with_precisions(
    layers: Sequence[Any], groups: Sequence[Group], assignment: Assignment
) -> Iterator[tuple[Any, Precision | None]]:
    """Each layer with the precision of its group, or with None.

    A node of the model may become several layers. The first or the last of them has its name or its tensor; those in
    between count as layers of no group.
    """
    by_node = {name: assignment[group.id] for group in groups for name in group.nodes}
    by_tensor = {name: assignment[group.id] for group in groups for name in group.tensors}
    for layer in layers:
        names = names_of(outputs_of(layer))
        yield layer, by_node.get(layer.name) or next((by_tensor[n] for n in names if n in by_tensor), None)


def names_of(tensors: Sequence[Any]) -> set[str]:
    return {tensor.name for tensor in tensors}
