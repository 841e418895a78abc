"""Activations that are written out op by op, moves that undo each other, and Reshapes of Reshapes."""

from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from search.graph.rewrites.parts import (
    SCALED,
    constant_of,
    constant_operand,
    insert_in_place_of,
    is_read_once,
    replace_by_source,
)

_HARD_SWISH_OPSET = 14
# How far the numbers of a constant may be from three, six or a sixth to be it.
_NEAR = 1e-6


def name_activations(graph: ir.Graph, opset: int) -> bool:
    """Make one HardSigmoid of `Clip(x + b, 0, s) ÷ s`, and one HardSwish of x times the HardSigmoid that it knows."""
    changed = False
    for node in list(graph):
        changed |= _name_hard_sigmoid(graph, node) or (opset >= _HARD_SWISH_OPSET and _name_hard_swish(graph, node))
    return changed


def _name_hard_sigmoid(graph: ir.Graph, node: ir.Node) -> bool:
    """`Clip(x + b, 0, s) ÷ s` or `· 1/s`, where nothing else reads the parts in between."""
    operands = constant_operand(node) if node.op_type in SCALED else None
    clip = operands[0].producer() if operands is not None else None
    if operands is None or clip is None or not is_read_once(operands[0]) or operands[1].size != 1:
        return False
    limits = _limits_of(clip)
    factor = float(SCALED[node.op_type](np.float32(1), operands[1].reshape(())))
    if limits is None or limits[0] != 0 or abs(limits[1] * factor - 1) > _NEAR:
        return False
    read = clip.inputs[0]
    shift = read.producer() if read is not None else None
    summed = constant_operand(shift) if shift is not None and shift.op_type == "Add" else None
    if read is None or summed is None or summed[1].size != 1 or not is_read_once(read):
        return False
    values = {"alpha": factor, "beta": float(summed[1].reshape(())) * factor}
    insert_in_place_of(
        graph, node, "HardSigmoid", summed[0], [ir.AttrFloat32(name, value) for name, value in values.items()]
    )
    return True


def _limits_of(clip: ir.Node) -> tuple[float, float] | None:
    """The constant limits of a Clip, from inputs or, below opset 11, attributes."""
    if clip.op_type != "Clip" or clip.domain:
        return None
    if len(clip.inputs) == 3:
        limits = [constant_of(value) for value in clip.inputs[1:]]
        return None if any(each is None for each in limits) else (float(limits[0]), float(limits[1]))  # type: ignore[arg-type]
    low, high = clip.attributes.get("min"), clip.attributes.get("max")
    return None if low is None or high is None else (low.as_float(), high.as_float())


def _name_hard_swish(graph: ir.Graph, node: ir.Node) -> bool:
    """`x · HardSigmoid(x)`, and `x · Clip(x + 3, 0, 6) ÷ 6` with the division last."""
    divided = constant_operand(node) if node.op_type in SCALED else None
    product = divided[0].producer() if divided is not None else node
    if product is None or product.op_type != "Mul" or product.domain or len(product.inputs) != 2:
        return False
    scale = 1.0
    if divided is not None:
        if divided[1].size != 1 or not is_read_once(divided[0]):
            return False
        scale = float(SCALED[node.op_type](np.float32(1), divided[1].reshape(())))
    for one, other in ((0, 1), (1, 0)):
        x, gate = product.inputs[one], product.inputs[other]
        if x is None or gate is None or not is_read_once(gate) or not _is_hard_swish_gate(gate, x, scale):
            continue
        insert_in_place_of(graph, node, "HardSwish", x, [])
        return True
    return False


def _is_hard_swish_gate(gate: ir.Value, x: ir.Value, scale: float) -> bool:
    maker = gate.producer()
    if maker is None:
        return False
    if maker.op_type == "HardSigmoid" and scale == 1.0:
        alpha, beta = maker.attributes.get("alpha"), maker.attributes.get("beta")
        numbers = (0.2 if alpha is None else alpha.as_float(), 0.5 if beta is None else beta.as_float())
        return maker.inputs[0] is x and abs(numbers[0] - 1 / 6) < _NEAR and abs(numbers[1] - 0.5) < _NEAR
    limits, read = _limits_of(maker), maker.inputs[0] if maker.inputs else None
    shift = read.producer() if read is not None else None
    summed = constant_operand(shift) if shift is not None and shift.op_type == "Add" else None
    if limits != (0.0, 6.0) or read is None or summed is None or not is_read_once(read):
        return False
    three = summed[1].size == 1 and float(summed[1].reshape(())) == 3.0
    return summed[0] is x and three and abs(scale - 1 / 6) < _NEAR


