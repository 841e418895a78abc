"""The forms of an activation: in a float type, or as INT8 that is converted back to one."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from evaluators.calibration.scales import activation_scale
from evaluators.lowering.constants import Edits, array_of, name_of_form, suffix_of
from evaluators.lowering.float_types import FLOAT, FloatTypes, float_type
from evaluators.lowering.int8.flat import flat_beyond
from evaluators.lowering.int8.nodes import Plan, affine_of, hard_sigmoid
from evaluators.lowering.placement import Placement
from evaluators.lowering.weights import holdable_scales
from search.errors import ModelError
from search.graph.floats.bounds import UNBOUNDED, bounds_of_values, cut
from search.graph.grouping import is_constant
from search.values import Precision, Ranges, TensorRange

_NOTHING = 1e-30  # magnitudes that no scale spreads over all codes


class Activations:
    """Values are asked for in a form, and converted once."""

    def __init__(
        self, graph: ir.Graph, edits: Edits, types: FloatTypes, plan: Plan, ranges: Ranges, placement: Placement
    ) -> None:
        self._edits = edits
        self._types = types
        self._plan = plan
        self._ranges = ranges
        self._placement = placement
        # The types that hold every scale as it is, so that all readers of codes see the same numbers.
        self._exact = {FLOAT, float_type(placement.float_side)}
        self._bounds = {} if placement.symmetric else bounds_of_values(graph)
        self._flat_beyond = {} if placement.symmetric else flat_beyond(graph)
        # Name of a root → the constants that hold its scale times a factor, or its zero point, which has no type, and
        # for the codes of a shifted source is as many steps higher, times the factor.
        self._scales: dict[str, dict[ir.Value, tuple[ir.DataType | None, float]]] = {}
        self._narrow: dict[ir.Value, tuple[str, Precision]] = {}  # constants of scales → root and precision
        self._offsets = {value.name or "": offset for value, (_, _, offset) in plan.affine.items()}
        self._shifted: dict[ir.Value, str] = {}  # whose codes are taken of another value → their names

    def rescale(self, ranges: Ranges) -> set[ir.Value] | None:
        """Give the scales and zero points that were added the numbers of other ranges; the constants that changed, or
        None where nodes would have to change."""
        self._ranges = ranges
        changed = set()
        for root, constants in self._scales.items():
            scale, zero, shift = self._scale_number(root)
            if root in self._offsets and (shift is None) is (root in self._shifted.values()):
                return None
            for constant, (dtype, factor) in constants.items():
                known = array_of(constant)
                number = zero + (shift or 0) * factor if dtype is None else np.asarray(scale * factor, dtype.numpy())
                array = np.full(known.shape, number, known.dtype)
                if not np.array_equal(array, known):
                    constant.const_value = ir.tensor(array, name=constant.name)
                    changed.add(constant)
        for constant, (root, narrow) in self._narrow.items():
            array = np.asarray(self._narrow_number(root, narrow), array_of(constant).dtype)
            constant.const_value = ir.tensor(array, name=constant.name)
        return changed

    def as_float(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value as a float type: by a Cast where it has another, read back where it exists only in INT8."""
        if value in self._plan.stored:
            return self.quantize(value, dtype)
        return value if self._types.of(value) is dtype else self._cast_once(value, dtype)

    def as_captured(self, value: ir.Value) -> ir.Value:
        """The value as float32 for the body of an If or Loop: ONNX Runtime 1.32 aborts on silero-vad, where an If alone
        reads a DQ, and its condition is constant."""
        float_value = self.as_float(value, FLOAT)
        if value not in self._plan.stored:
            return float_value
        node = ir.Node("", "Sum", [float_value], num_outputs=1, name=f"{value.name}/captured")
        return self._edits.once((value, "captured"), lambda: self._edits.insert(node, float_value, FLOAT))

    def _cast_once(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self._edits.once((value, "cast", dtype), lambda: self._cast(value, dtype))

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        to, name = [ir.AttrInt64("to", dtype)], name_of_form(value.name or "", dtype)
        cast = ir.Node("", "Cast", [value], to, num_outputs=1, name=name)
        return self._edits.insert(cast, value, dtype)

    def quantize(self, value: ir.Value, dtype: ir.DataType, narrow: Precision | None = None) -> ir.Value:
        """The value after a round trip through INT8, read back as `dtype`.

        Args:
            narrow: a precision of floats with a scale, for a round trip through it instead.

        Raises:
            ModelError: calibration has no range for it.
        """
        if dtype in self._exact:
            return self._edits.once((value, "dq", dtype, narrow), lambda: self._dequantize(value, dtype, narrow))
        return self._cast_once(self.quantize(value, FLOAT, narrow), dtype)

    def _dequantize(self, value: ir.Value, dtype: ir.DataType, narrow: Precision | None) -> ir.Value:
        q = self._quantize(value) if narrow is None else self._quantize_narrow(value, narrow)
        scale, zero = self._scale(value, dtype) if narrow is None else self._narrow_scale(value, dtype, narrow)
        name = f"{value.name}/dq{suffix_of(dtype)}{'' if narrow is None else narrow.label}"
        return self._edits.insert(ir.Node("", "DequantizeLinear", [q, scale, zero], num_outputs=1, name=name), q, dtype)

    def quantized_by_channel(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """A tensor's numbers by a DQ with the scale repeated per channel: ONNX Runtime quantizes a float Conv or Gemm
        between a per-tensor DQ and a Q without being asked, one behind a per-channel DQ it leaves alone."""
        channels = value.shape[1] if value.shape is not None and len(value.shape) > 1 else _channels_read(reader)
        if not isinstance(channels, int):
            return self.quantize(value, FLOAT)
        count = channels
        return self._edits.once((value, "dq", "channels"), lambda: self._dequantize_by_channel(value, count))

    def _dequantize_by_channel(self, value: ir.Value, channels: int) -> ir.Value:
        q, constants = self._quantize(value), self._edits.constants
        scale, zero = (np.repeat(array_of(part), channels) for part in self._scale(value, FLOAT))
        root = self._plan.root(value).name
        parts = [q, constants.add(f"{root}/scale/{channels}", scale), constants.add(f"{root}/zero/{channels}", zero)]
        self._note(value, parts[1], parts[2], FLOAT)
        axis, name = [ir.AttrInt64("axis", 1)], f"{value.name}/dq/{channels}"
        return self._edits.insert(ir.Node("", "DequantizeLinear", parts, axis, num_outputs=1, name=name), q, FLOAT)

    def _quantize(self, value: ir.Value) -> ir.Value:
        return self._edits.once((value, "q"), lambda: self._insert_q(value))

    def _insert_q(self, value: ir.Value) -> ir.Value:
        # The codes of a HardSigmoid are those of the sum that it became, see `_write_hard_sigmoid`.
        source, factor, is_shifted = value, self._plan.sums.get(value, 1.0), False
        if value in self._plan.affine and self._scale_number(value.name or "")[2] is not None:
            source, scaled, _ = self._plan.affine[value]
            factor, is_shifted = 1 / scaled, True
            self._shifted[value] = value.name or ""
        read = source if self._types.of(source) in self._exact else self._cast_once(source, FLOAT)
        scale, zero = self._scale(value, self._types.of(source) if read is source else FLOAT, factor, is_shifted)
        node = ir.Node("", "QuantizeLinear", [read, scale, zero], num_outputs=1, name=f"{value.name}/q")
        integer = ir.DataType.INT8 if self._placement.is_signed else ir.DataType.UINT8
        return self._edits.insert(node, read, integer)

    def _quantize_narrow(self, value: ir.Value, narrow: Precision) -> ir.Value:
        return self._edits.once((value, "q", narrow), lambda: self._insert_narrow_q(value, narrow))

    def _insert_narrow_q(self, value: ir.Value, narrow: Precision) -> ir.Value:
        dtype = self._types.of(value) if self._types.of(value) in self._exact else FLOAT
        read = self.as_float(value, dtype)
        parts = [read, *self._narrow_scale(value, dtype, narrow)]
        node = ir.Node("", "QuantizeLinear", parts, num_outputs=1, name=f"{value.name}/q/{narrow.label}")
        return self._edits.insert(node, read, ir.DataType.from_numpy(np.dtype(narrow.dtype)))

    def _narrow_scale(self, value: ir.Value, dtype: ir.DataType, narrow: Precision) -> tuple[ir.Value, ir.Value]:
        root, add = self._root_name(value), self._edits.constants.add
        number = np.asarray(self._narrow_number(root, narrow), dtype.numpy())
        scale = add(f"{root}/scale/{narrow.label}{suffix_of(dtype)}", number)
        self._narrow[scale] = root, narrow
        return scale, add(f"{root}/zero/{narrow.label}", np.zeros((), narrow.dtype))

    def _narrow_number(self, root: str, narrow: Precision) -> float:
        """The largest magnitude that was seen, or that a user set, over the largest number: to cut off what is far from
        all else makes no other number of a float finer."""
        tensor_range = self._range_of(root)
        seen = tensor_range if root in self._ranges.fixed else self._ranges.observed.get(root, tensor_range)
        magnitude = cut(seen, self._bounds.get(root, UNBOUNDED)).magnitude
        scale = np.asarray(magnitude / narrow.largest_code if magnitude > _NOTHING else 1.0, np.float32)
        return float(holdable_scales(scale, self._placement))

    def name_results(self) -> None:
        """Give what reads the codes of another value the name of the value that the codes stand for."""
        for value in (*self._shifted, *self._plan.sums):
            result = self.quantize(value, FLOAT)
            value.name, result.name = self._edits.names.fresh(f"{value.name}/codes"), value.name

    def write_by_codes(self, node: ir.Node) -> None:
        """Make what ONNX Runtime has no INT8 kernel for, or a constant operand, ops between codes, where codes are read
        and made."""
        made = node.outputs[0]
        if made in self._plan.sums:
            alpha, beta = hard_sigmoid(node)
            self._become(node, "Add", self._offset(node, beta / alpha))
        elif not any((node, i) in self._plan.reads for i in range(len(node.inputs))):
            return
        elif node.op_type == "HardSwish":
            self._write_hard_swish(node)
        elif made in self._plan.stored and node.op_type in ("Add", "Mul") and (affine := affine_of(node)) is not None:
            _, factor, offset = affine
            at = next(i for i, value in enumerate(node.inputs) if value is not None and is_constant(value))
            node.replace_input_with(at, self._offset(node, offset if node.op_type == "Add" else factor))

    def _write_hard_swish(self, node: ir.Node) -> None:
        """Make `x · clip(x ÷ 6 + 0.5, 0, 1)` of a dequantized x the product with the sum `x + 3`, whose quantized range
        is the clip.

        A sum and a product in INT8 take a third of the time that floats take, and cost no more than what a small change
        of all ranges does: see `benchmarks/results/real_models.md`.
        """
        read, constants, name = node.inputs[0], self._edits.constants, f"{node.name}/gate"
        offset = self._offset(node, 3.0)
        assert read is not None
        gate = self._edits.insert(ir.Node("", "Add", [read, offset], num_outputs=1, name=name), read, FLOAT)
        zero = constants.add(f"{name}/zero", np.asarray(0, np.uint8))
        for op, limit, dtype in (("QuantizeLinear", 6, ir.DataType.UINT8), ("DequantizeLinear", 1, FLOAT)):
            scale = constants.add(f"{name}/scale", np.asarray(limit / 255, np.float32))
            written = ir.Node("", op, [gate, scale, zero], num_outputs=1, name=name)
            gate = self._edits.insert(written, gate, dtype)
        self._become(node, "Mul", gate)

    def _offset(self, node: ir.Node, number: float) -> ir.Value:
        """A dequantized number for an op that reads what `node` reads, exactly that number."""
        name, add = f"{node.name}/offset", self._edits.constants.add
        read = next(value for value in node.inputs if value is not None and not is_constant(value))
        parts = [
            add(name, np.asarray(255 if number > 0 else 0, np.uint8)),
            add(f"{name}/scale", np.asarray(abs(number) / 255, np.float32)),
            add(f"{name}/zero", np.asarray(0 if number > 0 else 255, np.uint8)),
        ]
        offset = self._edits.insert(ir.Node("", "DequantizeLinear", parts, num_outputs=1, name=name), read, FLOAT)
        offset.shape = ir.Shape([])
        return offset

    @staticmethod
    def _become(node: ir.Node, op: str, other: ir.Value) -> None:
        node.op_type = op
        node.attributes.clear()
        node.resize_inputs(2)
        node.replace_input_with(1, other)

    def _scale(
        self, value: ir.Value, dtype: ir.DataType, factor: float = 1.0, is_shifted: bool = False
    ) -> tuple[ir.Value, ir.Value]:
        scale, zero, shift = self._scale_number(self._root_name(value))
        integer = np.int8 if self._placement.is_signed else np.uint8
        root, steps = self._plan.root(value).name, int(shift or 0) * is_shifted
        parts = (
            self._edits.constants.add(f"{root}/scale{suffix_of(dtype)}", np.asarray(scale * factor, dtype.numpy())),
            self._edits.constants.add(f"{root}/zero{'/shifted' * is_shifted}", np.asarray(zero + steps, integer)),
        )
        self._note(value, *parts, dtype, factor, is_shifted)
        return parts

    def _note(
        self,
        value: ir.Value,
        scale: ir.Value,
        zero: ir.Value,
        dtype: ir.DataType,
        factor: float = 1.0,
        is_shifted: bool = False,
    ) -> None:
        noted = {scale: (dtype, factor), zero: (None, float(is_shifted))}
        self._scales.setdefault(self._root_name(value), {}).update(noted)

    def _root_name(self, value: ir.Value) -> str:
        return self._plan.root(value).name or ""

    def _range_of(self, root: str) -> TensorRange:
        tensor_range = self._ranges.tensors.get(root)
        if tensor_range is None:
            raise ModelError(
                f"quantizing tensor {root!r}: calibration has no range for it. Calibrate again with data that "
                "reach it, or keep its group in high precision."
            )
        return tensor_range

    def _scale_number(self, root: str) -> tuple[float, int, int | None]:
        """The scale and the zero point of a tensor, and how much higher the zero point is of codes that are taken of
        what an offset makes the tensor of; None where no code of eight bits is that high."""
        tensor_range = self._range_of(root)
        symmetric = self._placement.symmetric
        # A cache holds magnitudes alone: with minus six to six behind a Relu6 no engine would absorb the Relu6.
        bounds = self._bounds.get(root, UNBOUNDED)
        tensor_range = cut(tensor_range, bounds)
        if tensor_range.magnitude < _NOTHING and math.isfinite(bounds[0]) and math.isfinite(bounds[1]):
            tensor_range = TensorRange(*bounds)  # a gate that no sample opened must not open further than it can
        if root not in self._ranges.fixed:
            tensor_range = cut(tensor_range, self._flat_beyond.get(root, UNBOUNDED))
        scale, zero = activation_scale(tensor_range, signed=self._placement.is_signed, symmetric=symmetric)
        scale = float(holdable_scales(np.asarray(scale, np.float32), self._placement))
        if not (offset := self._offsets.get(root)):
            return scale, zero, 0 if offset is not None else None
        wider, steps = _whole_steps(scale, abs(offset))
        shift, wider_zero = round(math.copysign(steps, offset)), round(zero * scale / wider)
        return (wider, wider_zero, shift) if 0 <= wider_zero + shift <= 255 else (scale, zero, None)


def _whole_steps(scale: float, offset: float) -> tuple[float, int]:
    """A scale at or above the given one and how many of its steps an offset is: as it is and the nearest whole number,
    or so wide that the number is whole, whichever has the smaller mean square of rounding and error of the offset."""
    nearest, fewer = round(offset / scale), int(offset / scale)
    wider = float(np.float32(offset / fewer)) if fewer else math.inf
    as_it_is = scale**2 / 12 + (offset - nearest * scale) ** 2
    return (wider, fewer) if scale <= wider and wider**2 / 12 < as_it_is else (scale, nearest)


def _channels_read(node: ir.Node) -> int | None:
    """How many channels a weighted op takes, by its weight alone; None if it does not show."""
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
