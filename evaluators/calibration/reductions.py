"""Minimum, maximum, sum and size of tensors, computed inside the graph, and the tensors that have to be finite."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from search.graph.model import Model

_REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceSum", "Size")
# What stands in for Inf so that the reduction does not see it.
_NEUTRAL = {"ReduceMin": np.inf, "ReduceMax": -np.inf, "ReduceSum": 0.0}


def values_by_name(graph: ir.Model) -> dict[str, ir.Value]:
    """Values of the main graph by name, graph inputs and node outputs, in topological order."""
    inputs = [value for value in graph.graph.inputs if value.name not in graph.graph.initializers]
    outputs = [value for node in graph.graph for value in node.outputs]
    return {value.name: value for value in [*inputs, *outputs] if value.name}


def must_be_finite(model: Model) -> frozenset[str]:
    """Names of tensors that may not hold Inf: inputs and outputs of the model, and what groups read and make.

    Elsewhere Inf is how models mask: attention adds it to its scores, and softmax makes zero of it. The scores are
    made by a group that is pinned, so no INT8 is ever chosen for it; what it makes, and a mask that it adds, is free.
    """
    names = {value.name or "" for value in (*model.graph.graph.inputs, *model.graph.graph.outputs)}
    for group in model.groups:
        names.update(group.inputs)
        if not group.pinned:
            names.update(group.skips, group.tensors)
    return frozenset(names)


def append_reductions(graph: ir.Model, tensors: Sequence[str], infinite: Collection[str]) -> list[str]:
    """Make four scalars of every tensor the graph's only outputs: minimum, maximum, sum and size, as float32 but size.

    They stand right behind what makes the tensor, so that a run in this order can give its memory back at once.

    Args:
        infinite: tensors whose Inf is left out of all but the size; minimum and maximum are Inf and -Inf where nothing
            is left.

    Returns:
        The outputs' names, four in a row per tensor.
    """
    values = values_by_name(graph)
    neutral = {op: _scalar(graph, f"bitfront.{op}", number) for op, number in _NEUTRAL.items()} if infinite else {}
    outputs: list[ir.Value] = []
    for number, name in enumerate(tensors):
        value, before = values[name], values[name].producer()
        nodes = list[ir.Node]()
        if value.dtype is not ir.DataType.FLOAT:
            value = _added(nodes, "Cast", [value], f"bitfront.{number}.Cast", {"to": ir.DataType.FLOAT})
        sources = dict.fromkeys(_REDUCTIONS, value)
        if name in infinite:
            bad = _added(nodes, "IsInf", [value], f"bitfront.{number}.IsInf")
            for op, other in neutral.items():
                sources[op] = _added(nodes, "Where", [bad, other, value], f"bitfront.{number}.{op}.Where")
        for op, source in sources.items():
            outputs.append(
                _added(nodes, op, [source], f"bitfront.{number}.{op}", {} if op == "Size" else {"keepdims": 0})
            )
        if before is None:
            graph.graph.extend(nodes)
        else:
            graph.graph.insert_after(before, nodes)
    graph.graph.outputs.clear()
    graph.graph.outputs.extend(outputs)
    return [str(output.name) for output in outputs]


def _added(
    nodes: list[ir.Node], op: str, inputs: Sequence[ir.Value], name: str, attributes: dict[str, int] | None = None
) -> ir.Value:
    """The output of a new node at the end of `nodes`, named like the node."""
    nodes.append(ir.node(op, inputs, attributes or {}, name=name))
    nodes[-1].outputs[0].name = name
    return nodes[-1].outputs[0]


def _scalar(graph: ir.Model, name: str, number: float) -> ir.Value:
    tensor = ir.tensor(np.float32(number), name=name)
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]), const_value=tensor)
    graph.graph.register_initializer(value)
    return value