def remove_moves_that_undo_each_other(graph: ir.Graph, opset: int) -> bool:
    """Remove a Transpose behind the one that it undoes, and a Transpose that moves nothing."""
    changed = False
    for node in list(graph):
        order = _order_of(node)
        if order is None or node.outputs[0].is_graph_output():
            continue
        source = node.inputs[0]
        assert source is not None
        before = source.producer()
        earlier = _order_of(before) if before is not None else None
        if order == sorted(order):
            replace_by_source(graph, node, source)
        elif before is not None and earlier is not None and [earlier[axis] for axis in order] == sorted(order):
            first = before.inputs[0]
            assert first is not None
            replace_by_source(graph, node, first)
        else:
            continue
        changed = True
    return changed


def _order_of(node: ir.Node) -> list[int] | None:
    if node.op_type != "Transpose" or node.domain or node.inputs[0] is None:
        return None
    perm, shape = node.attributes.get("perm"), node.inputs[0].shape
    if perm is not None:
        return list(perm.as_ints())
    return None if shape is None else list(reversed(range(len(shape))))


def join_reshapes(graph: ir.Graph, opset: int) -> bool:
    """Reshape what a Reshape was made of, if nothing else reads it, and remove a Reshape that changes nothing."""
    changed = False
    for node in list(graph):
        before = _made_by_reshape(node)
        source = before.inputs[0] if before is not None else node.inputs[0] if _is_reshape(node) else None
        if source is None:
            continue
        if not node.outputs[0].is_graph_output() and _has_same_shape(node.outputs[0], source):
            replace_by_source(graph, node, source)
        elif before is not None and _is_passed_by(before, source) and _keeps_meaning(node, source):
            node.replace_input_with(0, source)
            graph.remove(before, safe=True)
        else:
            continue
        changed = True
    return changed


def _is_reshape(node: ir.Node | None) -> TypeGuard[ir.Node]:
    return node is not None and node.op_type == "Reshape" and not node.domain


def _made_by_reshape(node: ir.Node) -> ir.Node | None:
    """The Reshape that makes what a Reshape reads."""
    before = node.inputs[0].producer() if _is_reshape(node) and node.inputs[0] is not None else None
    return before if _is_reshape(before) and before.graph is node.graph else None


def _is_passed_by(before: ir.Node, source: ir.Value) -> bool:
    """Whether one node alone reads a Reshape, which fits its source. A batch written into one that does not must stay
    to be refused."""
    made = before.outputs[0]
    if not is_read_once(made) or made.shape is None or source.shape is None:
        return False
    static = made.shape.is_static() and source.shape.is_static()
    return not static or math.prod(made.shape.numpy()) == math.prod(source.shape.numpy())


def _keeps_meaning(node: ir.Node, source: ir.Value) -> bool:
    """Whether the constant sizes that a Reshape asks for say the same of another tensor: a zero copies a size."""
    read, sizes = node.inputs
    if read is None or sizes is None or sizes.const_value is None or sizes.is_graph_input():
        return False
    copied, zero = np.flatnonzero(sizes.const_value.numpy() == 0).tolist(), node.attributes.get("allowzero")
    literal = zero is not None and bool(zero.as_int())
    return not copied or (not literal and all(_is_same_size(read, source, axis) for axis in copied))


def _has_same_shape(one: ir.Value, other: ir.Value) -> bool:
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return False
    return all(_is_same_size(one, other, axis) for axis in range(len(one.shape)))


def _is_same_size(one: ir.Value, other: ir.Value, axis: int) -> bool:
    """Whether two tensors are known to be as long along an axis."""
    if one.shape is None or other.shape is None or axis >= min(len(one.shape), len(other.shape)):
        return False
    sizes = [size if isinstance(size, int) else size.value for size in (one.shape[axis], other.shape[axis])]
    return sizes[0] is not None and sizes[0] == sizes[1]
