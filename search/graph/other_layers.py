"""Layers with weights that are no Conv, ConvTranspose, Gemm or MatMul: they are written out as one, or named.

ONNX Runtime's optimizer makes fused ops of ordinary ones, and makes them again when it runs the model. What is no
product of an activation and a constant stays as it is, and so does what is in the bodies of If, Loop and Scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from search.graph.element_types import is_float
from search.graph.floats.quantized_file import COMPUTES_ON_CODES
from search.graph.fused.attention import write_out_attention
from search.graph.fused.node_parts import MICROSOFT, NodeParts
from search.graph.fused.norms_and_gates import ORDINARY, write_out_norm_or_gate
from search.graph.grouping import TRANSPARENT, WEIGHTED, Group, is_constant

_ACTIVATION_PARTS = ("activation_alpha", "activation_beta", "activation_gamma")
# Attributes of an activation, in the order of its parameters in a fused op.
_PARAMETERS = {
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
}
# Ops that multiply no matrix, though they may read a constant with several axes.
_NO_PRODUCTS = TRANSPARENT | frozenset(
    "And Cast CumSum Equal Gather GatherElements GatherND Greater GridSample GroupNormalization If "
    "InstanceNormalization LayerNormalization Less Loop Mean Mod OneHot Or RMSNormalization RotaryEmbedding Scan "
    "ScatterElements ScatterND "
    "SkipLayerNormalization EmbedLayerNormalization Sum Trilu Where".split()
)
_PLAIN = frozenset({"Relu", "Tanh", "Sigmoid", "Softplus", "Softsign"})


def write_out_ops(model: ir.Model) -> None:
    """Replace the fused ops of ONNX Runtime's optimizer, and Einsums that are one matrix product, in place.

    What an op has that ordinary ops do not have, or a rank that is not known, leaves it as it is.
    """
    for graph in model.graphs():
        for node in list(graph):
            parts = NodeParts(node, model.opset_imports.get("", 1))
            made = _write_out(parts)
            if made is not None:
                pairs = {node.outputs[0]: made, **parts.others}
                ir.convenience.replace_nodes_and_values(
                    graph, node, [node], parts.nodes, list(pairs), list(pairs.values())
                )


def _write_out(parts: NodeParts) -> ir.Value | None:
    """The value that the ordinary ops make; None for an op that stays."""
    node = parts.node
    if node.op_type == "Einsum" and not node.domain:
        return _einsum(parts)
    if node.op_type in ORDINARY.get(node.domain, ()):
        return write_out_norm_or_gate(parts)
    if node.domain != MICROSOFT:
        return None
    if node.op_type == "Attention":
        return write_out_attention(parts)
    if node.op_type == "FusedMatMul":
        return _fused_matmul(parts)
    if node.op_type in ("FusedConv", "FusedGemm"):
        return _fused_activation(parts)
    return None


def _fused_activation(parts: NodeParts) -> ir.Value | None:
    """A Conv or Gemm, what is added to it, and its activation."""
    node, op = parts.node, parts.node.op_type.removeprefix("Fused")
    own = {name: attribute.value for name, attribute in node.attributes.items() if not name.startswith("activation")}
    kind = node.attributes.get_string("activation", "") or ""
    parameters = node.attributes.get_floats("activation_params") if op == "Conv" else None
    numbers = list(parameters or [node.attributes.get_float(name, 0.0) for name in _ACTIVATION_PARTS])
    if kind not in _PLAIN and kind not in _PARAMETERS and kind not in ("Clip", ""):
        return None
    inputs = list(node.inputs)
    made = parts.add(op, inputs[:3], **own)
    if op == "Conv" and len(inputs) > 3 and inputs[3] is not None:
        made = parts.add("Add", [made, inputs[3]], "sum")
    if not kind:
        return made
    if kind == "Clip":
        bounds = [parts.constant(f"bound{i}", np.float32(number)) for i, number in enumerate(numbers[:2])]
        return parts.add(kind, [made, *bounds], "activation")
    named = dict(zip(_PARAMETERS.get(kind, ()), map(float, numbers), strict=False))
    return parts.add(kind, [made], "activation", **named)


def _fused_matmul(parts: NodeParts) -> ir.Value | None:
    attributes = parts.node.attributes
    if any(attributes.get_int(name) for name in ("transBatchA", "transBatchB")):
        return None
    factors = []
    for value, turned in zip(parts.node.inputs[:2], ("transA", "transB"), strict=True):
        if value is None or (attributes.get_int(turned) and value.shape is None):
            return None
        rank = len(value.shape) if value.shape is not None else 0
        turn = attributes.get_int(turned) == 1 and rank > 1
        order = [*range(rank - 2), rank - 1, rank - 2] if turn else list(range(rank))
        factors.append(parts.transpose(value, order, turned))
    alpha = float(attributes.get_float("alpha", 1.0) or 0.0)
    made = parts.add("MatMul", factors)
    return (
        made
        if alpha == 1.0
        else parts.add("Mul", [made, parts.constant("alpha", np.array(alpha, np.float32))], "scaled")
    )


def _einsum(parts: NodeParts) -> ir.Value | None:
    """A MatMul between Transposes, and Reshapes where several axes are multiplied or made at once."""
    equation = _read_equation(parts.node)
    if equation is None:
        return None
    (x, left), (y, right), out = equation
    if x.const_value is not None:  # the constant is the second factor, as engines want it
        (x, left), (y, right) = (y, right), (x, left)
    batch = [axis for axis in left if axis in right and axis in out]
    summed = [axis for axis in left if axis in right and axis not in out]
    rows, columns = ([axis for axis in own if axis not in other] for own, other in ((left, right), (right, left)))
    if not summed or not rows or not columns or set(out) != {*batch, *rows, *columns}:
        return None
    simple = len(summed) == len(columns) == 1
    if (not simple and y.const_value is None) or (y.const_value is None and len(rows) > 1):
        return None
    lead = [*rows[:-1], *batch, rows[-1]]
    sizes = {axis: size for axis, size in zip(right, y.shape or (), strict=False) if isinstance(size, int)}
    first = parts.transpose(x, [left.index(axis) for axis in (*lead, *summed)], "first")
    second = parts.transpose(y, [right.index(axis) for axis in (*batch, *summed, *columns)], "second")
    if not simple:
        if len(sizes) < len(right):
            return None
        many = [int(np.prod([sizes[axis] for axis in axes])) for axes in (summed, columns)]
        if len(summed) > 1:
            first = parts.add("Reshape", [first, parts.constant("flat", np.array([0] * len(lead) + [-1]))], "flattened")
        shape = parts.constant("matrix", np.array([*(sizes[axis] for axis in batch), *many], np.int64))
        second = parts.add("Reshape", [second, shape], "weight")
    made = parts.add("MatMul", [first, second])
    if len(columns) > 1:
        shape = parts.constant("parts", np.array([0] * len(lead) + [sizes[axis] for axis in columns], np.int64))
        made = parts.add("Reshape", [made, shape], "divided")
    axes = [*lead, *columns]
    return parts.transpose(made, [axes.index(axis) for axis in out], "ordered")


def _read_equation(node: ir.Node) -> tuple[tuple[ir.Value, str], tuple[ir.Value, str], str] | None:
    """The two factors of an Einsum with their axes as letters, and those of the result; None where it is no product."""
    terms, arrow, out = (node.attributes.get_string("equation", "") or "").replace(" ", "").partition("->")
    letters = terms.split(",")
    x, y = (*node.inputs, None, None)[:2]
    if len(node.inputs) != 2 or len(letters) != 2 or x is None or y is None:
        return None
    if not arrow:  # then the result has every axis that there is once, in the order of the alphabet
        out = "..." * ("..." in terms) + "".join(
            sorted(axis for axis in set(terms) - {*".,"} if terms.count(axis) == 1)
        )
    spread = ""
    for index, value in enumerate((x, y)):
        if "..." in letters[index]:
            if value.shape is None:
                return None
            count = len(value.shape) - len(letters[index]) + 3
            own = "".join(chr(ord("①") + i) for i in range(count))[::-1]  # aligned at the last, as in broadcasting
            letters[index], spread = letters[index].replace("...", own), max(spread, own, key=len)
    out = out.replace("...", spread)
    if any(len(set(axes)) != len(axes) for axes in (*letters, out)):
        return None
    return (x, letters[0]), (y, letters[1]), out


@dataclass(frozen=True)
class LeftOut:
    """A layer that no precision is chosen for.

    Attributes:
        name: ONNX node name.
        op: op type.
        why: in words.
    """

    name: str
    op: str
    why: str


def find_left_out(graph: ir.Graph, groups: Iterable[Group]) -> tuple[LeftOut, ...]:
    """Every node with weights that is in none of the groups, bodies of If, Loop and Scan included."""
    grouped = {name for group in groups for name in group.nodes}
    return tuple(_each(graph, grouped))


def _each(graph: ir.Graph, grouped: set[str]) -> Iterator[LeftOut]:
    for node in graph.all_nodes():
        inside = node.graph is not graph
        if (not inside and (node.name or "") in grouped) or not _has_weights(node):
            continue
        if inside and node.op_type in WEIGHTED:
            why = "it is in the body of an If, Loop or Scan, which runs as it is"
        elif node.op_type in WEIGHTED and not node.domain:
            why = "it does not compute in float32 on an activation"
        elif COMPUTES_ON_CODES.fullmatch(node.op_type):
            why = "it is quantized in a form that is not read, and runs as it is"
        elif node.op_type == "Einsum":
            why = "its equation is no matrix product of an activation and a constant"
        else:
            why = f"precisions are chosen for Conv, ConvTranspose, Gemm and MatMul, not for {node.op_type}"
        yield LeftOut(node.name or "", node.op_type, why)


def _has_weights(node: ir.Node) -> bool:
    if node.op_type in _NO_PRODUCTS:
        return False
    constants = [value for value in node.inputs if value is not None and is_constant(value)]
    if COMPUTES_ON_CODES.fullmatch(node.op_type):
        return any(value.shape is not None and len(value.shape) > 1 for value in constants)
    return any(
        (is_float(value) or value.dtype is ir.DataType.DOUBLE) and value.shape is not None and len(value.shape) > 1
        for value in constants
    )
