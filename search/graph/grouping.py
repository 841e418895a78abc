"""Finding groups and edges in an ONNX graph.

A group is a weighted op with what engines fuse into it: pointwise ops up to the first tensor that is used more than
once, a residual Add, and the pointwise ops behind that. The shapes of engines' own fusions were read from TensorRT's
and ONNX Runtime's profiles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from search.graph.element_types import is_float

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
POINTWISE = frozenset(
    "Add BatchNormalization Clip Div Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu Mish Mul Neg PRelu Pow Relu "
    "Selu Sigmoid Softplus Sqrt Sub Tanh ThresholdedRelu".split()
)
# Ops that hand a tensor on in whatever precision it comes, so that an edge goes through them.
TRANSPARENT = POINTWISE | frozenset(
    "AveragePool Concat DepthToSpace Dropout Expand Flatten Gather GlobalAveragePool GlobalMaxPool Identity MaxPool "
    "Max Min Pad ReduceMax Reshape Resize Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze Upsample".split()
)
_REGION_LIMIT = 16
_LONG_SPAN = 8
# Why a product may only run in a high precision, unless the user has it decided.
BOTH_ACTIVATIONS = "both factors are activations, as in attention, which are kept in a high precision"
_CHAIN = 4
_BLOCK_NAME = re.compile(r"[^/]*\.\d+(?=[/.]|$)")


@dataclass(frozen=True)
class Group:
    """The unit of choice: weighted ops with what engines fuse into them, or one op of `FREE`.

    Attributes:
        id: short and stable: `g000`, `g001`, … in topological order; of ops of `FREE` `n000`, ….
        name: ONNX node name of the first weighted op, as the user's file has it.
        op: op type of the weighted ops: Conv, ConvTranspose, Gemm or MatMul; or of `FREE`.
        anchors: node names of the weighted ops (several when they share one weight).
        nodes: all node names in the group, topological order.
        weights: names of the weight initializers; empty when both inputs are activations.
        inputs: names of the activation tensors that weighted ops read.
        skips: names of residual inputs of a fused Add.
        tensors: names of all tensors that its nodes compute.
        output: name of the tensor that leaves the group (of the last anchor).
        shape: output shape at the measured input shapes; empty when unknown.
        weight_shape: shape of the first weight; empty when none.
        block: name of the repeated structure it belongs to.
        pinned: why it may only run in a high precision; empty if it may run in any.
    """

    id: str
    name: str
    op: str
    anchors: tuple[str, ...]
    nodes: tuple[str, ...]
    weights: tuple[str, ...]
    inputs: tuple[str, ...]
    skips: tuple[str, ...]
    tensors: tuple[str, ...]
    output: str
    shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    block: str
    pinned: str = ""

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of one inference: elements of the output times the weights for each; at least 1."""
        outputs = float(math.prod(self.shape))
        if not self.weight_shape:
            return max(1.0, outputs)
        made = self.weight_shape[-1] if self.op in ("Gemm", "MatMul") else self.weight_shape[0]
        return max(1.0, outputs * math.prod(self.weight_shape) / (made or 1))


@dataclass(frozen=True)
class Edge:
    """A tensor that flows from one group (None: a graph input) to another; `elements` at the measured shapes."""

    source: str | None
    target: str
    tensor: str
    elements: int


@dataclass
class _Seed:
    """A weighted op with the nodes that were added to its group so far."""

    anchor: ir.Node
    nodes: list[ir.Node] = field(default_factory=list)
    skip: ir.Value | None = None
    exit: ir.Value = field(init=False)

    def __post_init__(self) -> None:
        self.nodes.append(self.anchor)
        self.exit = self.anchor.outputs[0]


def find_groups(
    graph: ir.Graph, shapes: Mapping[str, tuple[int, ...]], free: Collection[str] = ()
) -> tuple[tuple[Group, ...], tuple[Edge, ...]]:
    """Find the groups of a clean graph and the edges between them, both in topological order.

    Args:
        graph: nodes in topological order with unique names; operators inside If and Loop bodies are ignored.
        shapes: shape of every tensor by name, where known.
        free: op types of `FREE` that are groups too.
    """
    seeds = [_Seed(node) for node in graph if _is_weighted(node)]
    taken = {seed.anchor for seed in seeds}
    for seed in seeds:
        _absorb_pointwise(seed, taken)
    _absorb_residuals(graph, seeds, taken, shapes)
    alone = [_Seed(node) for node in graph if node.op_type in free and node not in taken and _has_type(node)]
    sharing: dict[object, list[_Seed]] = {}  # those of one weight are one group
    for seed in seeds:
        weight = weight_of(seed.anchor)
        sharing.setdefault(seed.anchor if weight is None else (weight, seed.anchor.op_type), []).append(seed)
    merged = list(sharing.values())
    if alone:
        place = {node: number for number, node in enumerate(graph)}
        merged = sorted([*merged, *([seed] for seed in alone)], key=lambda members: place[members[0].anchor])
    counts = {kind: iter(range(len(merged))) for kind in "gn"}
    kinds = ["g" if members[0].anchor.op_type in WEIGHTED else "n" for members in merged]
    named = [(f"{kind}{next(counts[kind]):03d}", members) for kind, members in zip(kinds, merged, strict=True)]
    groups = [_group(group_id, members, shapes) for group_id, members in named]
    owner = {node: group.id for group, members in zip(groups, merged, strict=True) for s in members for node in s.nodes}
    edges = tuple(_edges(merged, groups, owner, shapes))
    blocks = _blocks(groups, edges)
    return tuple(replace(group, block=block) for group, block in zip(groups, blocks, strict=True)), edges


