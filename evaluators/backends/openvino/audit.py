"""What OpenVINO runs, read from its runtime model: the kernels of each group, all layers, and their times."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluators.backends.layers import Layer, Tensor
from evaluators.backends.onnxruntime.audit import Owners, answer_rows, owners_of
from search.graph.model import Model
from search.values import Assignment, AuditRow, LayerTime, Precision

_PRECISIONS = {
    "f32": Precision.FP32,
    "f16": Precision.FP16,
    "bf16": Precision.BF16,
    "i8": Precision.INT8,
    "u8": Precision.INT8,
}
_CODES = {"i4": "int4", "u4": "int4", "i8": "int8", "u8": "int8"}
_COMPRESSED = "FullyConnected"
_WEIGHTED = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
_GENERATED = "Subgraph"  # code that is generated for several ops: of single elements, moves, and small products
_MOVES = frozenset({"Convert", "Reorder"})
_MOVES_OF_NO_NODE = frozenset({_GENERATED, "Eltwise", "FakeQuantize", "Transpose"})
_VIEW = "Reshape"
_NOT_RUN = frozenset({"Const", "Input", "Output"})
# What its passes append to the names of nodes: of products, and of what is left of a quantized one behind it.
_PRODUCT = re.compile(r"(/WithoutBiases|_original)+$")
_SUFFIX = re.compile(r"(/WithoutBiases|/Dequantization\w+|_original)+$")


@dataclass(frozen=True)
class RuntimeNode:
    """One node of the runtime model.

    Attributes:
        kind: `Convolution`, `FullyConnected`, `Reorder`, `Subgraph`, ….
        type: of what it computes in, by OpenVINO's name.
        kernel: that was chosen, for example `jit_avx2_I8`.
        origins: names of the nodes that it came from, the one that it is named after first.
        constants: names of the constants that it is computed with, each with the type that it is read in.
    """

    name: str
    kind: str
    type: str
    kernel: str
    origins: tuple[str, ...]
    constants: Mapping[str, str]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def precision(self) -> Precision | None:
        """The precision that its type stands for; None for a type that no layer is assigned, say integers.

        A product with weights alone in integers is called after their type too, but reads floats.
        """
        precision = _PRECISIONS.get(self.type)
        if self.kind != _COMPRESSED or self.type not in _CODES or self.inputs[0].type in _CODES:
            return precision
        return Precision.in_blocks(_CODES[self.type])


def read_nodes(compiled: Any) -> list[RuntimeNode]:
    """What an engine runs at every inference, in its order; without what it computes of constants once."""
    roots: dict[str, frozenset[str]] = {}  # of every constant, those of the file that it is made from
    nodes = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        name, kind = node.get_friendly_name(), _fact(node, "layerType")
        inputs = [_tensor(value.get_source_output()) for value in node.inputs()]
        constants = {root: value.type for value in inputs for root in roots.get(value.name, ())}
        if kind == "Const":
            roots[name] = frozenset({name})
        elif kind not in _NOT_RUN and inputs and all(value.name in roots for value in inputs):
            roots[name] = frozenset(constants)
        elif kind not in _NOT_RUN:
            nodes.append(_read_node(node, name, kind, constants, inputs))
    return nodes


def _read_node(node: Any, name: str, kind: str, constants: Mapping[str, str], inputs: Sequence[Tensor]) -> RuntimeNode:
    return RuntimeNode(
        name=name,
        kind=kind,
        type=_fact(node, "runtimePrecision"),
        kernel=_fact(node, "primitiveType"),
        origins=tuple(each for each in (*_fact(node, "originalLayersNames").split(","), name) if each),
        constants=constants,
        inputs=tuple(inputs),
        outputs=tuple(map(_tensor, node.outputs())),
    )


def _fact(node: Any, name: str) -> str:
    facts = node.rt_info
    return str(facts[name].astype(str)) if name in facts else ""


def _tensor(port: Any) -> Tensor:
    shape = port.get_partial_shape()
    sizes = tuple(size.get_length() for size in shape) if shape.is_static else None
    return Tensor(port.get_node().get_friendly_name(), port.get_element_type().get_type_name(), "", sizes)


def audit_rows(nodes: Sequence[RuntimeNode], model: Model, assignment: Assignment) -> tuple[AuditRow, ...]:
    """What the runtime model runs for each group, found by its weight or by the names of its nodes."""
    got: dict[str, list[tuple[Precision, str]]] = {}
    for owner, node, precision in _kernels(nodes, model):
        if precision is not None:
            got.setdefault(owner, []).append((precision, node.kernel))
    return answer_rows(got, model, assignment)


def _kernels(nodes: Sequence[RuntimeNode], model: Model) -> Iterator[tuple[str, RuntimeNode, Precision | None]]:
    """Groups with the nodes that compute their products, and in what: kernels of their own, or parts of generated code.

    A product that was joined with what scales it has that one's name: then any name of the group has to do. Several
    products may be one piece of generated code, whose own type is that of one of them: each runs in what it reads its
    weight in.
    """
    owners, groups_with_kernels = owners_of(model), set[str]()
    for node in nodes:
        owner = owner_of(node, owners) if node.kind in _WEIGHTED else None
        if owner is not None:
            groups_with_kernels.add(owner)
            yield owner, node, node.precision
    generated = [(node, {_PRODUCT.sub("", name) for name in node.origins}) for node in nodes if node.kind == _GENERATED]
    for group in model.groups:
        exact = [node for node, names in generated if names & set(group.anchors)]
        if not exact and group.id not in groups_with_kernels:
            exact = [node for node, names in generated if names & set(group.nodes)]
        for node in exact:
            weights = [kind for name, kind in node.constants.items() if owners.weights.get(name) == group.id]
            yield group.id, node, _PRECISIONS.get(weights[0]) if weights else node.precision


def owner_of(node: RuntimeNode, owners: Owners) -> str | None:
    """The group that a node computes: by its weight, else by the first of its names that is known.

    What follows is fused into it, ops of other groups too. One with weights alone in integers may have the names of
    what stands before it first, and none of its own but the one that it is called by.
    """
    by_weight = (owners.weights.get(name) for name in sorted(node.constants))
    in_blocks = node.precision is not None and node.precision.blocks
    names = [_SUFFIX.sub("", name) for name in ((node.name,) if in_blocks else ()) + node.origins]
    return next(
        filter(None, (*by_weight, *(owners.nodes.get(name) or owners.tensors.get(name) for name in names))), None
    )


def written_names(model: Model) -> frozenset[str]:
    """Names of the clean model's nodes and of what they make; OpenVINO calls the last node after the output."""
    nodes = list(model.graph.graph)
    return frozenset(name for node in nodes for name in (node.name, *(value.name for value in node.outputs)) if name)


