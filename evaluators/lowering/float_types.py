"""The float type of every node and tensor, which is the plan of the cast pass; and half precision written as float."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from evaluators.lowering.constants import array_of
from evaluators.lowering.int8.nodes import Plan, float_inputs
from evaluators.lowering.placement import HALF_SAFE, Placement
from search.graph.element_types import is_float
from search.graph.grouping import is_constant
from search.graph.model import Group
from search.values import FP16_MAX, Assignment, Precision, Ranges

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
# Ops that hand on one of their inputs, element by element, as it is.
_SELECTS = frozenset({"Where"})


class FloatTypes:
    """Float types of one graph, settled node by node in the order of the graph.

    Args:
        owner: node name → its group.
    """

    def __init__(
        self,
        graph: ir.Graph,
        owner: Mapping[str, Group],
        assignment: Assignment,
        ranges: Ranges,
        placement: Placement,
        plan: Plan,
    ) -> None:
        self._graph = graph
        self._owner = owner
        self._assignment = assignment
        self._ranges = ranges
        self._placement = placement
        self._plan = plan
        self._found: dict[ir.Value, ir.DataType] = {}
        # Read before anything is rewritten, while every float tensor still has its own type.
        self._float_inputs = {node: float_inputs(node) for node in graph.all_nodes()}

    def of(self, value: ir.Value) -> ir.DataType:
        """The float type that a tensor has by now."""
        return self._found.get(value, FLOAT)

    def is_settled(self, value: ir.Value) -> bool:
        """Whether the node that makes a tensor has been given a type."""
        return value in self._found

    def float_inputs(self, node: ir.Node) -> list[int]:
        """Indices of a node's float activations, as they were before anything was rewritten."""
        return self._float_inputs[node]

    def settle(self, node: ir.Node, dtype: ir.DataType) -> None:
        """Give the float outputs of a node the type that it computes in."""
        for output in node.outputs:
            if is_float(output):
                self._found[output] = dtype
                if dtype is HALF:
                    output.type = ir.TensorType(HALF)

    def precision(self, node: ir.Node) -> Precision | None:
        """What the group of a node is assigned; None for one outside all groups."""
        group = self._owner.get(node.name or "")
        return self._assignment[group.id] if group is not None else None

    def choose(self, node: ir.Node) -> ir.DataType:
        """The float type a node computes in (an INT8 op: its float side)."""
        precision = self.precision(node)
        if precision is Precision.FP16:
            return HALF
        if precision is Precision.INT8:
            return HALF if self._placement.half and self._fits_half(self._owner[node.name or ""]) else FLOAT
        if precision is None and node.op_type in HALF_SAFE:
            floats = [value for value in (node.inputs[i] for i in self._float_inputs[node]) if value is not None]
            half = bool(floats) and all(self.of(value) is HALF for value in floats)
            fits = self._in_half_range(value.name or "" for value in node.outputs)
            typed = all(value.dtype is not None for value in node.outputs)  # else its readers could not know
            if typed and fits and (half or self._selects_for_half(node)):
                return HALF
        return FLOAT

    def _selects_for_half(self, node: ir.Node) -> bool:
        """Whether a Where may select among halves because all its readers would round what it gives to half.

        Rounding first gives the same numbers. TensorRT refuses a Cast between the Where of a masked attention and its
        second product ("CHECK(is_softmax(...))").
        """
        if node.op_type not in _SELECTS or node.outputs[0].is_graph_output():
            return False
        uses = list(node.outputs[0].uses())
        if not uses or not all(self._reads_half(user, i) for user, i in uses):
            return False
        constants = [value for value in node.inputs if value is not None and is_constant(value)]
        floats = [array_of(value) for value in constants if value.dtype is FLOAT]
        chosen = [value for value in (node.inputs[i] for i in self._float_inputs[node]) if value is not None]
        fits = all(np.abs(array).max(initial=0.0) <= FP16_MAX for array in floats)
        return fits and self._in_half_range(value.name or "" for value in chosen)

    def _reads_half(self, user: ir.Node, index: int) -> bool:
        if user.graph is not self._graph or (user, index) in self._plan.reads:
            return False
        return self.precision(user) is not None and self.choose(user) is HALF

    def _fits_half(self, group: Group) -> bool:
        return self._in_half_range((*group.inputs, *group.skips, *group.tensors))

    def _in_half_range(self, names: Iterable[str]) -> bool:
        seen = [self._ranges.observed[name] for name in names if name in self._ranges.observed]
        return all(r.magnitude <= FP16_MAX for r in seen)


def spelled_out(model: ir.Model) -> ir.Model:
    """Compute every half tensor of a lowered model in float, and round it by a Cast there and one back.

    ONNX Runtime's CPU provider computes half ops in float too, but drops the casts that it has put around them together
    with those that stand beside them in the graph: `Cast → Conv → Cast` in half then rounds the weights alone.

    Args:
        model: is changed, and returned.
    """
    graph = model.graph
    for value in graph.initializers.values():
        if value.dtype is HALF and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.type = ir.TensorType(FLOAT)
    for node in list(graph):
        for value in node.outputs:
            if value.dtype is HALF:
                _round(graph, node, value)
    return model


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    users = list(value.uses())
    rounded, after = value, node
    if node.op_type != "Cast":
        value.type = ir.TensorType(FLOAT)
        rounded, after = _cast(graph, node, value, HALF, "rounded")
    back, _ = _cast(graph, after, rounded, FLOAT, "back")
    for user, index in users:
        user.replace_input_with(index, back)


def _cast(graph: ir.Graph, after: ir.Node, value: ir.Value, dtype: ir.DataType, what: str) -> tuple[ir.Value, ir.Node]:
    out = ir.Value(name=f"{value.name}/{what}", type=ir.TensorType(dtype), shape=value.shape)
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], outputs=[out], name=f"{value.name}/{what}/cast")
    graph.insert_after(after, node)
    return out, node
