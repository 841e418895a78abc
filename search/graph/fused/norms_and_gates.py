"""Normalizations and activations that ONNX Runtime's optimizer makes one op, written out again.

They have no weights that a precision is chosen for, but the optimizer took the bias of the layer before into some of
them, and other engines know none of them.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from search.graph.fused.node_parts import MICROSOFT, NodeParts
from search.graph.fused.own_domain import NORM_OPSET, OWN_IN_ONNX, is_own

_BEFORE_NORM = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
ORDINARY = {
    "": OWN_IN_ONNX,
    MICROSOFT: frozenset({*_BEFORE_NORM, "BiasGelu", "FastGelu", "Gelu", "QuickGelu"}),
}
_EPSILON = {"": 1e-5, MICROSOFT: 1e-12}  # where the op says none


def write_out_norm_or_gate(parts: NodeParts) -> ir.Value | None:
    """What a normalization or activation of `ORDINARY` makes; None where it stays as it is."""
    node, x = parts.node, parts.input(0)
    if x is None or x.dtype not in (None, ir.DataType.FLOAT):
        return None
    if node.op_type in OWN_IN_ONNX:
        axis = node.attributes.get_int("axis", -1) or 0
        if not is_own(node.op_type, parts.opset) or parts.has_more_outputs(1) or (axis >= 0 and x.shape is None):
            return None
        first = axis if axis < 0 else axis - len(x.shape or ())
        return _normalize(parts, x, parts.input(1), parts.input(2), first)
    if node.op_type in _BEFORE_NORM:
        return _add_and_normalize(parts, x)
    if node.op_type == "QuickGelu":
        alpha = float(node.attributes.get_float("alpha", 1.702) or 0.0)
        scaled = x if alpha == 1.0 else parts.add("Mul", [x, _number(parts, "alpha", alpha)], "scaled")
        return parts.add("Mul", [x, parts.add("Sigmoid", [scaled], "gate")])
    bias = parts.input(1)
    x = x if bias is None else parts.add("Add", [x, bias], "biased")
    return _gelu(parts, x, is_tanh=node.op_type == "FastGelu")


def _number(parts: NodeParts, name: str, number: float) -> ir.Value:
    return parts.constant(name, np.array(number, np.float32))


def _add_and_normalize(parts: NodeParts, x: ir.Value) -> ir.Value | None:
    """A sum of two tensors and perhaps a bias, of which the fourth output is, and its normalization."""
    outputs, skip = parts.node.outputs, parts.input(1)
    if skip is None or any(value.uses() or value.is_graph_output() for value in outputs[1:3]):
        return None
    is_simple = parts.node.op_type == _BEFORE_NORM[1]
    bias = parts.input(3 if is_simple else 4)
    total = parts.add("Add", [x if bias is None else parts.add("Add", [x, bias], "biased"), skip], "sum")
    if parts.has_more_outputs(3):
        parts.others[outputs[3]] = total
    return _normalize(parts, total, parts.input(2), None if is_simple else parts.input(3), -1)


def _normalize(
    parts: NodeParts, x: ir.Value, scale: ir.Value | None, bias: ir.Value | None, first: int
) -> ir.Value | None:
    """Scale times x over its root mean square from an axis on, or of x less its mean, where the op is no simple one."""
    node, axes = parts.node, list(range(first, 0))
    epsilon = node.attributes.get_float("epsilon", _EPSILON[node.domain])
    if scale is None or epsilon is None:
        return None
    is_centred = "Simplified" not in node.op_type
    if is_centred and parts.opset >= NORM_OPSET:
        return parts.add("LayerNormalization", [x, scale, bias], axis=first, epsilon=float(epsilon))
    centred = parts.add("Sub", [x, parts.mean(x, axes, "mean")], "centred") if is_centred else x
    square = parts.add("Pow", [centred, _number(parts, "two", 2.0)], "square")
    variance = parts.add("Add", [parts.mean(square, axes, "variance"), _number(parts, "epsilon", epsilon)], "positive")
    divided = parts.add("Div", [centred, parts.add("Sqrt", [variance], "root")], "divided")
    scaled = parts.add("Mul", [divided, scale], "scaled" if bias is not None else "")
    return scaled if bias is None else parts.add("Add", [scaled, bias])


def _gelu(parts: NodeParts, x: ir.Value, *, is_tanh: bool) -> ir.Value:
    if is_tanh:
        cube = parts.add("Pow", [x, _number(parts, "three", 3.0)], "cube")
        bent = parts.add("Add", [x, parts.add("Mul", [cube, _number(parts, "small", 0.044715)], "little")], "bent")
        gate = parts.add("Tanh", [parts.add("Mul", [bent, _number(parts, "steep", math.sqrt(2 / math.pi))], "turn")])
    else:
        gate = parts.add("Erf", [parts.add("Div", [x, _number(parts, "root", math.sqrt(2))], "turn")], "gate")
    product = parts.add("Mul", [x, parts.add("Add", [gate, _number(parts, "one", 1.0)], "open")], "gated")
    return parts.add("Mul", [product, _number(parts, "half", 0.5)])
