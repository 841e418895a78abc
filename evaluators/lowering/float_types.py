"""The float type of every node and tensor, which is the plan of the cast pass; and narrow floats written as float32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from evaluators.lowering.constants import array_of
from evaluators.lowering.int8.dynamic import DYNAMIC_OPS
from evaluators.lowering.int8.nodes import Plan, float_inputs
from evaluators.lowering.placement import Placement
from search.graph.element_types import is_float
from search.graph.grouping import WEIGHTED, is_constant
from search.graph.model import Group
from search.values import ATTENTION, REFERENCE, Assignment, Precision, Ranges

FLOAT = ir.DataType.FLOAT
_FLOATS = {p: ir.DataType.from_numpy(np.dtype(p.dtype)) for p in Precision if not p.quantized}
_CODES = frozenset({"float8_e4m3fn", "int4", "int8"})
NARROW = frozenset(_FLOATS.values()) - {FLOAT}
_LARGEST = {dtype: precision.largest for precision, dtype in _FLOATS.items()}
# Ops that hand on one of their inputs, element by element, as it is.
_SELECTS = frozenset({"Where"})


def float_type(precision: Precision) -> ir.DataType:
    """The ONNX type of a precision of floats."""
    return _FLOATS[precision]


def why_not_written(precision: Precision, op: str) -> str:
    """Why lowering cannot write an op in a precision, in words that follow its name; empty if it can."""
    if not precision.quantized:
        return ""
    if precision.dtype not in _CODES:
        return f"codes of the type {precision.dtype}: it writes those of {', '.join(sorted(_CODES))}"
    known = WEIGHTED | {ATTENTION} if precision.calibrated else DYNAMIC_OPS
    return "" if op in known else f"codes for the operator {op}: it writes them for {', '.join(sorted(known))}"


def floats_of(precision: Precision, placement: Placement) -> Precision:
    """What a group in a precision computes in where it computes in floats, if that holds its values."""
    if not precision.quantized:
        return precision
    is_dynamic = not precision.calibrated and not precision.blocks
    return REFERENCE if is_dynamic else placement.float_side  # DynamicQuantizeLinear reads float32 alone


def largest_of(dtype: ir.DataType) -> float:
    """The largest finite number of a float type."""
    return _LARGEST[dtype]


def precision_of(dtype: ir.DataType | None) -> Precision | None:
    """The precision of floats that is of an ONNX type; None if none is."""
    return next((precision for precision, known in _FLOATS.items() if known is dtype), None)


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
        self._types: dict[ir.Value, ir.DataType] = {}
        # Read before anything is rewritten, while every float tensor still has its own type.
        self._float_inputs = {node: float_inputs(node) for node in graph.all_nodes()}

    def of(self, value: ir.Value) -> ir.DataType:
        """The float type that a tensor has by now."""
        return self._types.get(value, FLOAT)

    def is_settled(self, value: ir.Value) -> bool:
        """Whether the node that makes a tensor has been given a type."""
        return value in self._types

    def float_inputs(self, node: ir.Node) -> list[int]:
        """Indices of a node's float activations, as they were before anything was rewritten."""
        return self._float_inputs[node]

    def settle(self, node: ir.Node, dtype: ir.DataType) -> None:
        """Give the float outputs of a node the type that it computes in."""
        for output in node.outputs:
            if is_float(output):
                self._types[output] = dtype
                if dtype is not FLOAT:
                    output.type = ir.TensorType(dtype)

    def precision(self, node: ir.Node) -> Precision | None:
        """What the group of a node is assigned; None for one outside all groups."""
        group = self._owner.get(node.name or "")
        return self._assignment[group.id] if group is not None else None

    def choose(self, node: ir.Node) -> ir.DataType:
        """The float type a node computes in (a quantized op: its float side)."""
        precision = self.precision(node)
        if precision is None:
            return self._free_type(node) if node.op_type in self._placement.narrow else FLOAT
        if not precision.quantized:
            return float_type(precision)
        group, side = self._owner[node.name or ""], floats_of(precision, self._placement)
        return float_type(side if self._holds(side, (*group.inputs, *group.skips, *group.tensors)) else REFERENCE)

    def _free_type(self, node: ir.Node) -> ir.DataType:
        """The type of an op outside all groups: that of all that it reads, or that all its readers want, if it fits."""
        types = {self.of(value) for value in self._floats_read(node)}
        shared = types.pop() if len(types) == 1 else FLOAT
        if shared is FLOAT:
            shared = self._type_selected_for(node)
        typed = all(value.dtype is not None for value in node.outputs)  # else its readers could not know
        return shared if typed and self._holds_type(shared, (value.name or "" for value in node.outputs)) else FLOAT

    def _type_selected_for(self, node: ir.Node) -> ir.DataType:
        """The narrow type that a Where may select among because all its readers would round what it gives to it.

        Rounding first gives the same numbers. TensorRT refuses a Cast between the Where of a masked attention and its
        second product ("CHECK(is_softmax(...))").
        """
        if node.op_type not in _SELECTS or node.outputs[0].is_graph_output():
            return FLOAT
        types = {self._type_read(user, i) for user, i in node.outputs[0].uses()}
        if len(types) != 1 or (wanted := types.pop()) is FLOAT:
            return FLOAT
        constants = [value for value in node.inputs if value is not None and is_constant(value)]
        floats = [array_of(value) for value in constants if value.dtype is FLOAT]
        fits = all(np.abs(array).max(initial=0.0) <= largest_of(wanted) for array in floats)
        chosen = (value.name or "" for value in self._floats_read(node))
        return wanted if fits and self._holds_type(wanted, chosen) else FLOAT

    def _type_read(self, user: ir.Node, index: int) -> ir.DataType:
        if user.graph is not self._graph or (user, index) in self._plan.reads or self.precision(user) is None:
            return FLOAT
        return self.choose(user)

    def _floats_read(self, node: ir.Node) -> list[ir.Value]:
        return [value for value in (node.inputs[i] for i in self._float_inputs[node]) if value is not None]

    def _holds(self, precision: Precision, names: Iterable[str]) -> bool:
        return self._holds_type(float_type(precision), names)

    def _holds_type(self, dtype: ir.DataType, names: Iterable[str]) -> bool:
        """Whether no value that was seen of some tensors is beyond the largest number of a type."""
        seen = [self._ranges.observed[name] for name in names if name in self._ranges.observed]
        return all(r.magnitude <= largest_of(dtype) for r in seen)


