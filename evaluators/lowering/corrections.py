"""Applying the corrections of quantized ops to the float constants of a graph, before they are quantized.

Each precision has corrections of its own, since it has another error: on an encoder that is hard for INT8 the
corrections of static INT8 made 0.017 of INT8-DYNAMIC's error of 0.008. A constant that several ops read is copied for
each op that has a correction of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.lowering.constants import Constants, Names, array_of
from evaluators.lowering.placement import Placement
from evaluators.lowering.weights import along, channel_axis, nearest_codes, round_with, symmetric_limits
from search.errors import ModelError
from search.graph.grouping import is_constant
from search.graph.model import Group, Model
from search.values import Assignment, Correction, Ranges, Recovery

Array = NDArray[Any]


@dataclass(frozen=True)
class OpConstants:
    """The places of the constants that a correction of a weighted op changes.

    Attributes:
        node: the op; its weight is input 1.
        channels: of its output.
        bias: node and input index of what is added to each channel, which need not exist yet as an input of `node`;
            None if nothing is added, as behind a MatMul alone.
        beta: what the op multiplies its bias by.
    """

    node: ir.Node
    channels: int
    bias: tuple[ir.Node, int] | None
    beta: float = 1.0

    @property
    def weight(self) -> Array:
        value = self.node.inputs[1]
        assert value is not None
        return array_of(value)

    @property
    def stored_bias(self) -> Array | None:
        """The bias as stored; None if there is none."""
        node, index = self.bias or (self.node, len(self.node.inputs))
        value = node.inputs[index] if index < len(node.inputs) else None
        return None if value is None else array_of(value)


def find_constants(node: ir.Node, members: Collection[str]) -> OpConstants | None:
    """The constants of a weighted op that a correction can change; None if its weight or its bias is computed.

    Args:
        members: names of the nodes of the op's group.
    """
    value = node.inputs[1]
    if value is None or value.const_value is None or not is_constant(value) or is_constant(node.inputs[0]):
        return None
    weight = value.const_value.shape.numpy()
    if node.op_type == "MatMul":
        return OpConstants(node, int(weight[-1]), _added_behind(node, members)) if len(weight) > 1 else None
    channels = _channels(node, [int(size) for size in weight])
    beta = _number(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if beta == 0 or not is_constant(bias) or (bias is not None and bias.const_value is None):
        return None
    return OpConstants(node, channels, (node, 2), beta)


def _channels(node: ir.Node, shape: Sequence[int]) -> int:
    if node.op_type == "ConvTranspose":
        return shape[1] * int(_number(node, "group", 1))
    return shape[0] if node.op_type == "Conv" or _number(node, "transB", 0) else shape[1]


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)


def _added_behind(node: ir.Node, members: Collection[str]) -> tuple[ir.Node, int] | None:
    """The Add of a constant that is all that reads a MatMul, if it is of the group."""
    users = node.outputs[0].consumers()
    if len(users) != 1 or node.outputs[0].is_graph_output():
        return None
    user = users[0]
    if user.op_type != "Add" or user.name not in members:
        return None
    index = 1 if user.inputs[0] is node.outputs[0] else 0
    value = user.inputs[index]
    return (user, index) if value is not None and value.const_value is not None and is_constant(value) else None


def corrections_of(groups: Sequence[Group], assignment: Assignment, recovery: Recovery) -> dict[str, Correction]:
    """The correction of each op in the precision that its group runs in, where it has one."""
    known = {p: recovery.formats.get(p.label, {}) for p in set(assignment.values())}
    int8 = recovery.corrections_in(assignment)
    pairs = ((a, (int8 if (p := assignment[g.id]).recovered else known[p]).get(a)) for g in groups for a in g.anchors)
    return {anchor: correction for anchor, correction in pairs if correction is not None}


def correct_constants(
    graph: ir.Graph, constants: Constants, groups: Sequence[Group], corrections: Mapping[str, Correction]
) -> None:
    """Write scales and offsets of ops into a graph; roundings are left to who quantizes the weight.

    Args:
        graph: is changed; it has the node names of the clean model.
        constants: takes the new constants.
        corrections: as `corrections_of` gives them.

    Raises:
        ModelError: an op has no place for what its correction changes.
    """
    nodes = {node.name: node for node in graph} if corrections else {}
    for name, nodes_of_group in ((a, g.nodes) for g in groups for a in g.anchors if a in corrections):
        op_constants, correction = find_constants(nodes[name], nodes_of_group), corrections[name]
        if op_constants is None:
            raise _refusal(name, "its weight or its bias is no constant")
        if correction.scale is not None:
            weight = scaled_weight(op_constants, correction.scale)
            op_constants.node.replace_input_with(1, constants.add(f"{name}/weight/corrected", weight))
        bias = _corrected_bias(op_constants, correction)
        if bias is not None:
            user, index = op_constants.bias or (op_constants.node, 2)
            user.resize_inputs(max(index + 1, len(user.inputs)))
            user.replace_input_with(index, constants.add(f"{name}/bias/corrected", bias))


def scaled_weight(op_constants: OpConstants, scale: Array) -> Array:
    """The weight of an op, each output channel times its scale, in the type that it has."""
    node, weight = op_constants.node, op_constants.weight
    if node.op_type != "ConvTranspose":
        axis = {"Conv": 0, "MatMul": weight.ndim - 1}.get(node.op_type, 0 if _number(node, "transB", 0) else 1)
        return np.asarray(weight * along(scale, axis, weight.ndim), weight.dtype)
    # (inputs, outputs of one group, …): the outputs of each group of inputs have scales of their own.
    parts = int(_number(node, "group", 1))
    grouped = weight.reshape(parts, weight.shape[0] // parts, *weight.shape[1:])
    factors = scale.reshape(parts, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    return np.asarray(grouped * factors, weight.dtype).reshape(weight.shape)


def _corrected_bias(op_constants: OpConstants, correction: Correction) -> Array | None:
    """Scale times bias plus offset; None if there is nothing to add."""
    scale, offset, stored_bias = correction.scale, correction.offset, op_constants.stored_bias
    if stored_bias is None and offset is None:
        return None
    if op_constants.bias is None:
        raise _refusal(op_constants.node.name or "", "no constant is added behind it, so that it takes no offset")
    bias = np.zeros(op_constants.channels, np.float32) if stored_bias is None else stored_bias
    if scale is not None:
        bias = bias * scale
    if offset is not None:
        bias = bias + offset / np.float32(op_constants.beta)
    return np.asarray(bias, np.float32)


def _refusal(name: str, why: str) -> ModelError:
    return ModelError(
        f"correcting {name!r}: {why}. Its recovery is of another model: leave this op out, or recover again."
    )


def corrected_model(model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> ir.Model:
    """The float graph of an assignment for an engine that quantizes weights by itself, per channel and symmetrically.

    Its rounding to the nearest code finds the wanted codes: a rounded weight is its code times the channel's scale.
    The largest weight of each channel stays as it is, and with it the scale.

    Returns:
        The model's own graph where nothing is to be corrected.

    Raises:
        ModelError: an op has no place for what its correction changes.
    """
    corrections = corrections_of(model.groups, assignment, ranges.recovery)
    if not corrections:
        return model.graph
    copy = model.graph.clone()
    constants = Constants(copy.graph, Names(copy.graph))
    correct_constants(copy.graph, constants, model.groups, corrections)
    for node in copy.graph:
        rounding = corrections[node.name].rounding if node.name in corrections else None
        if rounding is not None:
            _write_codes(node, rounding, placement, constants)
    return copy


def _write_codes(node: ir.Node, rounding: Array, placement: Placement, constants: Constants) -> None:
    value = node.inputs[1]
    assert value is not None
    weight = array_of(value)
    axis = channel_axis(node, weight)
    codes = round_with(nearest_codes(node, weight, placement)[0], rounding, symmetric_limits(placement.weight_bits))
    others = tuple(i for i in range(weight.ndim) if i != axis) if axis is not None else None
    largest = np.abs(weight).max(axis=others, initial=0.0, keepdims=True)
    limit = 2 ** (placement.weight_bits - 1) - 1
    written = np.where(np.abs(weight) == largest, weight, codes * (largest.astype(np.float64) / limit))
    node.replace_input_with(1, constants.add(f"{node.name}/weight/rounded", written.astype(weight.dtype)))
