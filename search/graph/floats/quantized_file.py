"""Files that are quantized already: the float graph that they stand for, and what they say of INT8 themselves.

Quantize and Dequantize are left out, ONNX Runtime's QLinear ops become the ops that they compute, and constants are
dequantized exactly as engines do it. A Quantize that ends at zero also cuts off what is negative: quantizers drop a
Relu in front of it, so it is put back where nothing else cuts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from numpy.typing import NDArray

from search.graph.floats.bounds import UNBOUNDED, bounds_of_values
from search.graph.floats.codes import (
    Form,
    UnreadError,
    add_constant,
    less,
    limits_of,
    nearest,
    numbers_of,
    spread,
    zero_of,
)
from search.graph.floats.own_scales import OwnScales, scales_in
from search.graph.grouping import WEIGHTED, Group
from search.values import TensorRange

Array = NDArray[Any]

# Ops that move or select codes, so that they do the same with the numbers.
_MOVES = frozenset(
    "Concat DepthToSpace Expand Flatten Gather Identity MaxPool Reshape Resize Slice SpaceToDepth Split Squeeze Tile "
    "Transpose Unsqueeze".split()
)
# QLinear op → the op, and how many inputs it reads, each followed by scale and zero point; the output's follow.
_QLINEAR = {
    "QLinearAdd": ("Add", 2),
    "QLinearAveragePool": ("AveragePool", 1),
    "QLinearConv": ("Conv", 2),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1),
    "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearMatMul": ("MatMul", 2),
    "QLinearMul": ("Mul", 2),
    "QLinearReduceMean": ("ReduceMean", 1),
    "QLinearSigmoid": ("Sigmoid", 1),
    "QLinearSoftmax": ("Softmax", 1),
    "QGemm": ("Gemm", 2),
}
_DYNAMIC = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
COMPUTES_ON_CODES = re.compile(
    r"QLinear\w+|\w+Integer(ToFloat)?|DynamicQuantize(MatMul|LSTM)|QGemm|QAttention|\w+NBits"
)
_ONLY_IN_QLINEAR = frozenset({"channels_last", "opset"})
_MOST_CLIP = 255  # of an image; of larger numbers any is near a whole one
_BESIDE = 1e-4  # quantization-aware training has scales of 5.9998 ÷ 255 for a Clip at 6


def is_quantized_op(op: str) -> bool:
    """Whether an op computes with integer codes, or converts to or from them."""
    return op in ("QuantizeLinear", "DequantizeLinear") or COMPUTES_ON_CODES.fullmatch(op) is not None


def take_out_quantization(model: ir.Model) -> Unquantized:
    """Replace, in place, what is quantized by the floats that it stands for.

    An op that cannot be read so stays as it is, with a Quantize in front of it where it needs one.

    Args:
        model: all constants are initializers.
    """
    conversion = Unquantized(model)
    conversion.run()
    return conversion


class Unquantized:
    """A model whose quantization is taken out, and what of it has to be found again in the clean model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._forms: dict[ir.Value, Form] = {}
        self._constants: dict[ir.Value, tuple[Array, Array]] = {}  # dequantized → its codes less the zero point, scales
        self._clamps: dict[tuple[ir.Value, float], ir.Node] = {}  # by what is cut, and up to where
        self._ranges: list[tuple[ir.Value, TensorRange]] = []
        self._weights: dict[str, tuple[Array, Array]] = {}

    def run(self) -> None:
        for graph in self._model.graphs():
            for node in list(graph):
                with suppress(UnreadError):
                    self._rewrite(node)
        self._note_weights()
        passes.RemoveUnusedNodesPass()(self._model)
        # Take out what cuts nothing, because the values cannot be negative anyway.
        bounds = bounds_of_values(self._model.graph)
        for (source, limit), clamp in self._clamps.items():
            low, high = bounds.get(source.name or "", UNBOUNDED)
            if clamp.graph is self._model.graph and low >= 0 and high <= limit:
                made = clamp.outputs[0]
                self._ranges = [
                    (source if value is made else value, tensor_range) for value, tensor_range in self._ranges
                ]
                self._replace(clamp, made, source)
                self._model.graph.remove(clamp, safe=True)

    def own_scales(self, graph: ir.Graph, groups: Sequence[Group]) -> OwnScales:
        """The file's scales by names of the clean graph, without those of weights that it has changed otherwise."""
        nodes = {node.name: node for node in graph}
        weights = {}
        for anchor in (anchor for group in groups for anchor in group.anchors):
            constants = [v for v in nodes[anchor].inputs[:2] if v is not None and v.const_value is not None]
            if anchor in self._weights and constants and constants[0].const_value is not None:
                scales = scales_in(constants[0].const_value.numpy(), *self._weights[anchor])
                if scales is not None:
                    weights[anchor] = scales
        return OwnScales({value.name or "": tensor_range for value, tensor_range in reversed(self._ranges)}, weights)

    # -- one node ------------------------------------------------------------------------------------------------------

    def _rewrite(self, node: ir.Node) -> None:
        if node.op_type == "QuantizeLinear":
            self._quantize(node)
        elif node.op_type == "DequantizeLinear":
            self._dequantize(node)
        elif node.op_type in _QLINEAR:
            self._qlinear(node, *_QLINEAR[node.op_type])
        elif node.op_type == "QLinearConcat":
            # The output's scale and zero point come first, then each input with its own.
            inputs = [self._number(node, place, axis=None) for place in range(2, len(node.inputs), 3)]
            made = ir.Node("", "Concat", inputs, list(node.attributes.values()), num_outputs=1, name=node.name)
            self._take_over(node, self._insert(made, node), 0)
        elif node.op_type in _DYNAMIC:
            self._dynamic(node)
        elif node.op_type in _MOVES and node.inputs and node.inputs[0] in self._forms:
            self._move(node)

    def _quantize(self, node: ir.Node) -> None:
        x, scale = node.inputs[0], numbers_of(node, 1)
        if x is None or scale is None:
            return  # a scale that is computed: an ordinary op, which stays
        zero = zero_of(node, 2, node.outputs[0].dtype)
        axis = node.attributes.get_int("axis", 1) or 0
        if x.const_value is None:
            self._know(node.outputs[0], Form(self._clamp_from_zero(x, scale, zero), scale, zero, axis))
            return
        array = x.const_value.numpy()
        steps, offsets = (spread(part, axis, array.shape, node) for part in (scale, zero))
        constant = self._constant(node, nearest(array / steps, offsets), steps)
        self._forms[node.outputs[0]] = Form(constant, scale, zero, axis)

    def _dequantize(self, node: ir.Node) -> None:
        codes, scale = node.inputs[0], numbers_of(node, 1)
        if codes is None or scale is None:
            return
        form = self._forms.get(codes)
        if form is None and codes.const_value is not None:
            array, axis = codes.const_value.numpy(), node.attributes.get_int("axis", 1) or 0
            zero, steps = zero_of(node, 2, codes.dtype), spread(scale, axis, array.shape, node)
            offsets = spread(zero, axis, array.shape, node)
            form = Form(self._constant(node, less(array, offsets), steps), scale, zero, axis)
        elif form is None:
            return  # codes that are computed, or an input
        elif not np.array_equal(form.scale, scale):
            raise UnreadError
        self._replace(node, node.outputs[0], form.value)

    def _qlinear(self, node: ir.Node, op: str, count: int) -> None:
        """An op on codes: their numbers go in, and what comes out is quantized behind it."""
        places = [3 * i for i in range(count)]
        end = 3 * count
        if op == "Gemm":  # its bias stands before the output's scale
            bias, output = end, end + 1
        else:
            output, bias = end, end + 2
        inputs = [self._number(node, place, axis=0 if op == "Conv" and place else None) for place in places]
        if len(node.inputs) > bias and node.inputs[bias] is not None:
            inputs.append(self._bias(node, bias))
        attributes = {k: a for k, a in node.attributes.items() if k not in _ONLY_IN_QLINEAR}
        if node.attributes.get_int("channels_last"):
            raise UnreadError
        made = self._insert(ir.Node("", op, inputs, list(attributes.values()), num_outputs=1, name=node.name), node)
        if len(node.inputs) <= output:
            self._replace(node, node.outputs[0], made)
            return
        self._take_over(node, made, output)

    def _take_over(self, node: ir.Node, made: ir.Value, place: int) -> None:
        """Let what reads a node's codes read them behind a Quantize; it is of no use where only numbers are read."""
        codes, scale = node.outputs[0], numbers_of(node, place)
        if scale is None:
            raise UnreadError
        zero = zero_of(node, place + 1, codes.dtype)
        made.name = f"{codes.name}/float"
        form = Form(self._clamp_from_zero(made, scale, zero), scale, zero, 1)
        parts = [form.value, *node.inputs[place : place + 2]]
        again = ir.Node("", "QuantizeLinear", parts, num_outputs=1, name=f"{node.name}/q")
        self._insert(again, node).type = codes.type
        self._replace(node, codes, again.outputs[0])
        self._know(again.outputs[0], form)

    def _dynamic(self, node: ir.Node) -> None:
        """`DynamicQuantizeLinear → MatMulInteger → Cast → Mul` of the product of both scales, and its like for Conv."""
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        weight, cast = node.inputs[1], _only_user(node.outputs[0])
        mul = _only_user(cast.outputs[0]) if cast is not None and cast.op_type == "Cast" else None
        scale = _other(mul, cast.outputs[0]) if cast is not None and mul is not None and mul.op_type == "Mul" else None
        product = scale.producer() if scale is not None else None
        if (
            source is None
            or source.op_type != "DynamicQuantizeLinear"
            or weight is None
            or weight.const_value is None
            or product is None
            or product.op_type != "Mul"
            or source.outputs[1] not in product.inputs
            or mul is None
        ):
            raise UnreadError
        weight_scale = _other(product, source.outputs[1])
        steps = None if weight_scale is None or weight_scale.const_value is None else weight_scale.const_value.numpy()
        if steps is None:
            raise UnreadError
        op, codes = _DYNAMIC[node.op_type], weight.const_value.numpy()
        axis = 0 if op == "Conv" else codes.ndim - 1
        zero = zero_of(node, 3, weight.dtype) if len(node.inputs) > 3 else np.zeros((), np.int8)
        offsets = spread(zero, axis, codes.shape, node)
        constant = self._constant(node, less(codes, offsets), spread(steps.reshape(-1), axis, codes.shape, node))
        inputs = [source.inputs[0], constant]
        made = self._insert(ir.Node("", op, inputs, list(node.attributes.values()), num_outputs=1, name=node.name), mul)
        self._replace(mul, mul.outputs[0], made)

    def _move(self, node: ir.Node) -> None:
        """An op that hands codes on: the same op on their numbers, beside it while anything reads codes."""
        forms = [self._forms.get(value) if value is not None else None for value in node.inputs]
        first = forms[0]
        assert first is not None
        moved = forms if node.op_type == "Concat" else forms[:1]
        if any(form is None or not np.array_equal(form.scale, first.scale) for form in moved):
            raise UnreadError
        if first.scale.size != 1:
            raise UnreadError
        inputs = [form.value for form in moved if form is not None] + list(node.inputs[len(moved) :])
        attributes = list(node.attributes.values())
        copy = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(node.outputs), name=node.name)
        self._insert(copy, node)
        for codes, made in zip(node.outputs, copy.outputs, strict=True):
            made.name = f"{codes.name}/float"
            made.type, made.shape = ir.TensorType(ir.DataType.FLOAT), codes.shape
            self._forms[codes] = replace(first, value=made)

    # -- numbers of codes ----------------------------------------------------------------------------------------------

    def _know(self, codes: ir.Value, form: Form) -> None:
        self._forms[codes] = form
        if form.range is not None:
            self._ranges.append((form.value, form.range))

    def _number(self, node: ir.Node, place: int, axis: int | None) -> ir.Value:
        """The float that an input of a QLinear op stands for; `axis`: of a weight that has several scales."""
        codes, scale = node.inputs[place], numbers_of(node, place + 1)
        if codes is None or scale is None:
            raise UnreadError
        if codes in self._forms:
            return self._forms[codes].value
        zero = zero_of(node, place + 2, codes.dtype)
        if codes.const_value is not None:
            array = codes.const_value.numpy()
            axis = array.ndim - 1 if axis is None else axis
            if node.op_type == "QGemm" and node.attributes.get_int("transB"):
                axis = 0
            offsets = spread(zero, axis, array.shape, node)
            return self._constant(node, less(array, offsets), spread(scale, axis, array.shape, node), f"input{place}")
        parts = list(node.inputs[place : place + 3])
        return self._insert(ir.Node("", "DequantizeLinear", parts, num_outputs=1, name=f"{node.name}/dq{place}"), node)

    def _bias(self, node: ir.Node, place: int) -> ir.Value:
        """INT32 codes that count products of both scales."""
        value, steps = node.inputs[place], [numbers_of(node, at) for at in (1, 4)]
        if value is None or value.const_value is None or steps[0] is None or steps[1] is None:
            raise UnreadError
        scale = np.asarray(steps[0].reshape(-1) * steps[1].reshape(-1), np.float32)
        codes = value.const_value.numpy()
        return self._constant(node, codes, spread(scale, codes.ndim - 1, codes.shape, node), f"input{place}")

    def _constant(self, node: ir.Node, codes: Array, steps: Array, what: str = "") -> ir.Value:
        """A float constant: codes less their zero point, times steps that broadcast to them."""
        array = np.asarray(codes.astype(np.float32) * steps, np.float32)
        base = f"{node.outputs[0].name}/{what}" if what else node.outputs[0].name
        assert node.graph is not None
        made = add_constant(node.graph, f"{base}/number", array)
        if codes.dtype.kind == "i":
            self._constants[made] = codes, steps
        return made

    def _clamp_from_zero(self, value: ir.Value, scale: Array, zero: Array) -> ir.Value:
        """What a Quantize lets through of a computed value: from its zero on, if that is its lowest code.

        A limit at a whole number, as 6 is, or hardly beside it is that of a Clip; any other is what calibration found.
        """
        maker = value.producer()
        if maker is None or maker.op_type in _MOVES or scale.size != 1 or zero.dtype.kind not in "iu":
            return value
        lowest, highest = limits_of(zero)
        if int(zero.item()) != lowest:
            return value
        step = float(scale.item())
        top = (highest - lowest) * step
        is_clip = 1 <= round(top) <= _MOST_CLIP and abs(top - round(top)) <= min(step / 2, _BESIDE * top)
        limit = float(round(top)) if is_clip else math.inf
        if (value, limit) not in self._clamps:
            self._clamps[value, limit] = self._insert_clamp(value, maker, limit)
        return self._clamps[value, limit].outputs[0]

    def _insert_clamp(self, value: ir.Value, maker: ir.Node, limit: float) -> ir.Node:
        assert maker.graph is not None
        op, inputs = ("Relu", [value]) if limit == math.inf else ("Clip", [value])
        for number in (0.0, limit) if op == "Clip" else ():
            inputs.append(add_constant(maker.graph, f"{value.name}/limit{number:g}", np.array(number, np.float32)))
        clamp = ir.Node("", op, inputs, num_outputs=1, name=f"{maker.name}/{op.lower()}")
        clamp.outputs[0].name = f"{value.name}/{op.lower()}"
        clamp.outputs[0].type, clamp.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        maker.graph.insert_after(maker, clamp)
        return clamp

    # -- edits ---------------------------------------------------------------------------------------------------------

    def _insert(self, made: ir.Node, before: ir.Node) -> ir.Value:
        assert before.graph is not None
        before.graph.insert_before(before, made)
        out = made.outputs[0]
        out.name = out.name or f"{before.outputs[0].name}/{made.op_type.lower()}"
        out.type, out.shape = ir.TensorType(ir.DataType.FLOAT), before.outputs[0].shape
        return out

    def _replace(self, node: ir.Node, old: ir.Value, new: ir.Value) -> None:
        """Let everything that read a value read another; an output of the model keeps its name."""
        if not old.is_graph_output():
            old.replace_all_uses_with(new)
            return
        name = old.name
        if new.producer() is None or new.is_graph_output():
            new = self._insert(ir.Node("", "Identity", [new], num_outputs=1, name=f"{node.name}/output"), node)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = f"{name}/codes", name

    def _note_weights(self) -> None:
        """Which weighted ops read a constant that was dequantized; an op without a name is given one."""
        for node in self._model.graph:
            for value in node.inputs[:2] if node.op_type in WEIGHTED else ():
                if value in self._constants:
                    node.name = node.name or f"{node.op_type}_{node.outputs[0].name}"
                    self._weights[node.name] = self._constants[value]


def _only_user(value: ir.Value) -> ir.Node | None:
    users = value.consumers()
    return users[0] if len(users) == 1 and not value.is_graph_output() else None


def _other(node: ir.Node | None, value: ir.Value) -> ir.Value | None:
    return None if node is None else next((each for each in node.inputs if each is not value), None)
