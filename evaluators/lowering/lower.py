"""Write an assignment into an ONNX graph as Q/DQ and Cast: the only place that writes precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from numpy.typing import NDArray
from onnx import version_converter

from evaluators.calibration.bounds import UNBOUNDED, bounds_of_values, cut
from evaluators.calibration.scales import activation_scale, weight_scales
from evaluators.lowering.biases import Bias, find_bias
from evaluators.lowering.constants import Constants, Names, array_of
from evaluators.lowering.placement import (
    HALF_SAFE,
    SAME_SCALE,
    Placement,
    Plan,
    activation_indices,
    becomes_int8,
    float_inputs,
    plan,
)
from search.errors import ModelError
from search.graph.element_types import settle_types
from search.graph.grouping import is_constant
from search.graph.model import Group, Model
from search.values import FP16_MAX, Assignment, Precision, Ranges

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
_BIAS_LIMIT = 2.0**30  # leaves the INT32 accumulator room for the products
_HALF_OPSET = 19  # the first whose Q/DQ take float16
# Ops that hand on one of their inputs, element by element, as it is.
_SELECTS = frozenset({"Where"})
# Ops whose further inputs stay what they are, say the scales of a Resize.
_DATA_ONLY = frozenset({"Resize", "Upsample"})


def lower(model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> ir.Model:
    """Return a new model in which every group runs in its assigned precision.

    A pure function: equal arguments give byte-equal models. Inputs and outputs keep names and types; nodes of the
    clean model keep their names, new ones are named after the tensor they convert.

    Args:
        model: the clean model; not changed.
        assignment: a precision for every group of the model.
        ranges: calibrated range of every float tensor.
        placement: where the target wants Q/DQ.

    Raises:
        ModelError: a tensor that must be quantized has no range, or the model cannot reach the opset that
            half precision needs.
    """
    copy = model.graph.clone()
    uses_half = any(p is Precision.FP16 or (p is Precision.INT8 and placement.half) for p in assignment.values())
    if uses_half:
        copy = _at_half_opset(copy)
    _Lowering(copy, model, assignment, ranges, placement).write()
    copy = passes.RemoveUnusedNodesPass()(copy).model
    return passes.TopologicalSortPass()(copy).model


def expose_groups(lowered: ir.Model, model: Model) -> ir.Model:
    """A copy of a lowered model whose outputs are the outputs of its groups, each named by group id."""
    copy = lowered.clone()
    graph = copy.graph
    values = {value.name: value for node in graph for value in node.outputs}
    graph.outputs.clear()
    _free_names(graph, {group.id for group in model.groups})
    for group in model.groups:
        value = values.get(group.output) or values[f"{group.output}/raw"]
        out = ir.Value(name=group.id, type=ir.TensorType(FLOAT))
        graph.append(
            ir.Node("", "Cast", [value], [ir.AttrInt64("to", FLOAT)], outputs=[out], name=f"{group.id}/expose")
        )
        graph.outputs.append(out)
    return passes.RemoveUnusedNodesPass()(copy).model


def _free_names(graph: ir.Graph, wanted: set[str]) -> None:
    names = Names(graph)
    for value in (*graph.initializers.values(), *(value for node in graph for value in node.outputs)):
        if value.name in wanted:
            value.name = names.fresh(value.name)


def _at_half_opset(model: ir.Model) -> ir.Model:
    if model.graph.opset_imports.get("", 0) >= _HALF_OPSET:
        return model
    try:
        converted = version_converter.convert_version(ir.to_proto(model), _HALF_OPSET)
    except Exception as error:
        raise ModelError(
            f"lowering to half precision needs opset {_HALF_OPSET}, and the model cannot be converted: {error}. "
            f"Export it with opset {_HALF_OPSET} or newer."
        ) from error
    found = passes.ShapeInferencePass(strict_mode=False)(ir.from_proto(converted)).model
    settle_types(found)
    return found


class _Lowering:
    """Rewrites one clone. Values are asked for in a form (a float type, or INT8 read back as one) and made once."""

    def __init__(
        self, copy: ir.Model, model: Model, assignment: Assignment, ranges: Ranges, placement: Placement
    ) -> None:
        self.graph = copy.graph
        self.ranges = ranges
        self.placement = placement
        self.owner = {name: group for group in model.groups for name in group.nodes}
        self.anchors = {name for group in model.groups for name in group.anchors}
        self.assignment = assignment
        self.plan: Plan = plan(self.graph, model, assignment, placement)
        self.dtypes: dict[ir.Value, ir.DataType] = {}
        self.made: dict[tuple[object, ...], ir.Value] = {}
        self.names = Names(self.graph)
        self.constants = Constants(self.graph, self.names)
        # Read before anything is rewritten, while every float tensor still has its own type.
        self.floats = {node: float_inputs(node) for node in self.graph.all_nodes()}
        self.bounds = {} if placement.symmetric else bounds_of_values(self.graph)

    def write(self) -> None:
        nodes = list(self.graph)
        outputs = list(self.graph.outputs)
        for node in nodes:
            self._rewrite(node)
        for index, value in enumerate(outputs):
            self._keep_output(index, value)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _rewrite(self, node: ir.Node) -> None:
        dtype = self._dtype_of(node)
        floats = self.floats[node]
        if node.op_type in _DATA_ONLY:
            floats = floats[:1]
        for i in floats:
            value = node.inputs[i]
            assert value is not None
            node.replace_input_with(i, self._read(node, i, value, dtype))
        if node.name in self.anchors and self._precision(node) is Precision.INT8:
            self._quantize_weights(node, dtype)
        elif dtype is HALF:
            self._halve_constants(node, range(len(node.inputs)))
        self._rewrite_captures(node)
        for output in node.outputs:
            if output.dtype is FLOAT:
                self.dtypes[output] = dtype
                if dtype is HALF:
                    output.type = ir.TensorType(HALF)

    def _read(self, node: ir.Node, i: int, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if (node, i) in self.plan.reads:
            return self._quantized(value, dtype)
        if value in self.plan.stored and i == 0 and self._shields(node):
            return self._quantized_by_channel(value, node)
        return self._plain(value, dtype)

    def _shields(self, node: ir.Node) -> bool:
        """Whether a node, or one behind it that it only moves values to, must not see a DQ that it could take in."""
        if self._must_stay_float(node):
            return True
        moves = node.op_type in SAME_SCALE and (node, 0) not in self.plan.reads
        return moves and any(self._shields(user) for user in node.outputs[0].consumers())

    def _must_stay_float(self, node: ir.Node) -> bool:
        float_anchor = node.name in self.anchors and self._precision(node) is Precision.FP32
        return float_anchor and becomes_int8(node, self.plan)

    def _rewrite_captures(self, node: ir.Node) -> None:
        """Bodies of If and Loop stay FP32, so what they capture must be."""
        for attribute in node.attributes.values():
            for body in _bodies(attribute):
                inner = {value for n in body for value in n.outputs} | set(body.inputs)
                for inside in body.all_nodes():
                    for i in self.floats[inside]:
                        value = inside.inputs[i]
                        if value is not None and value in self.dtypes and value not in inner:
                            inside.replace_input_with(i, self._plain(value, FLOAT))

    def _precision(self, node: ir.Node) -> Precision | None:
        group = self.owner.get(node.name or "")
        return self.assignment[group.id] if group is not None else None

    def _dtype_of(self, node: ir.Node) -> ir.DataType:
        """The float type a node computes in (an INT8 op: its float side)."""
        precision = self._precision(node)
        if precision is Precision.FP16:
            return HALF
        if precision is Precision.INT8:
            return HALF if self.placement.half and self._fits_half(self.owner[node.name or ""]) else FLOAT
        if precision is None and node.op_type in HALF_SAFE:
            floats = [value for value in (node.inputs[i] for i in self.floats[node]) if value is not None]
            half = bool(floats) and all(self.dtypes.get(value, FLOAT) is HALF for value in floats)
            fits = self._in_half_range(value.name or "" for value in node.outputs)
            typed = all(value.dtype is not None for value in node.outputs)  # else its readers could not know
            if typed and fits and (half or self._selects_for_half(node)):
                return HALF
        return FLOAT

    def _selects_for_half(self, node: ir.Node) -> bool:
        """Whether a Where may select among halves because all its readers would round what it gives to half.

        Rounding first gives the same numbers. TensorRT refuses a Cast between the Where of a masked attention and its
        second product ("CHECK(is_softmax(...))").
        """
        if node.op_type not in _SELECTS or node.outputs[0].is_graph_output():
            return False
        uses = list(node.outputs[0].uses())
        if not uses or not all(self._reads_half(user, i) for user, i in uses):
            return False
        constants = [value for value in node.inputs if value is not None and is_constant(value)]
        floats = [array_of(value) for value in constants if value.dtype is FLOAT]
        chosen = [value for value in (node.inputs[i] for i in self.floats[node]) if value is not None]
        fits = all(np.abs(array).max(initial=0.0) <= FP16_MAX for array in floats)
        return fits and self._in_half_range(value.name or "" for value in chosen)

    def _reads_half(self, user: ir.Node, index: int) -> bool:
        if user.graph is not self.graph or (user, index) in self.plan.reads:
            return False
        return self._precision(user) is not None and self._dtype_of(user) is HALF

    def _fits_half(self, group: Group) -> bool:
        return self._in_half_range((*group.inputs, *group.skips, *group.tensors))

    def _in_half_range(self, names: Iterable[str]) -> bool:
        seen = [self.ranges.observed[name] for name in names if name in self.ranges.observed]
        return all(r.magnitude <= FP16_MAX for r in seen)

    # -- activations -----------------------------------------------------------------------------------------------

    def _plain(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if value in self.plan.stored:
            return self._quantized(value, dtype)
        if self.dtypes.get(value, FLOAT) is dtype:
            return value
        key = (value, "cast", dtype)
        if key not in self.made:
            name = f"{value.name}/{'half' if dtype is HALF else 'float'}"
            cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], num_outputs=1, name=name)
            self.made[key] = self._insert(cast, value, dtype)
        return self.made[key]

    def _quantized(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value after a round trip through INT8, read back as `dtype`."""
        key = (value, "dq", dtype)
        if key not in self.made:
            q = self._q(value)
            scale, zero = self._scale(value, dtype)
            name = f"{value.name}/dq" + ("16" if dtype is HALF else "")
            self.made[key] = self._insert(
                ir.Node("", "DequantizeLinear", [q, scale, zero], num_outputs=1, name=name), q, dtype
            )
        return self.made[key]

    def _quantized_by_channel(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """The same numbers by a DQ with the scale repeated per channel: ONNX Runtime quantizes a float Conv or Gemm
        between a per-tensor DQ and a Q without being asked, one behind a per-channel DQ it leaves alone."""
        channels = value.shape[1] if value.shape is not None and len(value.shape) > 1 else _channels_read(reader)
        if not isinstance(channels, int):
            return self._quantized(value, FLOAT)
        key = (value, "dq", "channels")
        if key not in self.made:
            q = self._q(value)
            scale, zero = (np.repeat(array_of(part), channels) for part in self._scale(value, FLOAT))
            root = self.plan.root(value).name
            parts = [
                q,
                self.constants.add(f"{root}/scale/{channels}", scale),
                self.constants.add(f"{root}/zero/{channels}", zero),
            ]
            node = ir.Node(
                "",
                "DequantizeLinear",
                parts,
                [ir.AttrInt64("axis", 1)],
                num_outputs=1,
                name=f"{value.name}/dq/{channels}",
            )
            self.made[key] = self._insert(node, q, FLOAT)
        return self.made[key]

    def _q(self, value: ir.Value) -> ir.Value:
        key = (value, "q")
        if key not in self.made:
            dtype = self.dtypes.get(value, FLOAT)
            scale, zero = self._scale(value, dtype)
            node = ir.Node("", "QuantizeLinear", [value, scale, zero], num_outputs=1, name=f"{value.name}/q")
            integer = ir.DataType.INT8 if self.placement.symmetric else ir.DataType.UINT8
            self.made[key] = self._insert(node, value, integer)
        return self.made[key]

    def _insert(self, node: ir.Node, after: ir.Value, dtype: ir.DataType) -> ir.Value:
        out = node.outputs[0]
        node.name = self.names.fresh(node.name or "")
        out.name, out.type, out.shape = self.names.fresh(f"{node.name}_out"), ir.TensorType(dtype), after.shape
        producer = after.producer()
        if producer is None:
            self.graph.insert_before(self.graph[0], node)
        else:
            self.graph.insert_after(producer, node)
        return out

    def _scale(self, value: ir.Value, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
        scale, zero = self._scale_number(value)
        integer = np.int8 if self.placement.symmetric else np.uint8
        root = self.plan.root(value).name
        scale_name = f"{root}/scale" + ("16" if dtype is HALF else "")
        return (
            self.constants.add(scale_name, np.asarray(scale, np.float16 if dtype is HALF else np.float32)),
            self.constants.add(f"{root}/zero", np.asarray(zero, integer)),
        )

    def _scale_number(self, value: ir.Value) -> tuple[float, int]:
        root = self.plan.root(value)
        found = self.ranges.tensors.get(root.name or "")
        if found is None:
            raise ModelError(
                f"quantizing tensor {root.name!r}: calibration has no range for it. Calibrate again with data that "
                "reach it, or keep its group in high precision."
            )
        symmetric = self.placement.symmetric
        # A cache holds magnitudes alone: with minus six to six behind a Relu6 no engine would absorb the Relu6.
        found = cut(found, self.bounds.get(root.name or "", UNBOUNDED))
        scale, zero = activation_scale(found, signed=symmetric, symmetric=symmetric)
        return (float(_representable(np.asarray(scale, np.float32))) if self.placement.half else scale), zero

    # -- constants -------------------------------------------------------------------------------------------------

    def _quantize_weights(self, node: ir.Node, dtype: ir.DataType) -> None:
        index = next(i for i in (0, 1) if i not in activation_indices(node))
        weight = node.inputs[index]
        assert weight is not None
        array = array_of(weight)
        axis = channel_axis(node, array)
        scales = weight_scales(array, axis, self.placement.weight_bits)
        if self.placement.half:
            scales = _representable(scales)
        bias = find_bias(node, array, self.owner) if self.placement.int32_bias else None
        if bias is not None:
            others = tuple(i for i in range(array.ndim) if i != axis) if axis is not None else None
            scales = self._quantize_bias(node, bias, scales, np.asarray(~array.any(axis=others)))
        elif len(node.inputs) > 2 and dtype is HALF:
            self._halve_constants(node, [2])
        limit = 2 ** (self.placement.weight_bits - 1) - 1
        codes = np.clip(np.rint(array / _along(scales, axis, array.ndim)), -limit, limit).astype(np.int8)
        name = (
            f"{weight.name}/int8" if not self._same_weight_other_scale(weight, scales) else f"{node.name}/weight/int8"
        )
        parts = [
            self.constants.add(name, codes),
            self._scales(name, scales, dtype),
            self.constants.add(f"{name}/zero", np.zeros(scales.shape, np.int8)),
        ]
        node.replace_input_with(index, self._dequantized(name, parts, axis, dtype))

    def _same_weight_other_scale(self, weight: ir.Value, scales: NDArray[np.float32]) -> bool:
        """Bias overflow may have widened the scales of one use of a shared weight."""
        forms = [f"{weight.name}/int8/scale", f"{weight.name}/int8/scale16"]
        known = [array for form in forms for array in self.constants.made(form)]
        return bool(known) and not any(np.array_equal(array, scales.astype(array.dtype)) for array in known)

    def _quantize_bias(
        self, node: ir.Node, bias: Bias, scales: NDArray[np.float32], dead: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Replace a bias by INT32 codes; returns the weight scales, widened where the bias would overflow.

        A `dead` channel, all of whose weights are zero, takes the scale that its bias is finest in.
        """
        array, step = bias.array.astype(np.float64), self._input_scale(node)
        largest = np.abs(array).max(axis=tuple(range(array.ndim - 1)), initial=0.0)  # of each column
        needed = largest / (step * _BIAS_LIMIT)
        needed = needed if scales.ndim else needed.max(initial=0.0)
        free = dead & (needed > np.finfo(np.float32).tiny)
        scales = np.where(free, needed, np.maximum(scales, needed)).astype(np.float32)
        products = (scales.astype(np.float64) * step).astype(np.float32)
        name = f"{node.name}/bias/int32"
        parts = [
            self.constants.add(name, np.rint(array / products).astype(np.int32)),
            self.constants.add(f"{name}/scale", products),
            self.constants.add(f"{name}/zero", np.zeros(products.shape, np.int32)),
        ]
        axis = array.ndim - 1 if products.ndim else None
        bias.user.replace_input_with(bias.index, self._dequantized(name, parts, axis, FLOAT))
        return scales

    def _input_scale(self, node: ir.Node) -> float:
        read = node.inputs[activation_indices(node)[0]]
        producer = read.producer() if read is not None else None
        assert producer is not None
        scale = producer.inputs[1]
        assert scale is not None
        return float(array_of(scale))

    def _scales(self, name: str, scales: NDArray[np.float32], dtype: ir.DataType) -> ir.Value:
        if dtype is HALF:
            return self.constants.add(f"{name}/scale16", scales.astype(np.float16))
        return self.constants.add(f"{name}/scale", scales)

    def _dequantized(self, name: str, parts: list[ir.Value], axis: int | None, dtype: ir.DataType) -> ir.Value:
        key = (*parts, axis, dtype)
        if key not in self.made:
            attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
            suffix = "/dq16" if dtype is HALF else "/dq"
            node = ir.Node("", "DequantizeLinear", parts, attributes, num_outputs=1, name=name + suffix)
            out = self._insert(node, parts[0], dtype)
            out.shape = parts[0].shape
            self.made[key] = out
        return self.made[key]

    def _halve_constants(self, node: ir.Node, indices: Any) -> None:
        for i in indices:
            value = node.inputs[i]
            if value is None or not is_constant(value) or value.dtype is not FLOAT:
                continue
            if node.op_type in _DATA_ONLY and i > 0:
                continue
            half = np.clip(array_of(value), -FP16_MAX, FP16_MAX).astype(np.float16)
            node.replace_input_with(i, self.constants.add(f"{value.name}/half", half))

    # -- outputs ---------------------------------------------------------------------------------------------------

    def _keep_output(self, index: int, value: ir.Value) -> None:
        """A graph output that changed form keeps its name: the tensor behind it is renamed."""
        if value not in self.plan.stored and self.dtypes.get(value, FLOAT) is FLOAT:
            return
        final = self._plain(value, FLOAT)
        name = value.name
        value.name = self.names.fresh(f"{name}/raw")
        final.name, final.shape = name, value.shape
        self.graph.outputs[index] = final


def channel_axis(node: ir.Node, weight: NDArray[Any]) -> int | None:
    """The axis of a weight that counts output channels; None where one scale must serve the whole weight."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        group = node.attributes.get("group")
        return 1 if group is None or group.as_int() == 1 else None
    if node.op_type == "Gemm":
        transposed = node.attributes.get("transB")
        return 0 if transposed is not None and transposed.as_int() else 1
    is_right = not is_constant(node.inputs[0])  # a left factor's columns are what is summed over
    return 1 if weight.ndim == 2 and is_right else None


def _channels_read(node: ir.Node) -> int | None:
    """How many channels a weighted op takes, by its weight alone; None where it does not show."""
    weight = node.inputs[1]
    if weight is None or weight.const_value is None:
        return None
    shape, attributes = weight.const_value.shape.numpy(), node.attributes
    if node.op_type == "Conv":
        group = attributes.get("group")
        return int(shape[1]) * (group.as_int() if group is not None else 1)
    if node.op_type == "ConvTranspose":
        return int(shape[0])
    turned, transposed = (bool(a.as_int()) if (a := attributes.get(name)) else False for name in ("transA", "transB"))
    return None if node.op_type != "Gemm" or turned else int(shape[1 if transposed else 0])


def _representable(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """The next float16 at or above each scale, so that half and float readers of one tensor agree exactly."""
    half = np.minimum(scales, np.float32(FP16_MAX)).astype(np.float16)
    half = np.where(half.astype(np.float32) < scales, np.nextafter(half, np.float16(np.inf)), half)
    return np.where(scales > FP16_MAX, scales, half.astype(np.float32)).astype(np.float32)


def _along(scales: NDArray[np.float32], axis: int | None, ndim: int) -> NDArray[np.float32]:
    return scales if axis is None else scales.reshape([-1 if i == axis else 1 for i in range(ndim)])


def _bodies(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.type is ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    if attribute.type is ir.AttributeType.GRAPHS:
        return list(attribute.as_graphs())
    return []
