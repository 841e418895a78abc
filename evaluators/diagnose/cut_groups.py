"""Single groups cut out of a model: small graphs that show what a precision does to one group alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.convenience import extract

from evaluators.diagnose.distributions import Half, Levels
from evaluators.lowering.half import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import Placement
from search.graph.grouping import is_constant
from search.graph.model import Group, Model
from search.values import Assignment, Precision, Ranges


@dataclass(frozen=True)
class Piece:
    """One group as a model of its own.

    Attributes:
        inputs: tensors of the whole model that it reads, by name; every one has to be fed.
        output: the tensor that leaves the group.
    """

    group: Group
    model: Model
    inputs: tuple[str, ...]
    output: str

    @property
    def axis(self) -> int:
        """Which axis of its activations counts channels."""
        return -1 if self.group.op in ("Gemm", "MatMul") else 1


def cut(model: Model, group: Group) -> Piece:
    """Cut a group out of the clean model; the model is not changed."""
    graph = model.graph.graph
    nodes = [graph.node(name) for name in group.nodes]
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(
        value for node in nodes for value in node.inputs if value is not None and not is_constant(value)
    )
    inputs = [value for value in read if value not in made]
    inside = set(nodes)
    # An anchor whose result also leaves the group is quantized elsewhere than one whose result does not.
    leaving = [v.name or "" for v in made if v.is_graph_output() or any(n not in inside for n in v.consumers())]
    alone = extract(graph, inputs, sorted(leaving))
    small = ir.Model(alone, ir_version=model.graph.ir_version)
    names = tuple(value.name or "" for value in inputs)
    return Piece(group, replace(model, graph=small, groups=(group,), edges=()), names, group.output)


def lowered(piece: Piece, precision: Precision, ranges: Ranges, placement: Placement) -> ir.Model:
    """The piece in a precision, with the outputs of the float piece.

    Raises:
        ModelError: it cannot be written in that precision.
    """
    return spelled_out(lower(piece.model, Assignment({piece.group.id: precision}), ranges, placement))


def grids(graph: ir.Model, precision: Precision, piece: Piece) -> Mapping[str, Levels | Half]:
    """What each activation of a lowered piece is rounded to: the piece's inputs and output, where they are at all."""
    known = {*piece.inputs, piece.output}
    if precision is Precision.FP16:
        return {name: Half() for name in known}
    found: dict[str, Levels | Half] = {}
    for node in graph.graph:
        value = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        name = (value.name or "").removesuffix("/raw") if value is not None else ""
        if name in known:
            found[name] = _levels(node)
    return found


def _levels(node: ir.Node) -> Levels:
    scale, zero = (node.inputs[i].const_value for i in (1, 2))  # type: ignore[union-attr]
    assert scale is not None
    assert zero is not None
    signed = zero.dtype is ir.DataType.INT8
    return Levels(float(scale.numpy()), int(zero.numpy()), -128 if signed else 0, 127 if signed else 255)
