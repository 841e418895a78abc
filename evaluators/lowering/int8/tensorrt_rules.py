"""Which tensors TensorRT keeps in INT8: what INT8 groups read, and what its kernels round before and between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import onnx_ir as ir

from evaluators.lowering.int8.nodes import RESIDUAL, Plan, float_inputs, name_of, only_user, residual_adds
from search.graph.element_types import is_float
from search.graph.model import Group

# TensorRT computes these activations in the kernel of the convolution before them, whatever comes next.
_CLAMPS = frozenset({"Clip", "LeakyRelu", "Relu"})
_DEPTHWISE_CLAMPS = frozenset({"Clip", "Relu"})
# A convolution that reads at most so many channels computes no other activations in its kernel than those and a SiLU.
_FEW_CHANNELS = 4
_SILU = frozenset({"Mul", "Sigmoid"})
_ARITHMETIC = frozenset({"Add", "BatchNormalization", "Div", "Mul", "Sub"})
# Ops that run in INT8 between INT8 convolutions. It was seen of Add, Mul, Sigmoid, and most pools and moves; the others
# are taken to be like them.
_POINTWISE = frozenset({*_CLAMPS, "Add", "HardSigmoid", "HardSwish", "Mul", "Sigmoid", "Sub", "Tanh"})
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMean"})
_MOVES = frozenset({"Flatten", "Reshape", "Resize", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_BETWEEN = _POINTWISE | _POOLS | _MOVES | {"Concat"}

Nodes = Mapping[str | None, ir.Node]


def quantize_skips(groups: list[Group], nodes: Nodes, result: Plan) -> None:
    """Let the residual Adds of INT8 groups read their other branch in INT8.

    Otherwise TensorRT computes such an Add in a kernel of its own (ResNet-18 takes 0.477 instead of 0.321 ms).
    """
    for group in groups:
        for node in residual_adds(group, nodes):
            result.reads.update((node, i) for i in float_inputs(node) if name_of(node.inputs[i]) in group.skips)


def round_before_activations(groups: list[Group], nodes: Nodes, result: Plan) -> None:
    """The outputs of INT8 convolutions whose activation is in another kernel."""
    for group in groups:
        adds = set(residual_adds(group, nodes))
        for node in (nodes[name] for name in group.anchors if group.op in RESIDUAL):
            inside = {user for user in node.outputs[0].consumers() if user.name in group.nodes}
            if _is_separate(node, inside, adds):
                result.stored.add(node.outputs[0])


def _is_separate(conv: ir.Node, inside: set[ir.Node], adds: set[ir.Node]) -> bool:
    """Whether what follows a convolution inside its group is a kernel that reads INT8.

    On an H200 that was so, of 15 activations behind a convolution of 64 channels, for PRelu alone; behind one that
    reads the three channels of an image, for HardSwish, and not for Relu and a SiLU; and behind depthwise convolutions,
    for all of 10 activations but Relu and a SiLU.
    """
    kinds = {user.op_type for user in inside}
    weight = conv.inputs[1]
    one_each = weight is not None and weight.shape is not None and weight.shape[1] == 1
    depthwise = conv.op_type == "Conv" and one_each and not _reads_few_channels(conv)
    if not inside - adds or kinds <= (_DEPTHWISE_CLAMPS if depthwise else _CLAMPS):
        return False
    if "PRelu" in kinds or (adds and not inside & adds):
        return True
    alone = len(inside) == 1 and kinds <= _ARITHMETIC  # with a constant, which is folded into the convolution
    return (depthwise or _reads_few_channels(conv)) and not adds and not alone and kinds != _SILU


def _reads_few_channels(conv: ir.Node) -> bool:
    read = conv.inputs[0]
    return read is not None and read.shape is not None and read.shape[1] in range(1, _FEW_CHANNELS + 1)


def round_between_groups(groups: list[Group], nodes: Nodes, grouped: Set[str], result: Plan) -> None:
    """What ops outside all groups read in INT8: those that lie between INT8 convolutions and what INT8 groups read.

    Ops that work element by element are one kernel, in which nothing is rounded. It takes in the activation of a
    convolution whose only reader it is, so that it reads what the convolution itself makes: the gate of
    squeeze-and-excitation is such a kernel.

    Args:
        groups: those in INT8.
        nodes: all of the graph by name, in its order.
        grouped: names of the nodes of all groups.
    """
    makers = {name: group for group in groups if group.op in RESIDUAL for name in group.nodes}
    int8: set[ir.Node] = set()
    for node in _leading_to_int8(nodes, grouped, result):
        read = [(i, _maker(node, i)) for i in float_inputs(node)]
        if not all(maker is not None and (maker.name in makers or maker in int8) for _, maker in read):
            continue
        int8.add(node)
        if node.op_type == "Concat":  # its inputs are read with its own scale, in which it is rounded anyway
            continue
        for i, maker in read:
            assert maker is not None
            taken_in = _taken_in(node, maker, makers[maker.name], nodes) if maker.name in makers else set()
            result.stored.update(taken_in)
            if not taken_in and not (maker in int8 and _is_one_kernel(maker, node)):
                result.reads.add((node, i))


def store_outputs(groups: list[Group], every: Sequence[Group], nodes: Nodes, result: Plan) -> None:
    """What INT8 convolutions hand on, where it leads to a group: floats read it rounded too.

    A sum of two convolutions is computed in the kernel of the earlier one, which reads in memory what the later makes.
    That is so only where the earlier has no activation and no other reader: what a block hands past its convolutions
    to its sum lies in memory, and the block's last convolution adds it.

    Args:
        groups: those in INT8.
        every: those in any precision.
    """
    places = {node: place for place, node in enumerate(nodes.values())}
    makers = {group.output: group for group in every if group.op in RESIDUAL}
    leading = _leading_to(nodes, {name for group in every for name in group.anchors})
    inside: set[str] = set()  # what the kernel of a sum does not write to memory
    for group in groups:
        for add in residual_adds(group, nodes):
            skip = next(i for i in float_inputs(add) if name_of(add.inputs[i]) in group.skips)
            other, last = makers.get(name_of(add.inputs[skip])), nodes[group.anchors[-1]]
            if other is None or _maker(add, 1 - skip) is not last:
                continue
            earlier = nodes[other.anchors[-1]]
            if _maker(add, skip) is not earlier or only_user(earlier) is not add or places[earlier] > places[last]:
                continue
            result.reads.discard((add, skip))
            result.reads.add((add, 1 - skip))
            result.stored.add(last.outputs[0])
            inside.add(other.output)
    made = {group.output for group in groups if group.op in RESIDUAL} - inside
    result.stored.update(
        value
        for node in nodes.values()
        for value in node.outputs
        if name_of(value) in made and not value.is_graph_output() and any(u in leading for u in value.consumers())
    )


def _leading_to(nodes: Nodes, anchors: Set[str]) -> set[ir.Node]:
    """Nodes with these names, and all from whose results these are computed."""
    ancestors: set[ir.Node] = set()
    for node in reversed(list(nodes.values())):
        if node.name in anchors or any(user in ancestors for value in node.outputs for user in value.consumers()):
            ancestors.add(node)
    return ancestors


def _leading_to_int8(nodes: Nodes, grouped: Set[str], result: Plan) -> list[ir.Node]:
    """Ops of no group whose results only INT8 groups need, in the order of the graph."""
    feeders: dict[ir.Node, None] = {}
    for node in reversed(list(nodes.values())):
        if node.op_type not in _BETWEEN or node.name in grouped or len(node.outputs) != 1:
            continue
        made = node.outputs[0]
        uses = list(made.uses())
        needed = all((user, i) in result.reads or user in feeders for user, i in uses)
        if uses and needed and float_inputs(node) and not made.is_graph_output() and is_float(made):
            feeders[node] = None
    return list(reversed(feeders))


def _maker(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index]
    return None if value is None else value.producer()


def _is_one_kernel(maker: ir.Node, reader: ir.Node) -> bool:
    return {maker.op_type, reader.op_type} <= _POINTWISE and only_user(maker) is reader


def _taken_in(reader: ir.Node, last: ir.Node, group: Group, nodes: Nodes) -> set[ir.Value]:
    """What a convolution makes before its activation, if the activation is in the kernel of the op that reads it.

    Args:
        last: of the group's nodes behind that convolution.
    """
    several = len(float_inputs(reader)) > 1
    if reader.op_type not in _POINTWISE or not several or only_user(last) is not reader or residual_adds(group, nodes):
        return set()
    made = {conv.outputs[0] for conv in _convs_before(last, group)}
    activation = {user.op_type for value in made for user in value.consumers() if user.name in group.nodes}
    return set() if activation <= _CLAMPS else made


def _convs_before(node: ir.Node, group: Group) -> set[ir.Node]:
    if node.name in group.anchors:
        return {node}
    makers = [_maker(node, i) for i in float_inputs(node)]
    inside = [maker for maker in makers if maker is not None and maker.name in group.nodes]
    return {conv for maker in inside for conv in _convs_before(maker, group)}
