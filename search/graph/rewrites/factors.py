"""Constant factors and offsets beside a layer, which its weights and bias can take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from search.graph.rewrites.parts import (
    SCALED,
    SHIFTED,
    Array,
    constant_of,
    constant_operand,
    is_read_once,
    replace_by_source,
    set_constant,
)

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MOVES = {"Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Squeeze"}
_MOVES |= {"Transpose", "Unsqueeze", *SCALED, *SHIFTED}
# What leaves 8 bits with one scale for all channels about as good in front of a constant as behind it.
_MOST_RATIO = 4.0  # of the factors of two channels
_MOST_SHIFT = 4.0  # beside what a factor makes about 1: images are shifted by 2
_MOST_SHIFT_ALONE = 256.0  # where no factor says how large the numbers are


def fold_into_layer_before(graph: ir.Graph, opset: int) -> bool:
    """Take a constant factor or offset behind a layer into its weights and bias, where nothing else reads the layer.

    It may stand behind a Squeeze, Transpose or Slice: exporters of 1-D convolutions compute them in 2-D.
    """
    changed = False
    for node in list(graph):
        operands = constant_operand(node)
        views = None if operands is None else _views_behind_layer(*operands)
        if views is None or operands is None:
            continue
        layer, constant, passed = views
        per_output = _per_channel(constant, layer.outputs[0], -1 if layer.op_type in ("Gemm", "MatMul") else 1)
        if per_output is None or not _fold_output(graph, layer, node.op_type, per_output):
            continue
        name = node.outputs[0].name
        replace_by_source(graph, node, operands[0])
        for value in passed:  # they hold other numbers than those that these names are known for
            value.name = f"{value.name}/{node.name}"
        operands[0].name = name  # what it holds is now what had this name
        changed = True
    return changed


def _views_behind_layer(value: ir.Value, constant: Array) -> tuple[ir.Node, Array, list[ir.Value]] | None:
    """The layer that makes a value, alone or with views between, a constant behind it in the shape that applies to what
    the layer makes, and the values in front of the views."""
    passed: list[ir.Value] = []
    while is_read_once(value) and (node := value.producer()) is not None:
        if _is_foldable(node):
            return node, constant, passed
        moved = _before_view(node, constant)
        if moved is None or node.inputs[0] is None:
            return None
        value, constant = node.inputs[0], moved
        passed.append(value)
    return None


def _before_view(node: ir.Node, constant: Array) -> Array | None:
    """A constant that is applied to what a view makes, in the shape that applies to what the view reads; None for other
    nodes, and where there is none."""
    shape = node.outputs[0].shape
    if node.domain or node.op_type not in ("Identity", "Slice", "Squeeze", "Transpose") or shape is None:
        return None
    if constant.size == 1:
        return constant.reshape(())
    constant = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
    if node.op_type == "Transpose":
        perm = node.attributes.get("perm")
        moved = range(len(shape))[::-1] if perm is None else np.argsort(perm.as_ints())
        return np.asarray(constant.transpose(moved))
    if node.op_type == "Identity":
        return constant
    if node.op_type == "Squeeze":
        axes = node.attributes["axes"].as_ints() if "axes" in node.attributes else _integers(node, 1)
        return None if axes is None else np.expand_dims(constant, tuple(axes))
    axes = _integers(node, 3)
    if axes is None:
        return None
    return constant if all(constant.shape[axis] == 1 or _keeps_all(node, axis) for axis in axes) else None


def _keeps_all(cut: ir.Node, axis: int) -> bool:
    """Whether a Slice gives all of an axis, in its order."""
    source, made = (value.shape if value is not None else None for value in (cut.inputs[0], cut.outputs[0]))
    onwards = len(cut.inputs) < 5 or all(step > 0 for step in _integers(cut, 4) or [-1])
    return (
        onwards
        and source is not None
        and made is not None
        and isinstance(made[axis], int)
        and made[axis] == source[axis]
    )


def _integers(node: ir.Node, index: int) -> list[int] | None:
    """An input of a node that is a constant of integers; None where it is not."""
    value = node.inputs[index] if len(node.inputs) > index else None
    tensor = None if value is None else value.const_value
    return None if tensor is None else [int(number) for number in tensor.numpy().reshape(-1)]


def fold_into_layers_behind(graph: ir.Graph, opset: int) -> bool:
    """Take a constant factor or offset in front of layers into their weights and biases.

    A layer that pads takes no offset, because what it pads with is zero. There `c · x + d` becomes `c · (x + d ÷ c)`.
    What brings channels of different sizes to one, as (x - mean) ÷ std of features does, stays.
    """
    changed = False
    for node in list(graph):
        operands = constant_operand(node)
        if operands is None or node.outputs[0].is_graph_output():
            continue
        source, constant = operands
        if _ends_fused_pattern(source):
            continue
        readers = [(use.node, use.idx) for use in node.outputs[0].uses()]
        if not readers or any(at or reader.graph is not graph or not _is_foldable(reader) for reader, at in readers):
            continue
        axes = {-1 if reader.op_type in ("Gemm", "MatMul") else 1 for reader, _ in readers}
        # By the source's channels: a constant may spread one channel over several.
        per_input = _per_channel(constant, source, axes.pop()) if len(axes) == 1 else None
        if per_input is None or _normalizes_input(node, source, constant):
            continue
        layers = [reader for reader, _ in readers]
        if node.op_type in SCALED:
            for layer in layers:
                _multiply_inputs(graph, layer, SCALED[node.op_type](np.float32(1), per_input))
        elif all(_takes_offset(layer) for layer in layers):
            for layer in layers:
                _add_to_bias(graph, layer, _effect_of(layer, SHIFTED[node.op_type](np.float32(0), per_input)))
        else:
            changed |= _swap_factor_and_offset(graph, node, source, constant)
            continue
        replace_by_source(graph, node, source)
        changed = True
    return changed


def _normalizes_input(node: ir.Node, source: ir.Value, constant: Array) -> bool:
    """Whether a constant brings what comes from outside to one size, as (x - mean) ÷ std of features does: a layer that
    read what stands before it would have few codes for small channels in 8 bits, whose scale is that of all channels.
    """
    if not _is_from_outside(source):
        return False
    maker = source.producer()
    before = None if maker is None else constant_operand(maker)
    if node.op_type in SHIFTED:
        scaled = maker is not None and before is not None and maker.op_type in SCALED
        return bool(np.abs(constant).max(initial=0) > (_MOST_SHIFT if scaled else _MOST_SHIFT_ALONE))
    factor = np.abs(SCALED[node.op_type](np.float32(1), constant)).reshape(-1)
    if factor.max() > _MOST_RATIO * factor.min():
        return True
    if maker is None or before is None or maker.op_type not in SHIFTED:
        return False
    shift = np.abs(before[1]).reshape(-1)
    shift = shift * factor if 1 in (shift.size, factor.size) or shift.size == factor.size else shift * factor.max()
    return bool(shift.max() > _MOST_SHIFT)


def _is_from_outside(value: ir.Value) -> bool:
    """Whether it is an input of the model, or what only moves, joins, shifts or scales inputs."""
    node = value.producer()
    if node is None:
        return value.is_graph_input()
    if node.domain or node.op_type not in _MOVES:
        return False
    return any(each is not None and each.const_value is None and _is_from_outside(each) for each in node.inputs)


def _ends_fused_pattern(source: ir.Value) -> bool:
    """Whether a constant applied to a value is the last of a GELU, or the scale or bias of a LayerNorm.

    Engines compute these as one op, if all of it is there.
    """
    maker = source.producer()
    if maker is not None and maker.op_type == "Mul" and (scaled := constant_operand(maker)) is not None:
        return _ends_fused_pattern(scaled[0])  # the bias of a LayerNorm
    makers = [value.producer() for value in maker.inputs if value is not None] if maker is not None else []
    if maker is None or maker.op_type not in ("Div", "Mul"):
        return False
    if any(each is not None and each.op_type in ("Sqrt", "Reciprocal", "Pow") for each in makers):
        return True
    sums = [each for each in makers if each is not None and each.op_type == "Add"]
    grown = [value.producer() for each in sums for value in each.inputs if value is not None]
    return any(each is not None and each.op_type in ("Erf", "Tanh") for each in grown)


def _is_foldable(layer: ir.Node) -> bool:
    """Whether it is a layer with a constant float32 weight that is used as it is."""
    if layer.domain or layer.op_type not in _WEIGHTED or constant_of(layer.inputs[1]) is None:
        return False
    if layer.op_type == "MatMul":
        return len(_weight(layer).shape) == 2
    if layer.op_type != "Gemm":
        return len(layer.inputs) < 3 or layer.inputs[2] is None or constant_of(layer.inputs[2]) is not None
    plain = all(layer.attributes.get(name) is None for name in ("alpha", "beta")) and not _flag(layer, "transA")
    return plain and (len(layer.inputs) < 3 or layer.inputs[2] is None or constant_of(layer.inputs[2]) is not None)


def _flag(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return 0 if attribute is None else attribute.as_int()


def _per_channel(constant: Array, value: ir.Value, axis: int) -> Array | None:
    """One number, or one for each channel along `axis` of a value that the constant is applied to; None for others."""
    if constant.size == 1:
        return constant.reshape(())
    if value.shape is None:
        return None
    rank = len(value.shape)
    shape = (1,) * (rank - constant.ndim) + constant.shape
    at = axis % rank
    if len(shape) != rank or any(size != 1 for index, size in enumerate(shape) if index != at):
        return None
    return constant.reshape(-1) if value.shape[at] == constant.size else None


def _weight(layer: ir.Node) -> Array:
    weight = constant_of(layer.inputs[1])
    assert weight is not None
    return weight


def _bias(layer: ir.Node) -> Array | None:
    return constant_of(layer.inputs[2]) if len(layer.inputs) > 2 else None


def _fold_output(graph: ir.Graph, layer: ir.Node, op: str, constant: Array) -> bool:
    """Apply a constant to what a layer makes; False where it has no place in it."""
    bias = _bias(layer)
    if op in SHIFTED:
        if layer.op_type == "MatMul":
            return False
        _add_to_bias(graph, layer, SHIFTED[op](np.float32(0), constant))
        return True
    apply = SCALED[op]
    set_constant(graph, layer, 1, _along_outputs(layer, apply, constant))
    if bias is not None:
        set_constant(graph, layer, 2, apply(bias, constant))
    return True


def _along_outputs(layer: ir.Node, apply: Callable[[Array, Array], Array], constant: Array) -> Array:
    weight = _weight(layer)
    if not constant.ndim:
        return apply(weight, constant)
    if layer.op_type == "ConvTranspose":  # (inputs, outputs of a group, …)
        groups = _groups(layer)
        spread = weight.reshape(groups, -1, *weight.shape[1:])
        return apply(spread, constant.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)
    if layer.op_type == "MatMul" or (layer.op_type == "Gemm" and not _flag(layer, "transB")):
        return apply(weight, constant)
    return apply(weight, constant.reshape(-1, *[1] * (weight.ndim - 1)))


def _groups(layer: ir.Node) -> int:
    attribute = layer.attributes.get("group")
    return 1 if attribute is None else attribute.as_int()


def _by_input(layer: ir.Node, constant: Array) -> Array:
    """One number for each input channel, in the shape that broadcasts to the weight."""
    weight = _weight(layer)
    if not constant.ndim:
        return constant
    if layer.op_type == "Conv":  # (outputs, inputs of a group, …)
        parts = np.repeat(constant.reshape(_groups(layer), -1), weight.shape[0] // _groups(layer), axis=0)
        return parts.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
    if layer.op_type == "Gemm" and _flag(layer, "transB"):
        return constant
    return constant.reshape(-1, *[1] * (weight.ndim - 1))


def _multiply_inputs(graph: ir.Graph, layer: ir.Node, factor: Array) -> None:
    set_constant(graph, layer, 1, _weight(layer) * _by_input(layer, factor))


def _takes_offset(layer: ir.Node) -> bool:
    """Whether an offset of the input is one of the output: nothing is padded, and there is a bias to take it."""
    if layer.op_type == "Gemm":
        return True
    pads, automatic = layer.attributes.get("pads"), layer.attributes.get("auto_pad")
    padded = pads is not None and any(pads.as_ints())
    return (
        layer.op_type == "Conv" and not padded and (automatic is None or automatic.as_string() in ("NOTSET", "VALID"))
    )


def _effect_of(layer: ir.Node, offset: Array) -> Array:
    """What an offset of a layer's input adds to each of its outputs."""
    product = (_weight(layer).astype(np.float64) * _by_input(layer, offset)).astype(np.float64)
    outputs = 1 if layer.op_type == "Gemm" and not _flag(layer, "transB") else 0
    summed = product.sum(axis=tuple(axis for axis in range(product.ndim) if axis != outputs))
    return np.asarray(summed, np.float32)


