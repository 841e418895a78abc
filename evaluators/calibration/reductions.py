"""Minimum, maximum, sum and size of tensors, computed inside the graph, and the tensors that have to be finite."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from search.graph.model import Model, values_by_name

_AXES_AS_INPUT = {"ReduceMin": 18, "ReduceMax": 18, "ReduceSum": 13}  # the first opset in which it reads its axes
# What stands in for Inf so that the reduction does not see it.
_NEUTRAL = {"ReduceMin": np.inf, "ReduceMax": -np.inf, "ReduceSum": 0.0}


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


def may_be_nan(model: Model) -> frozenset[str]:
    """Names of tensors in which the model itself looks for NaN, and which no layer reads or makes.

    PyTorch's exporters write attention so: a row of scores that is masked as a whole has NaN for its Softmax, and a
    Where behind IsNaN makes zeros of it. Causal models have such rows where texts are padded on their left.
    """
    read = {value.name or "" for node in model.graph.graph if node.op_type == "IsNaN" for value in node.inputs if value}
    return frozenset(read) - must_be_finite(model)


@dataclass(frozen=True)
class Reductions:
    """Names of a graph's outputs that reduce one tensor; the first three are float32, a number for each row or one.

    Attributes:
        size: the output that counts the elements; None where `elements` is known.
    """

    least: str
    largest: str
    total: str
    size: str | None
    elements: int

    @property
    def outputs(self) -> list[str]:
        return [name for name in (self.least, self.largest, self.total, self.size) if name is not None]


def append_reductions(graph: ir.Model, tensors: Sequence[str], infinite: Collection[str]) -> list[Reductions]:
    """Make the reductions of every tensor the graph's only outputs: minimum, maximum and sum, and size if not known.

    They stand right behind what makes the tensor, so that a run in this order can give its memory back at once. Where
    the shape is known each row is reduced by itself: ONNX Runtime reduces rows on all threads, but a whole on one.

    Args:
        infinite: tensors whose Inf is left out of all but the size; minimum and maximum are Inf and -Inf where nothing
            is left.

    Returns:
        What there is of each tensor.
    """
    values = values_by_name(graph)
    neutral = {op: _scalar(graph, f"bitfront.{op}", number) for op, number in _NEUTRAL.items()} if infinite else {}
    axes = _rows_axes(graph)
    reductions = []
    outputs: list[ir.Value] = []
    for number, name in enumerate(tensors):
        value, before = values[name], values[name].producer()
        nodes = list[ir.Node]()
        elements = _count_elements(value)
        if value.dtype is not ir.DataType.FLOAT:
            value = _add_node(nodes, "Cast", [value], f"bitfront.{number}.Cast", {"to": ir.DataType.FLOAT})
        sources = dict.fromkeys(_NEUTRAL, value)
        if name in infinite:
            bad = _add_node(nodes, "IsInf", [value], f"bitfront.{number}.IsInf")
            for op, other in neutral.items():
                sources[op] = _add_node(nodes, "Where", [bad, other, value], f"bitfront.{number}.{op}.Where")
        made = dict[str, ir.Value]()
        for op, source in sources.items():
            reduced = f"bitfront.{number}.{op}"
            if elements:
                source = _add_node(nodes, "Flatten", [source], f"{reduced}.Flatten", {"axis": 1})
            inputs, attributes = axes[op]
            made[op] = _add_node(
                nodes,
                op,
                [source, *inputs] if elements else [source],
                reduced,
                {"keepdims": 0, **(attributes if elements else {})},
            )
        if not elements:
            made["Size"] = _add_node(nodes, "Size", [value], f"bitfront.{number}.Size")
        outputs += made.values()
        names = [str(output.name) for output in made.values()]
        reductions.append(Reductions(names[0], names[1], names[2], names[3] if not elements else None, elements))
        if before is None:
            graph.graph.extend(nodes)
        else:
            graph.graph.insert_after(before, nodes)
    graph.graph.outputs.clear()
    graph.graph.outputs.extend(outputs)
    return reductions


def _count_elements(value: ir.Value) -> int:
    """Elements of a tensor with rows; 0 where the shape is not known, or there are none."""
    sizes = [size if isinstance(size, int) else 0 for size in value.shape or ()]
    return math.prod(sizes) if sizes else 0


def _rows_axes(graph: ir.Model) -> dict[str, tuple[list[ir.Value], dict[str, list[int]]]]:
    """For each reducing op, the input or the attribute that makes it reduce the second axis alone."""
    version = graph.graph.opset_imports.get("", 0)
    tensor = ir.tensor(np.array([1], np.int64), name="bitfront.axes")
    axes = ir.Value(name=tensor.name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]), const_value=tensor)
    input_by_op = {op: version >= first for op, first in _AXES_AS_INPUT.items()}
    if any(input_by_op.values()):
        graph.graph.register_initializer(axes)
    return {op: ([axes], {}) if is_input else ([], {"axes": [1]}) for op, is_input in input_by_op.items()}


def _add_node(
    nodes: list[ir.Node], op: str, inputs: Sequence[ir.Value], name: str, attributes: Mapping[str, Any] | None = None
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
