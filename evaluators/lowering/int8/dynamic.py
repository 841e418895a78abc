"""Products whose activations are quantized anew in each inference, as ONNX Runtime makes one kernel of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.lowering.constants import Edits, array_of
from search.graph.grouping import is_constant

DYNAMIC_OPS = frozenset({"Gemm", "MatMul"})
PRODUCT = "/integer"  # behind the name of an op, that of the product of codes which it became

_FLOAT = ir.DataType.FLOAT


def write_dynamic(node: ir.Node, name: str, codes: NDArray[np.int8], scales: NDArray[np.float32], edits: Edits) -> None:
    """Make `DynamicQuantizeLinear → MatMulInteger → Cast → Mul` of a MatMul or Gemm, and an Add for a Gemm's bias.

    The node becomes the last of these, and so keeps its name and its output. What several products read is quantized
    once: ONNX Runtime then has a kernel for it beside those of the products.

    Args:
        name: for the constant that holds the codes.
        codes: (K, N) of the second factor, signed around 0: kernels for unsigned ones are half as fast.
        scales: (N,) of its columns.
    """
    alpha, _ = straighten(node, edits)
    read, bias, shape = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None, node.outputs[0].shape
    assert read is not None
    quantized, step, zero = _quantize(read, edits)
    weight = edits.constants.add(name, codes)
    columns = np.asarray(scales * np.float32(alpha), np.float32)
    by_column = edits.constants.add(f"{name}/scale", columns)
    product = _insert(
        edits, "MatMulInteger", [quantized, weight, zero], f"{node.name}{PRODUCT}", ir.DataType.INT32, shape
    )
    floats = _insert(edits, "Cast", [product], f"{node.name}/float", _FLOAT, shape, to=_FLOAT)
    scale = _insert(edits, "Mul", [step, by_column], f"{node.name}/scale", _FLOAT, by_column.shape)
    if bias is None:
        _become(node, "Mul", floats, scale)
        return
    scaled = _insert(edits, "Mul", [floats, scale], f"{node.name}/scaled", _FLOAT, shape)
    _become(node, "Add", scaled, bias)


def straighten(node: ir.Node, edits: Edits) -> tuple[float, bool]:
    """Make a Gemm `A · B + C`, without factors and transposed operands, and leave a MatMul as it is.

    Returns:
        What the second factor still has to be multiplied by, and whether it has to be transposed.
    """
    factors = {key: attribute.value for key, attribute in node.attributes.items()}
    read = node.inputs[0]
    if factors.get("transA") and read is not None:
        turned = None if read.shape is None else ir.Shape(tuple(read.shape)[::-1])
        node.replace_input_with(
            0, _insert(edits, "Transpose", [read], f"{node.name}/turned", read.dtype or _FLOAT, turned)
        )
    if len(node.inputs) > 2 and (bias := node.inputs[2]) is not None:
        node.replace_input_with(2, _times(bias, factors.get("beta", 1.0), node, edits))
    node.attributes.clear()
    return factors.get("alpha", 1.0), bool(factors.get("transB"))


def _insert(
    edits: Edits,
    op: str,
    inputs: list[ir.Value],
    name: str,
    dtype: ir.DataType,
    shape: ir.Shape | None,
    **attributes: int,
) -> ir.Value:
    """Insert a node behind the producer of the last of its inputs that is no constant."""
    after = next(value for value in reversed(inputs) if not is_constant(value))
    node_attributes = [ir.AttrInt64(key, value) for key, value in attributes.items()]
    made = edits.insert(ir.Node("", op, inputs, node_attributes, num_outputs=1, name=name), after, dtype)
    made.shape = shape
    return made


def _quantize(read: ir.Value, edits: Edits) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The codes of a tensor, their scale and their zero point."""
    codes = edits.once((read, "dynamic"), lambda: _insert_quantize(read, edits))
    maker = codes.producer()
    assert maker is not None
    return codes, maker.outputs[1], maker.outputs[2]


def _insert_quantize(read: ir.Value, edits: Edits) -> ir.Value:
    node = ir.Node("", "DynamicQuantizeLinear", [read], num_outputs=3, name=f"{read.name}/dynamic")
    codes = edits.insert(node, read, ir.DataType.UINT8)
    for value, what, dtype in zip(node.outputs[1:], ("scale", "zero"), (_FLOAT, ir.DataType.UINT8), strict=True):
        value.name, value.type = edits.names.fresh(f"{node.name}_{what}"), ir.TensorType(dtype)
        value.shape = ir.Shape([])
    return codes


def _times(bias: ir.Value, beta: float, node: ir.Node, edits: Edits) -> ir.Value:
    """What a Gemm adds; a constant for each column as a vector, which the kernel takes in."""
    if is_constant(bias):
        array = array_of(bias)
        flat = array.reshape(-1) if array.shape[:-1] in ((), (1,)) else array
        return edits.constants.add(f"{node.name}/bias", np.asarray(flat * np.float32(beta), array.dtype))
    if beta == 1.0:
        return bias
    factor = edits.constants.add(f"{node.name}/beta", np.asarray(beta, np.float32))
    return _insert(edits, "Mul", [bias, factor], f"{node.name}/bias", _FLOAT, bias.shape)


def _become(node: ir.Node, op: str, *inputs: ir.Value) -> None:
    node.op_type = op
    node.attributes.clear()
    node.resize_inputs(len(inputs))
    for place, value in enumerate(inputs):
        node.replace_input_with(place, value)


def dynamic_weight(node: ir.Node, exact: ir.Node) -> NDArray[np.float32] | None:
    """The second factor of a product that `write_dynamic` made of `exact`, as its codes stand for it; else None.

    Its axes are in the order of the factor of `exact`.
    """
    scaled = _maker(node, 0) if node.op_type == "Add" else node
    if scaled is None or scaled.op_type != "Mul":
        return None
    floats, scale = _maker(scaled, 0), _maker(scaled, 1)
    product = _maker(floats, 0) if floats is not None and floats.op_type == "Cast" else None
    if product is None or scale is None or product.op_type != "MatMulInteger":
        return None
    codes, by_column = product.inputs[1], scale.inputs[1]
    assert codes is not None
    assert by_column is not None
    weight: NDArray[np.float32] = array_of(codes).astype(np.float32) * array_of(by_column)
    transposed = exact.attributes.get("transB")
    return weight.T if transposed is not None and transposed.as_int() else weight


def _maker(node: ir.Node, place: int) -> ir.Node | None:
    value = node.inputs[place]
    return None if value is None else value.producer()
