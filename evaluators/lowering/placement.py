"""Where a target needs Q/DQ, and which tensors of an assignment become INT8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx_ir as ir

from search.graph.grouping import is_constant
from search.graph.model import Group, Model
from search.values import Assignment, Precision, Ranges

# Ops that only move or select values: output and input share one scale, so that engines can drop the pair.
SAME_SCALE = frozenset(
    {"DepthToSpace", "Flatten", "MaxPool", "Reshape", "Resize", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"}
)
# Ops whose further inputs stay what they are, say the scales of a Resize.
DATA_ONLY = frozenset({"Resize", "Upsample"})
# Ops outside all groups that lose nothing in float16 when their inputs and outputs fit; others (LayerNorm, Softmax,
# sums over an axis) stay FP32.
HALF_SAFE = SAME_SCALE | frozenset(
    "Add AveragePool Clip Concat Div Elu Expand Gather Gelu GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish "
    "LeakyRelu Max Min Mish Mul Neg PRelu Pad ReduceMax Relu Sigmoid Slice Split Sub Tanh Tile Where".split()
)
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


@dataclass(frozen=True)
class Placement:
    """How a target wants precision written into an ONNX graph.

    Attributes:
        name: part of an evaluation's digest.
        symmetric: activations with the zero point in the middle of their codes; otherwise anywhere in UINT8.
        quantize_outputs: Q/DQ also behind INT8 ops, Adds and `followers`, because the engine fuses
            only `DQ → op → Q`.
        followers: op types that stay INT8 between INT8 groups when `quantize_outputs`.
        float_output: weighted op types that are INT8 even without a Q behind them.
        int32_bias: biases quantized too (ONNX Runtime); otherwise float (TensorRT).
        shared_concat: all inputs of a Concat take its output's scale.
        before_activations: an INT8 convolution whose SiLU or the like is followed by a residual Add hands on INT8 to
            both, which are one kernel: its output is rounded before the activation, and the sum once more.
        half: float sides of INT8 groups, and free ops of `HALF_SAFE` between half tensors, are float16.
        weight_bits: width of the codes of weights.
        pair_limit: of the sum of two codes of a weight, where the kernel adds their products in 16 bits; see
            `weight_pairs`. None for kernels that do not.
        middle_of_uint8: symmetric activations are UINT8 around 128, and not INT8 around 0, which is the same numbers.
    """

    name: str
    symmetric: bool
    quantize_outputs: bool
    int32_bias: bool
    half: bool
    shared_concat: bool = False
    before_activations: bool = False
    followers: frozenset[str] = frozenset()
    float_output: frozenset[str] = frozenset()
    weight_bits: int = 8
    pair_limit: int | None = None
    middle_of_uint8: bool = False

    @property
    def signed(self) -> bool:
        """Whether activations are INT8, and not UINT8."""
        return self.symmetric and not self.middle_of_uint8

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, for a process that lowers for a target it does not have."""
        return {name: sorted(v) if isinstance(v, frozenset) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Placement:
        """The inverse of `to_json`."""
        values: dict[str, Any] = {name: frozenset(v) if isinstance(v, list) else v for name, v in data.items()}
        return cls(**values)


ONNXRUNTIME_CPU = Placement(
    name="onnxruntime-cpu-u8s8",
    symmetric=False,
    quantize_outputs=True,
    int32_bias=True,
    half=False,
    followers=SAME_SCALE | {"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid"},
    float_output=frozenset({"Gemm", "MatMul"}),
)
# ONNX Runtime rewrites most INT8 activations as UINT8, and runs in float what it then finds between both.
ONNXRUNTIME_CPU_SYMMETRIC = replace(
    ONNXRUNTIME_CPU, name="onnxruntime-cpu-u8s8-symmetric", symmetric=True, middle_of_uint8=True
)
PAIR_LIMIT = 128  # 128 · 255 fits into 16 bits with a sign
# Without INT8 kernels: only casts are written.
ONNXRUNTIME_CUDA = Placement(
    name="onnxruntime-cuda", symmetric=True, quantize_outputs=False, int32_bias=False, half=False
)
TENSORRT = Placement(
    name="tensorrt-s8s8", symmetric=True, quantize_outputs=False, int32_bias=False, half=True, shared_concat=True
)
# With precisions set on layers: what the layers of 8.6.0 on an H100 say of a SiLU alone, and before a residual Add.
TENSORRT_WEAK = replace(TENSORRT, name="tensorrt-weak-s8s8", before_activations=True)
TENSORRT_BY_TYPING = {"weak": TENSORRT_WEAK, "strong": TENSORRT}


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
    a user set stay.
    """
    planned = plan(model.graph.graph, model, assignment, placement)
    roots = {_name(value): _name(planned.root(value)) for value in planned.scale_of}
    known = ranges.tensors
    shared = {name: known[root] for name, root in roots.items() if root in known and name not in ranges.fixed}
    return replace(ranges, tensors={**known, **shared})


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
    """The outputs of INT8 convolutions between which and their residual Add an activation is."""
    for group in groups:
        adds = set(_residual_adds(group, nodes))
        for value in (nodes[name].outputs[0] for name in group.anchors if adds):
            inside = {user for user in value.consumers() if user.name in group.nodes}
            if inside and not inside & adds and any(user.op_type not in _CLAMPS for user in inside):
                result.stored.add(value)


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
        if node.op_type in SAME_SCALE and node.outputs[0] in result.stored:
            source = node.inputs[0]
            if source is not None and result.root(source) is not node.outputs[0]:
                result.scale_of[node.outputs[0]] = source
        if node.op_type == "Concat" and placement.shared_concat and _read_quantized(node.outputs[0], result):
            for i in float_inputs(node):
                source = node.inputs[i]
                if source is not None and source not in result.scale_of:
                    result.scale_of[source] = node.outputs[0]


def _read_quantized(value: ir.Value, result: Plan) -> bool:
    return any((user, i) in result.reads for user, i in value.uses())


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
