"""A LayerNorm that is written out, as one op for ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as passes

from search.graph.rewrites.parts import are_read_within, constant_of, insert_in_place_of, is_read_once

_FIRST_OPSET = 17  # with LayerNormalization


@dataclass(frozen=True)
class _Norm:
    """What is known of a LayerNorm up to its division: its ops so far, what it reads, its first axis and epsilon."""

    parts: frozenset[ir.Node]
    source: ir.Value
    axis: int
    epsilon: float


def join_layer_norm(model: ir.Model) -> ir.Model:
    """The model with each written out LayerNorm that has a scale as one op, with the name of its last one.

    ONNX Runtime does so itself, but not behind a DequantizeLinear: it first gives each reader one of its own, and then
    finds two inputs where the pattern has one. Files of an opset without LayerNormalization keep theirs: ONNX Runtime
    would run it, but the file that is exported would not be valid. The rule of onnxscript 0.7 knows neither axes as an
    attribute, as up to opset 17, nor others than the last one. The given model must not be used afterwards.
    """
    if model.opset_imports.get("", 0) < _FIRST_OPSET:
        return model
    divisions = [node for node in model.graph if node.op_type == "Div" and not node.domain]
    if not any([_join_layer_norm_of(node, model.graph) for node in divisions]):  # noqa: C419 - each has its turn
        return model
    return passes.RemoveUnusedNodesPass()(model).model


def _join_layer_norm_of(division: ir.Node, graph: ir.Graph) -> bool:
    """Join the LayerNorm that a Div is of, if it is of one that nothing else reads parts of."""
    norm = _norm_of(division)
    scaled = _follower(division, "Mul", graph) if norm is not None else None
    if norm is None or scaled is None:
        return False
    scale = _constant_beside(scaled, division, norm)
    if scale is None or not are_read_within(norm.parts, [*norm.parts, scaled]):
        return False
    shifted = _follower(scaled, "Add", graph)
    bias = _constant_beside(shifted, scaled, norm) if shifted is not None else None
    last = scaled if shifted is None or bias is None else shifted
    attributes = [ir.AttrInt64("axis", norm.axis), ir.AttrFloat32("epsilon", norm.epsilon)]
    others = [scale] if bias is None else [scale, bias]
    insert_in_place_of(graph, last, "LayerNormalization", norm.source, attributes, others=others)
    return True


def _norm_of(division: ir.Node) -> _Norm | None:
    """`(x - mean(x)) ÷ √(mean((x - mean(x))²) + ε)` over the last axes of x."""
    root = _maker(division.inputs[1], "Sqrt")
    total = _maker(root.inputs[0], "Add") if root is not None else None
    epsilon = _number_beside(total)
    mean = next((node for value in total.inputs if (node := _maker(value, "ReduceMean"))), None) if total else None
    square = mean.inputs[0].producer() if mean is not None and mean.inputs[0] is not None else None
    if root is None or total is None or mean is None or square is None or epsilon is None or not _is_square(square):
        return None
    above, below = _match_centred(division.inputs[0]), _match_centred(square.inputs[0])
    if above is None or below is None or above[1] is not below[1]:
        return None
    source, axes = above[1], _last_axes(mean, above[1])
    means = (above[0][1], below[0][1])
    if axes is None or any(_last_axes(each, source) != axes for each in means):
        return None
    return _Norm(frozenset({division, root, total, mean, square, *above[0], *below[0]}), source, axes, epsilon)


def _maker(value: ir.Value | None, op: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op and not node.domain else None


def _is_square(node: ir.Node) -> bool:
    if node.domain or node.op_type not in ("Mul", "Pow"):
        return False
    power = node.inputs[1].const_value if node.inputs[1] is not None else None
    two = power is not None and power.size == 1 and float(power.numpy().reshape(())) == 2
    return two if node.op_type == "Pow" else node.inputs[0] is node.inputs[1]


def _match_centred(value: ir.Value | None) -> tuple[tuple[ir.Node, ir.Node], ir.Value] | None:
    """The Sub and the ReduceMean of a tensor less its own mean, and the tensor."""
    difference = _maker(value, "Sub")
    mean = _maker(difference.inputs[1], "ReduceMean") if difference is not None else None
    source = mean.inputs[0] if mean is not None else None
    if difference is None or mean is None or source is None or difference.inputs[0] is not source:
        return None
    return ((difference, mean), source) if source.dtype is ir.DataType.FLOAT else None


def _number_beside(total: ir.Node | None) -> float | None:
    """The constant number that a sum has."""
    constants = [constant_of(value) for value in total.inputs] if total is not None else []
    return next((float(each.reshape(())) for each in constants if each is not None and each.size == 1), None)


def _last_axes(mean: ir.Node, source: ir.Value) -> int | None:
    """The first of the last axes of a tensor that a ReduceMean goes over, and keeps; None for other axes."""
    attribute, kept = mean.attributes.get("axes"), mean.attributes.get("keepdims")
    constant = mean.inputs[1].const_value if len(mean.inputs) > 1 and mean.inputs[1] is not None else None
    if source.shape is None or (kept is not None and not kept.as_int()) or (attribute is None and constant is None):
        return None
    axes = (
        list(attribute.as_ints())
        if attribute is not None
        else constant.numpy().tolist()
        if constant is not None
        else []
    )
    rank = len(source.shape)
    positions = sorted({axis % rank for axis in axes})
    return positions[0] if positions and positions == list(range(positions[0], rank)) else None


def _follower(node: ir.Node, op: str, graph: ir.Graph) -> ir.Node | None:
    """The only reader of what a node makes, if it is such an op."""
    if not is_read_once(node.outputs[0]):
        return None
    reader = next(iter(node.outputs[0].uses())).node
    return reader if reader.op_type == op and not reader.domain and reader.graph is graph else None


def _constant_beside(node: ir.Node, before: ir.Node, norm: _Norm) -> ir.Value | None:
    """The constant beside what `before` makes, with a number for each element that the LayerNorm goes over."""
    value = next((each for each in node.inputs if each is not before.outputs[0]), None)
    array = constant_of(value)
    wanted = norm.source.shape[norm.axis :] if norm.source.shape is not None else None
    return value if array is not None and wanted is not None and list(array.shape) == list(wanted) else None
