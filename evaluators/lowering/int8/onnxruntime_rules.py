"""Which tensors are INT8 on ONNX Runtime: what lies between Q/DQ has to match what its optimizer looks for."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from evaluators.lowering.int8.nodes import Plan, affine_of, float_inputs, hard_sigmoid, only_user, residual_adds
from evaluators.lowering.placement import SAME_SCALE, Placement
from search.graph.grouping import is_constant
from search.graph.model import Group

# What ONNX Runtime fuses with a float op before it looks for INT8 ones; and Clips, behind which it wants a Q, as behind
# a Relu.
_FUSED_WITH = {
    "Gemm": frozenset(
        "Clip Elu HardSigmoid LeakyRelu Relu Selu Sigmoid Softplus Softsign Tanh ThresholdedRelu".split()
    ),
    "MatMul": frozenset({"Clip", "Relu"}),
}


def quantize_regions(
    graph: ir.Graph,
    groups: list[Group],
    nodes: Mapping[str | None, ir.Node],
    placement: Placement,
    result: Plan,
) -> None:
    """`DQ → op → Q` for INT8 convolutions, their residual Adds, and followers that lie between INT8 tensors."""
    for group in groups:
        anchors = [nodes[name] for name in group.anchors]
        for node in anchors:
            if node.op_type not in placement.float_output:
                result.stored.add(_handed_on(node, group, placement))
            elif (last := _last_before_fused(node)) is not None:
                result.stored.add(_handed_on(last, group, placement))
        for node in residual_adds(group, nodes):
            result.reads.update((node, i) for i in float_inputs(node))
            result.stored.add(_handed_on(node, group, placement))
    weighted = [nodes[name] for group in groups for name in group.anchors]
    candidates = _candidates(graph, placement, result, weighted)
    for node in reversed(candidates):
        if any((user, i) in result.reads for user, i in node.outputs[0].uses()):
            result.reads.update((node, i) for i in float_inputs(node))
            result.stored.add(node.outputs[0])
            if node.op_type == "HardSigmoid":
                result.sums[node.outputs[0]] = 1 / hard_sigmoid(node)[0]
    _store_float_outputs(groups, nodes, placement, result)
    if not placement.symmetric:
        _take_affines(graph, result)


def _take_affines(graph: ir.Graph, result: Plan) -> None:
    """A number that is added to or multiplied with what is then quantized becomes a part of scale and zero point.

    Behind a HardSwish, and behind an input of the model: elsewhere it may be a part of what ONNX Runtime fuses.
    """
    for node in graph:
        affine, made = affine_of(node), node.outputs[0]
        uses = list(made.uses())
        is_read = bool(uses) and not made.is_graph_output() and all(use in result.reads for use in uses)
        if affine is None or not (is_read or made in result.stored):
            continue
        source, factor, offset = affine
        maker = source.producer()
        if maker is not None and (maker.op_type == "HardSwish" or source in result.affine):
            if only_user(maker) is not node:
                continue  # it has codes of its own
            source, before, shift = result.affine.pop(source, (source, 1.0, 0.0))
            factor, offset = factor * before, factor * shift + offset
            result.stored.difference_update(maker.outputs)
            result.reads.difference_update((node, i) for i in float_inputs(node))
        elif not source.is_graph_input():
            continue
        result.affine[made] = (source, factor, offset)


def _last_before_fused(node: ir.Node) -> ir.Node | None:
    """Behind which of a Gemm or MatMul and its Add a Q has to be, for ONNX Runtime to run it in INT8; None for none.

    It makes one float op of Gemm and activation, of MatMul and Relu, before it looks for INT8 ones.
    """
    added = _added_in_gemm(node)
    if added is not None and not _has_constant(added):
        return node  # else it becomes a Gemm with a float bias, which has no INT8 kernel
    last = added or node
    followers = _FUSED_WITH.get("Gemm" if added is not None else node.op_type, frozenset())
    user = only_user(last)
    return last if user is not None and user.op_type in followers else None


def _added_in_gemm(node: ir.Node) -> ir.Node | None:
    """The Add of which, with a MatMul of matrices, ONNX Runtime makes a Gemm; None if it does not."""
    user, made = only_user(node), node.outputs[0].shape
    if node.op_type != "MatMul" or user is None or user.op_type != "Add" or made is None or len(made) != 2:
        return None
    others = [value for value in user.inputs if value is not node.outputs[0]]
    shapes = [value.shape for value in others if value is not None and value.shape is not None]
    return user if all(0 < len(shape) <= 2 and shape[-1] == made[-1] for shape in shapes) else None


def _has_constant(node: ir.Node) -> bool:
    return any(map(is_constant, node.inputs))


def becomes_int8(node: ir.Node, result: Plan) -> bool:
    """Whether ONNX Runtime would quantize a float Conv or Gemm by itself: nothing before a Q but Relu, Clip, moves, and
    constants that it takes into a convolution's weights. A MatMul of matrices and its Add are a Gemm to it."""
    if node.op_type == "MatMul":
        added = _added_in_gemm(node)
        if added is None or not _has_constant(added):
            return False
        node = added
    value = node.outputs[0]
    while True:
        uses = list(value.uses())
        if value.is_graph_output() or not uses:
            return False
        if all(use in result.reads for use in uses):
            return True
        user = uses[0].node
        passes = user.op_type in {"Relu", "Clip", *SAME_SCALE} or user.outputs[0] in result.affine
        if len(uses) > 1 or not (passes or _is_folded(user, node)):
            return False
        value = user.outputs[0]