def _add_to_bias(graph: ir.Graph, layer: ir.Node, offset: Array) -> None:
    bias, weight = _bias(layer), _weight(layer)
    if bias is None:
        turned = layer.op_type == "Gemm" and not _flag(layer, "transB")
        outputs = weight.shape[1] * _groups(layer) if layer.op_type == "ConvTranspose" else weight.shape[int(turned)]
        bias = np.zeros(outputs, np.float32)
    set_constant(graph, layer, 2, bias + offset)


def _swap_factor_and_offset(graph: ir.Graph, node: ir.Node, source: ir.Value, offset: Array) -> bool:
    """Let an offset come before the factor that it stands behind, so that layers behind it can take the factor."""
    scaling = source.producer()
    operands = None if scaling is None or scaling.op_type not in SCALED else constant_operand(scaling)
    if scaling is None or operands is None or not is_read_once(source) or operands[1].size not in (1, offset.size):
        return False
    factor = SCALED[scaling.op_type](np.float32(1), operands[1])
    with np.errstate(all="ignore"):
        moved = np.asarray(offset / factor, np.float32)
    if not np.isfinite(moved).all() or moved.ndim > len(node.outputs[0].shape or ()):
        return False
    result, at = node.outputs[0], [value is source for value in node.inputs].index(True)
    readers = [(use.node, use.idx) for use in result.uses()]
    set_constant(graph, node, 1 - at, moved)
    node.replace_input_with(at, operands[0])
    scaling.replace_input_with([value is operands[0] for value in scaling.inputs].index(True), result)
    for reader, index in readers:
        reader.replace_input_with(index, source)
    graph.remove(scaling)
    graph.insert_after(node, scaling)
    source.name, result.name = result.name, source.name  # each names the numbers that it named before, or new ones
    return True