def spelled_out(model: ir.Model) -> ir.Model:
    """Compute every tensor of a narrow float type in float32, and round it by a Cast there and one back.

    ONNX Runtime's CPU provider computes half ops in float32 too, but drops the casts that it has put around them
    together with those that stand beside them in the graph: `Cast → Conv → Cast` in half then rounds the weights alone.

    Args:
        model: is changed, and returned.
    """
    graph = model.graph
    for value in graph.initializers.values():
        if value.dtype in NARROW and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.type = ir.TensorType(FLOAT)
    for node in list(graph):
        for value in node.outputs:
            if value.dtype in NARROW:
                _round(graph, node, value, value.dtype)
    return model


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value, dtype: ir.DataType) -> None:
    users = list(value.uses())
    rounded, after = value, node
    if node.op_type != "Cast":
        value.type = ir.TensorType(FLOAT)
        rounded, after = _cast(graph, node, value, dtype, "rounded")
    back, _ = _cast(graph, after, rounded, FLOAT, "back")
    for user, index in users:
        user.replace_input_with(index, back)


def _cast(graph: ir.Graph, after: ir.Node, value: ir.Value, dtype: ir.DataType, what: str) -> tuple[ir.Value, ir.Node]:
    out = ir.Value(name=f"{value.name}/{what}", type=ir.TensorType(dtype), shape=value.shape)
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], outputs=[out], name=f"{value.name}/{what}/cast")
    graph.insert_after(after, node)
    return out, node