def _is_folded(node: ir.Node, conv: ir.Node) -> bool:
    """Whether ONNX Runtime may take constants that the node applies into the weights of a convolution before it."""
    folds = conv.op_type == "Conv" and node.op_type in {"Add", "BatchNormalization", "Mul"}
    return folds and len(float_inputs(node)) == 1


def _candidates(graph: ir.Graph, placement: Placement, result: Plan, weighted: list[ir.Node]) -> list[ir.Node]:
    """Followers all of whose inputs would come quantized."""
    native = set(result.stored)
    followers = []
    done = {node for node, _ in result.reads} | set(weighted)
    for node in graph:
        inputs = [node.inputs[i] for i in float_inputs(node)]
        follows = node.op_type in placement.followers and node not in done and _keeps_scale(node, placement)
        if follows and inputs and all(value in native for value in inputs) and len(node.outputs) == 1:
            native.add(node.outputs[0])
            followers.append(node)
    return followers


def _keeps_scale(node: ir.Node, placement: Placement) -> bool:
    """Whether INT8 passes through a node as it is.

    A Resize that interpolates, or fills up with a number, makes new values; a binary op with a constant of several
    numbers would need them quantized too. A HardSigmoid becomes a sum with a positive number, clipped by a range that
    begins at zero, and a HardSwish the product with such a sum.
    """
    if node.op_type in ("HardSigmoid", "HardSwish"):
        return not placement.symmetric and all(number > 0 for number in hard_sigmoid(node))
    if node.op_type == "Resize":
        mode, placed = (node.attributes.get(name) for name in ("mode", "coordinate_transformation_mode"))
        fills = placed is not None and placed.as_string() == "tf_crop_and_resize"
        return not fills and (mode is None or mode.as_string() == "nearest")
    if node.op_type not in ("Add", "Mul") or len(float_inputs(node)) == 2:
        return True
    return not placement.symmetric and affine_of(node) is not None


def _store_float_outputs(
    groups: list[Group], nodes: Mapping[str | None, ir.Node], placement: Placement, result: Plan
) -> None:
    """A Gemm or MatMul followed directly by INT8 readers hands its result on quantized."""
    for group in groups:
        for name in group.anchors:
            node = nodes[name]
            value = _handed_on(_added_in_gemm(node) or node, group, placement)
            uses = value.uses()
            if node.op_type in placement.float_output and any(use in result.reads for use in uses):
                result.stored.add(value)


def _handed_on(node: ir.Node, group: Group, placement: Placement) -> ir.Value:
    """What of an INT8 op is stored quantized: behind its clamp, which an asymmetric range replaces; else its output."""
    return node.outputs[0] if placement.symmetric else _behind_clamp(node, group)


def _behind_clamp(node: ir.Node, group: Group) -> ir.Value:
    """The output of a Relu or Clip right behind `node` in its group, whose limits the quantized range replaces."""
    value = node.outputs[0]
    users = value.consumers()
    if value.is_graph_output() or len(users) != 1 or users[0].name not in group.nodes:
        return value
    return users[0].outputs[0] if _is_clamp(users[0]) else value


def _is_clamp(node: ir.Node) -> bool:
    """Whether a quantized range does what the node does: it ends at zero, exactly; other ends are rounded."""
    if node.op_type == "Relu":
        return True
    limits = node.inputs[1:]
    if node.op_type != "Clip" or not all(is_constant(limit) for limit in limits):
        return False
    numbers = [None if v is None or v.const_value is None else float(v.const_value.numpy()) for v in limits]
    low, high = [*numbers, None, None][:2]
    return low == 0 and (high is None or high >= 0)
