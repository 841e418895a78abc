"""Which tensors of an assignment become INT8, and whose range gives the scale of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from evaluators.lowering.placement import SAME_SCALE, Placement
from search.graph.grouping import is_constant
from search.graph.model import Group, Model
from search.values import Assignment, Precision, Ranges

# Activations that TensorRT computes in the kernel of a convolution, whatever follows them.
_CLAMPS = frozenset({"Clip", "LeakyRelu", "Relu"})
# What ONNX Runtime fuses with a float op before it looks for INT8 ones; and Clips, behind which it wants a Q, as behind
# a Relu.
_FUSED_WITH = {
    "Gemm": frozenset(
        "Clip Elu HardSigmoid LeakyRelu Relu Selu Sigmoid Softplus Softsign Tanh ThresholdedRelu".split()
    ),
    "MatMul": frozenset({"Clip", "Relu"}),
}
RESIDUAL = frozenset({"Conv", "ConvTranspose"})  # whose kernels add the other branch before they round
# Channels up to which TensorRT's kernels of the first convolution compute no activation but clamps and a SiLU.
_FEW_CHANNELS = 4
_SILU = frozenset({"Mul", "Sigmoid"})
_ARITHMETIC = frozenset({"Add", "BatchNormalization", "Div", "Mul", "Sub"})


@dataclass
class Plan:
    """Which tensors of one assignment are INT8.

    Attributes:
        reads: (node, input index) that read the quantized form of their input.
        stored: values that exist only quantized: everyone who reads them reads a DQ.
        scale_of: value → the value whose range gives its scale.
    """

    reads: set[tuple[ir.Node, int]] = field(default_factory=set)
    stored: set[ir.Value] = field(default_factory=set)
    scale_of: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def root(self, value: ir.Value) -> ir.Value:
        while value in self.scale_of:
            value = self.scale_of[value]
        return value


def plan(graph: ir.Graph, model: Model, assignment: Assignment, placement: Placement) -> Plan:
    """Decide which tensors of `graph` (a clone of the model's, same node names) are INT8."""
    nodes = {node.name: node for node in graph}
    result = Plan()
    groups = [group for group in model.groups if assignment[group.id] is Precision.INT8]
    for group in groups:
        for name in group.anchors:
            result.reads.update((nodes[name], i) for i in activation_indices(nodes[name]))
    if placement.quantize_outputs:
        _quantize_regions(graph, groups, nodes, placement, result)
    else:
        _quantize_skips(groups, nodes, result)
        if placement.before_activations:
            _store_before_activations(groups, nodes, result)
    _share_scales(graph, placement, result)
    return result


def quantized_tensors(model: Model, assignment: Assignment, placement: Placement) -> frozenset[str]:
    """Names of the tensors that some op reads as INT8 codes when an assignment is lowered for a target."""
    found = plan(model.graph.graph, model, assignment, placement)
    read = [node.inputs[index] for node, index in found.reads]
    return frozenset(_name(value) for value in (*read, *found.stored))


def with_shared_scales(model: Model, assignment: Assignment, placement: Placement, ranges: Ranges) -> Ranges:
    """The ranges, but that tensors of one scale have the range that the scale is of, as the lowered assignment has it.

    What an engine's builder is told of an input of a Concat is then no other range than that of the Concat. Ranges that
    a user set stay, except that of what a Resize makes: it has to be the range of what the Resize reads.
    """
    planned = plan(model.graph.graph, model, assignment, placement)
    owners = {_name(value): _name(_told_owner(value, planned, ranges)) for value in planned.scale_of}
    known = ranges.tensors
    shared = {name: known[owner] for name, owner in owners.items() if owner in known}
    return replace(ranges, tensors={**known, **shared})


def _told_owner(value: ir.Value, planned: Plan, ranges: Ranges) -> ir.Value:
    """The value whose range a builder is told for this one."""
    while value in planned.scale_of and (_name(value) not in ranges.fixed or _resized(value) is not None):
        value = planned.scale_of[value]
    return value


def _resized(value: ir.Value) -> ir.Value | None:
    """What a Resize makes a value of; None for a value that no Resize makes."""
    maker = value.producer()
    return maker.inputs[0] if maker is not None and maker.op_type == "Resize" else None


def activation_indices(anchor: ir.Node) -> list[int]:
    """Which of the two factors of a weighted op are activations."""
    return [i for i, value in enumerate(anchor.inputs[:2]) if not is_constant(value)]


def float_inputs(node: ir.Node) -> list[int]:
    """Indices of a node's float activations."""
    return [
        i for i, v in enumerate(node.inputs) if v is not None and not is_constant(v) and v.dtype is ir.DataType.FLOAT
    ]


def _quantize_skips(groups: list[Group], nodes: Mapping[str | None, ir.Node], result: Plan) -> None:
    """Else a residual Add behind an INT8 convolution is a kernel of its own (ResNet-18: 0.477 against 0.321 ms)."""
    for group in groups:
        for node in _residual_adds(group, nodes):
            result.reads.update((node, i) for i in float_inputs(node) if _name(node.inputs[i]) in group.skips)


def _store_before_activations(groups: list[Group], nodes: Mapping[str | None, ir.Node], result: Plan) -> None:
    """The outputs of INT8 convolutions whose activation is in another kernel."""
    for group in groups:
        adds = set(_residual_adds(group, nodes))
        for node in (nodes[name] for name in group.anchors if group.op in RESIDUAL):
            inside = {user for user in node.outputs[0].consumers() if user.name in group.nodes}
            if _is_separate(node, inside, adds):
                result.stored.add(node.outputs[0])


def _is_separate(conv: ir.Node, inside: set[ir.Node], adds: set[ir.Node]) -> bool:
    """Whether what follows a convolution inside its group is a kernel that reads INT8.

    On an H200 that was so, of 15 activations behind a convolution of 64 channels, for PRelu alone; behind one that
    reads the three channels of an image, it was so for HardSwish, and not for Relu and a SiLU.
    """
    kinds = {user.op_type for user in inside}
    if not inside - adds or kinds <= _CLAMPS:
        return False
    if "PRelu" in kinds or (adds and not inside & adds):
        return True
    read = conv.inputs[0]
    few = read is not None and read.shape is not None and read.shape[1] in range(1, _FEW_CHANNELS + 1)
    alone = len(inside) == 1 and kinds <= _ARITHMETIC  # with a constant, which is folded into the convolution
    return few and not adds and not alone and kinds != _SILU


def _residual_adds(group: Group, nodes: Mapping[str | None, ir.Node]) -> list[ir.Node]:
    """The Adds that an INT8 group computes in INT8: a matrix product hands on floats, and so keeps its Add exact."""
    if group.op not in RESIDUAL:
        return []
    members = [nodes[name] for name in group.nodes]
    return [node for node in members if node.op_type == "Add" and any(_name(v) in group.skips for v in node.inputs)]


def _quantize_regions(
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
        for node in _residual_adds(group, nodes):
            result.reads.update((node, i) for i in float_inputs(node))
            result.stored.add(_handed_on(node, group, placement))
    weighted = [nodes[name] for group in groups for name in group.anchors]
    candidates = _candidates(graph, placement, result, weighted)
    for node in reversed(candidates):
        if any((user, i) in result.reads for user, i in node.outputs[0].uses()):
            result.reads.update((node, i) for i in float_inputs(node))
            result.stored.add(node.outputs[0])
    _store_float_outputs(groups, nodes, placement, result)


def _last_before_fused(node: ir.Node) -> ir.Node | None:
    """Behind which of a Gemm or MatMul and its Add a Q has to be, for ONNX Runtime to run it in INT8; None for none.

    It makes one float op of Gemm and activation, of MatMul and Relu, before it looks for INT8 ones.
    """
    added = _added_in_gemm(node)
    if added is not None and not _has_constant(added):
        return node  # else it becomes a Gemm with a float bias, which has no INT8 kernel
    last = added or node
    followers = _FUSED_WITH.get("Gemm" if added is not None else node.op_type, frozenset())
    user = _only_user(last)
    return last if user is not None and user.op_type in followers else None


def _added_in_gemm(node: ir.Node) -> ir.Node | None:
    """The Add of which, with a MatMul of matrices, ONNX Runtime makes a Gemm; None if it does not."""
    user, made = _only_user(node), node.outputs[0].shape
    if node.op_type != "MatMul" or user is None or user.op_type != "Add" or made is None or len(made) != 2:
        return None
    others = [value for value in user.inputs if value is not node.outputs[0]]
    shapes = [value.shape for value in others if value is not None and value.shape is not None]
    return user if all(0 < len(shape) <= 2 and shape[-1] == made[-1] for shape in shapes) else None


def _has_constant(node: ir.Node) -> bool:
    return any(map(is_constant, node.inputs))


def _only_user(node: ir.Node) -> ir.Node | None:
    users = node.outputs[0].consumers()
    return users[0] if len(users) == 1 and not node.outputs[0].is_graph_output() else None


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
        if len(uses) > 1 or not (user.op_type in {"Relu", "Clip", *SAME_SCALE} or _is_folded(user, node)):
            return False
        value = user.outputs[0]


def _is_folded(node: ir.Node, conv: ir.Node) -> bool:
    """Whether ONNX Runtime may take constants that the node applies into the weights of a convolution before it."""
    folds = conv.op_type == "Conv" and node.op_type in {"Add", "BatchNormalization", "Mul"}
    return folds and len(float_inputs(node)) == 1


def _candidates(graph: ir.Graph, placement: Placement, result: Plan, weighted: list[ir.Node]) -> list[ir.Node]:
    """Followers all of whose inputs would come quantized."""
    native = set(result.stored)
    found = []
    done = {node for node, _ in result.reads} | set(weighted)
    for node in graph:
        inputs = [node.inputs[i] for i in float_inputs(node)]
        follows = node.op_type in placement.followers and node not in done and _keeps_scale(node)
        if follows and inputs and all(value in native for value in inputs) and len(node.outputs) == 1:
            native.add(node.outputs[0])
            found.append(node)
    return found


def _keeps_scale(node: ir.Node) -> bool:
    """Whether INT8 passes through a node as it is.

    A Resize that interpolates, or fills up with a number, makes new values; a binary op with a constant would need it
    quantized too.
    """
    if node.op_type == "Resize":
        mode, placed = (node.attributes.get(name) for name in ("mode", "coordinate_transformation_mode"))
        fills = placed is not None and placed.as_string() == "tf_crop_and_resize"
        return not fills and (mode is None or mode.as_string() == "nearest")
    return node.op_type not in ("Add", "Mul") or len(float_inputs(node)) == 2


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


def _share_scales(graph: ir.Graph, placement: Placement, result: Plan) -> None:
    for node in graph:
        made = node.outputs[0]
        if node.op_type in SAME_SCALE and made in result.stored:
            source = node.inputs[0]
            if source is not None and result.root(source) is not made:
                result.scale_of[made] = source
        if placement.shared_resize and (source := _resized(made)) is not None:
            result.scale_of[made] = source
        if node.op_type == "Concat" and placement.shared_concat and _read_quantized(made, result):
            for i in float_inputs(node):
                source = node.inputs[i]
                while placement.shared_resize and source is not None and _resized(source) is not None:
                    source = _resized(source)
                if source is not None:
                    result.scale_of.setdefault(source, made)


def _read_quantized(value: ir.Value, result: Plan) -> bool:
    return any((user, i) in result.reads for user, i in value.uses())


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
