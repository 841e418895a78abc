"""What a plan of INT8 tensors holds, and which inputs of nodes and groups are activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from search.graph.element_types import is_float
from search.graph.grouping import is_constant
from search.graph.model import Group
from search.graph.rewrites.parts import SCALED, SHIFTED, constant_operand

RESIDUAL = frozenset({"Conv", "ConvTranspose"})  # whose kernels add the other branch before they round


@dataclass
class Plan:
    """Which tensors of one assignment are INT8.

    Attributes:
        reads: (node, input index) that read the quantized form of their input.
        stored: values that exist only quantized: everyone who reads them reads a DQ.
        scale_of: value → the value whose range gives its scale.
        sums: what a HardSigmoid makes whose codes are those of a sum → how many times as large that is, 1 ÷ α.
        affine: value → what its codes are taken of, and the factor and the offset that make the value of that.
    """

    reads: set[tuple[ir.Node, int]] = field(default_factory=set)
    stored: set[ir.Value] = field(default_factory=set)
    scale_of: dict[ir.Value, ir.Value] = field(default_factory=dict)
    sums: dict[ir.Value, float] = field(default_factory=dict)
    affine: dict[ir.Value, tuple[ir.Value, float, float]] = field(default_factory=dict)

    def root(self, value: ir.Value) -> ir.Value:
        while value in self.scale_of:
            value = self.scale_of[value]
        return value


def activation_indices(anchor: ir.Node) -> list[int]:
    """Which of the two factors of a weighted op are activations."""
    return [i for i, value in enumerate(anchor.inputs[:2]) if not is_constant(value)]


def float_inputs(node: ir.Node) -> list[int]:
    """Indices of a node's float activations."""
    return [i for i, v in enumerate(node.inputs) if v is not None and not is_constant(v) and is_float(v)]


def residual_adds(group: Group, nodes: Mapping[str | None, ir.Node]) -> list[ir.Node]:
    """The Adds that an INT8 group computes in INT8: a matrix product hands on floats, and so keeps its Add exact."""
    if group.op not in RESIDUAL:
        return []
    members = [nodes[name] for name in group.nodes]
    return [node for node in members if node.op_type == "Add" and any(name_of(v) in group.skips for v in node.inputs)]


def hard_sigmoid(node: ir.Node) -> tuple[float, float]:
    """α and β of a HardSigmoid, `clip(α · x + β, 0, 1)`."""
    alpha, beta = (node.attributes.get(name) for name in ("alpha", "beta"))
    return alpha.as_float() if alpha is not None else 0.2, beta.as_float() if beta is not None else 0.5


def affine_of(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """What a Mul, Div, Add or Sub by one number reads, its positive factor and its offset; None for other nodes."""
    operand = constant_operand(node)
    if operand is None or operand[1].size != 1:
        return None
    number, op = operand[1].reshape(()), node.op_type
    factor = float(SCALED[op](np.float32(1), number)) if op in SCALED else 1.0
    offset = float(SHIFTED[op](np.float32(0), number)) if op in SHIFTED else 0.0
    return (operand[0], factor, offset) if factor > 0 else None


def only_user(node: ir.Node) -> ir.Node | None:
    users = node.outputs[0].consumers()
    return users[0] if len(users) == 1 and not node.outputs[0].is_graph_output() else None


def name_of(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