def is_move(node: RuntimeNode, written: Collection[str]) -> bool:
    """Whether a node only changes format or type: quantizing, dequantizing, another layout.

    Args:
        written: names of the clean model.
    """
    return node.kind in _MOVES or (node.kind in _MOVES_OF_NO_NODE and not any(name in written for name in node.origins))


def layer_times(nodes: Sequence[RuntimeNode], times_ms: Sequence[float], model: Model) -> tuple[LayerTime, ...]:
    """The times of nodes with the groups that they belong to, in the order in which they run."""
    owners, written = owners_of(model), written_names(model)
    return tuple(
        LayerTime(node.name, node.kind, owner_of(node, owners), is_move(node, written), ms)
        for node, ms in zip(nodes, times_ms, strict=True)
    )


def read_layers(nodes: Sequence[RuntimeNode], written: Collection[str]) -> tuple[Layer, ...]:
    """All layers of an engine, for `inspect`."""
    return tuple(_layer(node, written) for node in nodes)


def _layer(node: RuntimeNode, written: Collection[str]) -> Layer:
    moves = node.kind == _VIEW or is_move(node, written)
    precision = None if moves else node.precision
    return Layer(
        name=node.name,
        kind=node.kind,
        precision=precision,
        nodes=tuple(name for name in dict.fromkeys(_SUFFIX.sub("", each) for each in node.origins) if name in written),
        inputs=node.inputs,
        outputs=node.outputs,
        moves=moves,
        weighted=node.kind in _WEIGHTED,
        attributes={"tactic": node.kernel},
    )
