"""Weights and biases of weighted ops as integer codes, and constants in narrow float types."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.calibration.scales import row_blocks, weight_scales
from evaluators.lowering.biases import Bias, find_bias
from evaluators.lowering.constants import Edits, array_of, name_of_form, suffix_of
from evaluators.lowering.float_types import FLOAT, float_type, largest_of
from evaluators.lowering.int8.dynamic import straighten, write_dynamic
from evaluators.lowering.int8.nodes import activation_indices
from evaluators.lowering.placement import DATA_ONLY, Placement
from evaluators.lowering.weight_blocks import block_scales, codes_in_blocks
from search.graph.grouping import is_constant
from search.values import REFERENCE, Correction, Precision

_BIAS_LIMIT = 2.0**30  # leaves the INT32 accumulator room for the products


@dataclass(frozen=True)
class _QuantizedBias:
    """A bias as INT32, and what its codes follow from.

    Attributes:
        array: (…, N) float64.
        narrow_scales: (N,) or () scales of the weight, before they were widened to `scales` for the bias.
        dead: which channels have weights of zero alone.
        step: the constant that has the scale of the op's input.
        codes, products: the constants with the codes, and with their scales.
    """

    array: NDArray[np.float64]
    narrow_scales: NDArray[np.float32]
    scales: NDArray[np.float32]
    dead: NDArray[np.bool_]
    step: ir.Value
    codes: ir.Value
    products: ir.Value


class Weights:
    """Rewrites the constants that nodes read.

    Args:
        owned: names of the nodes of all groups.
        corrections: of ops by name, of which the roundings are obeyed here.
        own: scales of weights of INT8 ops by name that a quantized file gives.
    """

    def __init__(
        self,
        edits: Edits,
        placement: Placement,
        owned: Container[str],
        corrections: Mapping[str, Correction],
        own: Mapping[str, NDArray[np.float32]],
    ) -> None:
        self._edits = edits
        self._placement = placement
        self._owned = owned
        self._corrections = corrections
        self._own = own
        self._biases: list[_QuantizedBias] = []

    def rescale(self, changed: AbstractSet[ir.Value]) -> bool:
        """Quantize the biases again of ops whose input has another scale now.

        Returns:
            Whether that is all: False where the codes of a weight would have to change too, for a bias that overflows.
        """
        for bias in self._biases:
            if bias.step not in changed:
                continue
            scales = _scales_with_bias(bias.array, float(array_of(bias.step)), bias.narrow_scales, bias.dead)
            if not np.array_equal(scales, bias.scales):
                return False
            codes, products = _bias_codes(bias.array, float(array_of(bias.step)), scales)
            bias.codes.const_value = ir.tensor(codes, name=bias.codes.name)
            bias.products.const_value = ir.tensor(products, name=bias.products.name)
        return True

    def quantize(self, node: ir.Node, dtype: ir.DataType) -> None:
        """Read the weight of an INT8 op from INT8 codes, and its bias from INT32 where the placement says so.

        Args:
            dtype: the float type that they are read back as.
        """
        index = next((i for i in (0, 1) if i not in activation_indices(node)), None)
        if index is None:  # a product of activations
            return
        weight = node.inputs[index]
        assert weight is not None
        array = array_of(weight)
        axis = channel_axis(node, array)
        scales, limits = self._grid(node, array, axis)
        bias = find_bias(node, array, self._owned) if self._placement.int32_bias else None
        if bias is not None:
            others = tuple(i for i in range(array.ndim) if i != axis) if axis is not None else None
            scales = self._quantize_bias(node, bias, scales, np.asarray(~array.any(axis=others)))
        elif len(node.inputs) > 2 and dtype is not FLOAT:
            self.narrow(node, [2], dtype)
        correction = self._corrections.get(node.name or "")
        rounding = None if correction is None else correction.rounding
        codes = _codes(array, scales, axis, rounding, limits)
        name = (
            f"{weight.name}/int8" if not self._same_weight_other_scale(weight, scales) else f"{node.name}/weight/int8"
        )
        parts = [
            self._edits.constants.add(name, codes),
            self._scales(name, scales, dtype),
            self._edits.constants.add(f"{name}/zero", np.zeros(scales.shape, np.int8)),
        ]
        node.replace_input_with(index, self._dequantize(name, parts, axis, dtype))

    def quantize_product(self, node: ir.Node) -> None:
        """Make a MatMul or Gemm a product of codes, those of its activations found anew in each inference."""
        weight = node.inputs[1]
        assert weight is not None
        array = array_of(weight)
        axis = channel_axis(node, array)
        scales, limits = self._grid(node, array, axis)
        codes = _codes(array, scales, axis, None, limits)
        write_dynamic(node, f"{weight.name}/int8", codes if axis else codes.T, scales, self._edits)

    def quantize_narrow(self, node: ir.Node, precision: Precision, dtype: ir.DataType) -> None:
        """Read the weight of an op from narrow floats with a scale for each output channel.

        Args:
            dtype: the float type that they are read back as.
        """
        index = next(i for i in (0, 1) if i not in activation_indices(node))
        weight = node.inputs[index]
        assert weight is not None
        array, form, largest = array_of(weight), np.dtype(precision.dtype), precision.largest_code
        axis = channel_axis(node, array)
        scales = holdable_scales(weight_scales(array, axis) * np.float32(127 / largest), self._placement)
        codes = np.clip(array / along(scales, axis, array.ndim), -largest, largest).astype(form)
        name = f"{weight.name}/{precision.label}"
        zeros = self._edits.constants.add(f"{name}/zero", np.zeros(scales.shape, form))
        parts = [self._edits.constants.add(name, codes), self._scales(name, scales, dtype), zeros]
        node.replace_input_with(index, self._dequantize(name, parts, axis, dtype))
        if dtype is not FLOAT:
            self.narrow(node, range(2, len(node.inputs)), dtype)

    def quantize_blocks(self, node: ir.Node, precision: Precision, dtype: ir.DataType) -> None:
        """Read the weight of a MatMul or Gemm, and nothing else, from codes in blocks along K.

        Args:
            dtype: the float type that they are read back as.
        """
        weight = node.inputs[1]
        assert weight is not None
        alpha, transposed = straighten(node, self._edits)
        matrix = (array_of(weight).T if transposed else array_of(weight)) * np.float32(alpha)
        block, form = precision.block(len(matrix)), np.dtype(precision.dtype)
        correction = self._corrections.get(node.name or "", Correction())
        scales = holdable_scales(block_scales(matrix, block, precision, correction.clip), self._placement)
        codes = codes_in_blocks(matrix, scales, precision, correction.rounding).astype(form)
        name = f"{weight.name}/{precision.label}"
        parts = [self._edits.constants.add(name, codes), self._scales(name, scales, dtype)]
        node.replace_input_with(1, self._dequantize(name, parts, 0, dtype, block))
        if dtype is not FLOAT:
            self.narrow(node, range(2, len(node.inputs)), dtype)

    def _grid(
        self, node: ir.Node, weight: NDArray[Any], axis: int | None
    ) -> tuple[NDArray[np.float32], tuple[int, int]]:
        """The scales of a weight, the file's own where it has any, and the lowest and the highest code."""
        own = _own_scales(self._own.get(node.name or ""), axis, weight, self._placement)
        if own is not None:
            return own, (-128, 127)
        return _scales_of(node, weight, axis, self._placement), symmetric_limits(self._placement.weight_bits)

    def _same_weight_other_scale(self, weight: ir.Value, scales: NDArray[np.float32]) -> bool:
        """Bias overflow may have widened the scales of one use of a shared weight."""
        forms = {suffix_of(FLOAT), suffix_of(float_type(self._placement.float_side))}
        made = self._edits.constants.added_arrays
        known = [array for form in forms for array in made(f"{weight.name}/int8/scale{form}")]
        return bool(known) and not any(np.array_equal(array, scales.astype(array.dtype)) for array in known)

    def _quantize_bias(
        self, node: ir.Node, bias: Bias, scales: NDArray[np.float32], dead: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Replace a bias by INT32 codes; returns the weight scales, widened where the bias would overflow.

        A `dead` channel, all of whose weights are zero, takes the scale that its bias is finest in.
        """
        read = node.inputs[activation_indices(node)[0]]
        producer = read.producer() if read is not None else None
        assert producer is not None
        scale = producer.inputs[1]
        assert scale is not None
        array, step = bias.array.astype(np.float64), scale
        narrow_scales, scales = scales, _scales_with_bias(array, float(array_of(step)), scales, dead)
        codes, products = _bias_codes(array, float(array_of(step)), scales)
        name = f"{node.name}/bias/int32"
        parts = [
            self._edits.constants.add(name, codes),
            self._edits.constants.add(f"{name}/scale", products),
            self._edits.constants.add(f"{name}/zero", np.zeros(products.shape, np.int32)),
        ]
        self._biases.append(_QuantizedBias(array, narrow_scales, scales, dead, step, parts[0], parts[1]))
        axis = array.ndim - 1 if products.ndim else None
        bias.user.replace_input_with(bias.index, self._dequantize(name, parts, axis, FLOAT))
        return scales

    def _scales(self, name: str, scales: NDArray[np.float32], dtype: ir.DataType) -> ir.Value:
        return self._edits.constants.add(f"{name}/scale{suffix_of(dtype)}", scales.astype(dtype.numpy()))

    def _dequantize(
        self, name: str, parts: list[ir.Value], axis: int | None, dtype: ir.DataType, block: int = 0
    ) -> ir.Value:
        return self._edits.once((*parts, axis, dtype), lambda: self._insert_dq(name, parts, axis, dtype, block))

    def _insert_dq(
        self, name: str, parts: list[ir.Value], axis: int | None, dtype: ir.DataType, block: int
    ) -> ir.Value:
        attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
        attributes += [ir.AttrInt64("block_size", block)] if block else []
        name = f"{name}/dq{suffix_of(dtype)}"
        node = ir.Node("", "DequantizeLinear", parts, attributes, num_outputs=1, name=name)
        out = self._edits.insert(node, parts[0], dtype)
        out.shape = parts[0].shape
        return out

    def narrow(self, node: ir.Node, indices: Iterable[int], dtype: ir.DataType) -> None:
        """Read the float constants among some inputs of a node in a narrow float type, cut to its largest number."""
        for i in indices:
            value = node.inputs[i]
            if value is None or not is_constant(value) or value.dtype is not FLOAT:
                continue
            if node.op_type in DATA_ONLY and i > 0:
                continue
            cut = np.clip(array_of(value), -largest_of(dtype), largest_of(dtype)).astype(dtype.numpy())
            node.replace_input_with(i, self._edits.constants.add(name_of_form(value.name or "", dtype), cut))


def _scales_with_bias(
    bias: NDArray[np.float64], step: float, scales: NDArray[np.float32], dead: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """The scales of a weight, widened where its bias would overflow; those of dead channels are the bias's finest."""
    largest = np.abs(bias).max(axis=tuple(range(bias.ndim - 1)), initial=0.0)  # of each column
    needed = largest / (step * _BIAS_LIMIT)
    needed = needed if scales.ndim else needed.max(initial=0.0)
    free = dead & (needed > np.finfo(np.float32).tiny)
    wide_scales: NDArray[np.float32] = np.where(free, needed, np.maximum(scales, needed)).astype(np.float32)
    return wide_scales


def _bias_codes(
    bias: NDArray[np.float64], step: float, scales: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The INT32 codes of a bias, and the scales that they count."""
    products = (scales.astype(np.float64) * step).astype(np.float32)
    return np.rint(bias / products).astype(np.int32), products


def channel_axis(node: ir.Node, weight: NDArray[Any]) -> int | None:
    """The axis of a weight that counts output channels; None if one scale must serve the whole weight."""
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


def holdable_scales(scales: NDArray[np.float32], placement: Placement) -> NDArray[np.float32]:
    """The next number at or above each scale in the type of a placement's float side, so that readers of either type
    agree exactly; a scale beyond its largest number as it is."""
    side = placement.float_side
    if side is REFERENCE:
        return scales
    narrow = np.minimum(scales, np.float32(side.largest)).astype(side.dtype)
    narrow = np.where(narrow.astype(np.float32) < scales, np.nextafter(narrow, np.asarray(np.inf, side.dtype)), narrow)
    return np.where(scales > side.largest, scales, narrow.astype(np.float32)).astype(np.float32)


def nearest_codes(
    node: ir.Node, weight: NDArray[Any], placement: Placement
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """The integers that a weight is nearest to, not yet cut to the width of a code, and the scales that they count."""
    axis = channel_axis(node, weight)
    scales = _scales_of(node, weight, axis, placement)
    return np.rint(weight / along(scales, axis, weight.ndim)), scales


def _codes(
    weight: NDArray[Any],
    scales: NDArray[np.float32],
    axis: int | None,
    rounding: NDArray[Any] | None,
    limits: tuple[int, int],
) -> NDArray[np.int8]:
    """The codes of a weight under these scales, as `round_with`; a few rows at a time, which saves memory."""
    steps = np.broadcast_to(along(scales, axis, weight.ndim), weight.shape)
    codes = np.empty(weight.shape, np.int8)
    for rows in row_blocks(weight.shape):
        nearest = np.rint(weight[rows] / steps[rows])
        codes[rows] = round_with(nearest, None if rounding is None else rounding[rows], limits)
    return codes


def sums_pairs(node: ir.Node, weight: NDArray[Any]) -> bool:
    """Whether the kernel of an op may add two products in 16 bits.

    The kernel of a convolution that reads one input channel for each output channel widens them first.
    """
    group = node.attributes.get("group")
    return node.op_type != "Conv" or group is None or (group.as_int(), 1) != weight.shape[:2]


def _scales_of(node: ir.Node, weight: NDArray[Any], axis: int | None, placement: Placement) -> NDArray[np.float32]:
    limit = placement.pair_limit if sums_pairs(node, weight) else None
    return holdable_scales(weight_scales(weight, axis, placement.weight_bits, limit), placement)


def _own_scales(
    file_scales: NDArray[np.float32] | None, axis: int | None, weight: NDArray[Any], placement: Placement
) -> NDArray[np.float32] | None:
    """Scales of a quantized file in the form that is written here; None where it has none, or of another axis."""
    if file_scales is None or any(size > 1 for i, size in enumerate(file_scales.shape) if i != axis):
        return None
    form = () if axis is None else (weight.shape[axis],)
    return holdable_scales(np.broadcast_to(file_scales.reshape(-1 if form else ()), form), placement)


def symmetric_limits(bits: int) -> tuple[int, int]:
    """The lowest and the highest code of a weight."""
    return 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1


def round_with(nearest: NDArray[Any], rounding: NDArray[Any] | None, limits: tuple[int, int]) -> NDArray[np.int8]:
    """The codes of a weight: the nearest, changed by a rounding of the same shape where there is one."""
    codes = np.clip(nearest, *limits)
    if rounding is not None:
        codes = np.clip(codes + rounding, *limits)
    return np.asarray(codes, np.int8)


def along(scales: NDArray[Any], axis: int | None, ndim: int) -> NDArray[Any]:
    """Numbers of the channels on `axis`, shaped so that they broadcast over an array of `ndim` axes."""
    return scales if axis is None else scales.reshape([-1 if i == axis else 1 for i in range(ndim)])