def is_constant(value: ir.Value | None) -> bool:
    return value is None or value.is_initializer() or value.const_value is not None


def _is_weighted(node: ir.Node) -> bool:
    if node.op_type not in WEIGHTED or node.domain not in ("", "ai.onnx"):
        return False
    return node.outputs[0].dtype is ir.DataType.FLOAT and not all(is_constant(v) for v in node.inputs[:2])


def _has_type(node: ir.Node) -> bool:
    """Whether an op makes floats of an activation."""
    return node.outputs[0].dtype is ir.DataType.FLOAT and not is_constant(node.inputs[0])


def _dynamic_inputs(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None and not is_constant(value)]


def _carries_float(value: ir.Value) -> bool:
    """Whether a tensor is float; indices, masks and shapes have no precision to choose."""
    return value.dtype is None or is_float(value)


def _leaves(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(user not in inside for user in value.consumers())


def _absorb_pointwise(seed: _Seed, taken: set[ir.Node]) -> None:
    """Add pointwise ops that read only from the group, up to the last point where a single tensor leaves it."""
    if seed.exit.is_graph_output():
        return
    values, region, inside, good = {seed.exit}, list[ir.Node](), set[ir.Node](), 0
    while len(region) < _REGION_LIMIT:
        node = _next_pointwise(values, seed.anchor.graph, taken, inside)
        if node is None:
            break
        region.append(node)
        values.add(node.outputs[0])
        inside.add(node)
        if [v for v in values if _leaves(v, inside)] == [node.outputs[0]]:
            good = len(region)
    if good:
        seed.nodes += region[:good]
        seed.exit = region[good - 1].outputs[0]
        taken.update(region[:good])


def _next_pointwise(values: set[ir.Value], graph: object, taken: set[ir.Node], inside: set[ir.Node]) -> ir.Node | None:
    candidates = {user for value in values for user in value.consumers()} - inside
    fitting = [
        node
        for node in candidates
        if node.op_type in POINTWISE
        and node not in taken
        and node.graph is graph
        and len(node.outputs) == 1
        and node.outputs[0].dtype is ir.DataType.FLOAT
        and all(value in values for value in _dynamic_inputs(node))
    ]
    return min(fitting, key=lambda node: node.name or "", default=None)


def _absorb_residuals(
    graph: ir.Graph, seeds: list[_Seed], taken: set[ir.Node], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Add each residual Add to the deeper of its two branches, as engines do."""
    depth = _depths(graph)
    by_exit = {seed.exit: seed for seed in seeds}
    for node in graph:
        operands = _dynamic_inputs(node)
        if node.op_type != "Add" or node in taken or len(operands) != 2 or operands[0] is operands[1]:
            continue
        if shapes.get(operands[0].name or "") != shapes.get(operands[1].name or "", ()):
            continue
        owners = [v for v in operands if v in by_exit and not _leaves(v, {node}) and by_exit[v].skip is None]
        if not owners:
            continue
        main = max(owners, key=lambda value: depth[value])
        seed = by_exit.pop(main)
        seed.nodes.append(node)
        seed.skip = operands[0] if operands[1] is main else operands[1]
        seed.exit = node.outputs[0]
        taken.add(node)
        _absorb_pointwise(seed, taken)
        by_exit[seed.exit] = seed


def _depths(graph: ir.Graph) -> dict[ir.Value, int]:
    """The number of weighted ops on the longest path to each value."""
    depth: dict[ir.Value, int] = {}
    for node in graph:
        below = max((depth.get(value, 0) for value in _dynamic_inputs(node)), default=0)
        for output in node.outputs:
            depth[output] = below + (node.op_type in WEIGHTED)
    return depth


def weight_of(node: ir.Node) -> ir.Value | None:
    """The constant second input of a weighted op; None when both inputs are activations, and of other ops."""
    value = node.inputs[1] if node.op_type in WEIGHTED else None
    return value if value is not None and is_constant(value) else None


def _group(group_id: str, members: list[_Seed], shapes: Mapping[str, tuple[int, ...]]) -> Group:
    anchors = [seed.anchor for seed in members]
    weights = [weight for weight in (weight_of(anchor) for anchor in anchors) if weight is not None]
    return Group(
        id=group_id,
        name=anchors[0].name or "",
        op=anchors[0].op_type,
        anchors=tuple(anchor.name or "" for anchor in anchors),
        nodes=tuple(node.name or "" for seed in members for node in seed.nodes),
        weights=tuple(dict.fromkeys(weight.name or "" for weight in weights)),
        inputs=tuple(dict.fromkeys(v.name or "" for a in anchors for v in a.inputs[:2] if v and not is_constant(v))),
        skips=tuple(dict.fromkeys(seed.skip.name or "" for seed in members if seed.skip is not None)),
        tensors=tuple(v.name or "" for seed in members for node in seed.nodes for v in node.outputs),
        output=members[-1].exit.name or "",
        shape=tuple(shapes.get(members[-1].exit.name or "", ())),
        weight_shape=tuple(int(dim) for dim in weights[0].shape or () if isinstance(dim, int)) if weights else (),
        block="",
        pinned=_pin(anchors[0]),
    )


def _pin(anchor: ir.Node) -> str:
    if weight_of(anchor) is not None or anchor.op_type not in WEIGHTED:
        return ""
    if is_constant(anchor.inputs[0]):
        return "the constant is the first factor, which engines do not quantize"
    return BOTH_ACTIVATIONS


def _edges(
    merged: list[list[_Seed]], groups: list[Group], owner: Mapping[ir.Node, str], shapes: Mapping[str, tuple[int, ...]]
) -> Iterable[Edge]:
    for members, group in zip(merged, groups, strict=True):
        entering = [v for seed in members for node in seed.nodes for v in _dynamic_inputs(node) if _carries_float(v)]
        seen: dict[tuple[str | None, str], Edge] = {}
        for value in entering:
            for source, tensor in _sources(value, owner):
                if source != group.id:
                    elements = math.prod(shapes.get(tensor, (0,)))
                    seen.setdefault((source, tensor), Edge(source, group.id, tensor, elements))
        yield from seen.values()


def _sources(value: ir.Value, owner: Mapping[ir.Node, str]) -> list[tuple[str | None, str]]:
    """Groups (or graph inputs) whose tensors reach `value` only through operators that change no values."""
    sources: list[tuple[str | None, str]] = []
    stack, seen = [value], {value}
    while stack:
        current = stack.pop()
        node = current.producer()
        if node is None:
            sources.append((None, current.name or ""))
        elif node in owner:
            sources.append((owner[node], current.name or ""))
        elif node.op_type in TRANSPARENT:
            new = [v for v in _dynamic_inputs(node) if v not in seen and _carries_float(v)]
            seen.update(new)
            stack += new
    return sources


def _blocks(groups: list[Group], edges: Iterable[Edge]) -> list[str]:
    """Divide the groups into blocks wherever a single tensor crosses, then join blocks with the same module name.

    A tensor that spans more than `_LONG_SPAN` groups, such as a skip connection of a U-Net, is ignored here. In plain
    chains, neighbours with the same operator and shape are joined, `_CHAIN` at a time.
    """
    position = {group.id: i for i, group in enumerate(groups)}
    last_use: dict[tuple[int, str], int] = {}
    for edge in edges:
        key = (position[edge.source] if edge.source is not None else -1, edge.tensor)
        last_use[key] = max(last_use.get(key, -1), position[edge.target])
    crossing = [0] * (len(groups) + 1)
    for (start, _), end in last_use.items():
        if start < end <= start + _LONG_SPAN:
            crossing[start + 1] += 1
            crossing[end + 1] -= 1
    blocks: list[list[Group]] = []
    open_now = 0
    for i, group in enumerate(groups):
        open_now += crossing[i]
        module = _module(group.name)
        joined = i > 0 and module != "" and module == _module(groups[i - 1].name)
        if i == 0 or (open_now <= 1 and not joined):
            blocks.append([])
        blocks[-1].append(group)
    return [f"b{number:03d}" for number, block in enumerate(_chain_blocks(blocks)) for _ in block]


def _chain_blocks(blocks: list[list[Group]]) -> list[list[Group]]:
    joined: list[list[Group]] = []
    run = 0  # length of the chain of single groups that the last block is; 0 where it is none
    for block in blocks:
        single, last = block[0], joined[-1][-1] if joined else None
        alike = last is not None and single.shape == last.shape != () and single.op == last.op
        if len(block) == 1 and alike and 0 < run < _CHAIN:
            joined[-1].append(single)
            run += 1
        else:
            joined.append(list(block))
            run = len(block) == 1
    return joined


def _module(name: str) -> str:
    """`/features/features.3/conv/conv.0/Conv` → `/features/features.3`; empty when no part is numbered."""
    match = _BLOCK_NAME.search(name)
    return name[: match.end()] if match else ""
