"""The layers of an ONNX file: with Q/DQ, with QLinear operators, or optimized by ONNX Runtime."""

from __future__ import annotations

import math
from dataclasses import replace

import onnx
import onnx_ir as ir

from evaluators.backends.layers import Layer, Tensor
from evaluators.backends.onnxruntime.audit import BLOCKS_KERNEL, FLOAT8_KERNEL, original_name
from evaluators.lowering.float_types import precision_of
from search.values import REFERENCE, Precision

_INT8_KERNELS = ("QLinear", "QGemm", "ConvInteger", "MatMulInteger", "QAttention", "DynamicQuantizeMatMul")
_OF_ONNX = frozenset({"ConvInteger", "MatMulInteger"})
_WEIGHTED = ("Conv", "Gemm", "MatMul", "Attention")
_MOVES = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear Cast Identity Reshape Flatten Squeeze Unsqueeze Transpose "
    "ReorderInput ReorderOutput Shape Gather Slice Concat Split Expand Constant ConstantOfShape".split()
)
_MAY_BE_INT8 = frozenset("Conv ConvTranspose Gemm MatMul FusedConv FusedGemm FusedMatMul".split())
_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_OPTIMIZED = "ONNX with INT8 kernels"
FLOAT_ONNX = "ONNX without quantization"  # the kind of a file that asks for no INT8
_ATTRIBUTES = {"kernel": "kernel_shape", "stride": "strides", "padding": "pads", "dilation": "dilations"}


def read_layers(proto: onnx.ModelProto) -> tuple[str, tuple[Layer, ...]]:
    """What kind of file it is, and its layers in the order of the graph.

    Where there are INT8 kernels, the file is one that was optimized and shows what runs, see `read_running_layers`.
    """
    model = ir.from_proto(_with_shapes(proto))
    nodes = list(model.graph)
    fused = _fused_into_int8(nodes)
    kind, layers = kind_of({node.op_type for node in nodes}), tuple(_layer(node, fused) for node in nodes)
    return kind, tuple(map(_as_it_runs, layers)) if kind == _OPTIMIZED else layers


def read_running_layers(proto: onnx.ModelProto) -> tuple[Layer, ...]:
    """Layers of a file that ONNX Runtime has optimized for this machine and runs as it is.

    A float op between DequantizeLinear and QuantizeLinear is one here, for nothing is left to fuse it.
    """
    _, layers = read_layers(proto)
    return tuple(_as_it_runs(layer) for layer in layers)


def _as_it_runs(layer: Layer) -> Layer:
    asks = layer.precision is not None and layer.precision.quantized
    if not asks or layer.kind.startswith((*_INT8_KERNELS, BLOCKS_KERNEL, FLOAT8_KERNEL)):
        return layer
    return replace(
        layer,
        precision=max((p for p in Precision for t in layer.outputs if t.type == p.dtype), default=REFERENCE),
        why_not_int8="its values are quantized, but ONNX Runtime has no INT8 kernel that takes it in here",
    )


def _with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Types and shapes tell more where inference can follow; ops of ONNX Runtime's own stop it."""
    try:
        return onnx.shape_inference.infer_shapes(proto)
    except Exception:
        return proto


def kind_of(ops: set[str]) -> str:
    """What kind of file has nodes of these ops.

    Products of integers beside Q/DQ are those of a file that is not optimized yet.
    """
    written = _OF_ONNX if "DequantizeLinear" in ops else frozenset[str]()
    if any(op.startswith(_INT8_KERNELS) for op in ops - written):
        return _OPTIMIZED
    if ops & {"QuantizeLinear", "DequantizeLinear"}:
        return "ONNX with Q/DQ"
    return FLOAT_ONNX


def _fused_into_int8(nodes: list[ir.Node]) -> set[ir.Node]:
    """Nodes without weights that read 8 bits, or an INT8 layer alone, and are quantized again: engines fuse them."""
    fusible: set[ir.Node] = set()
    for node in nodes:
        read = [value for value in node.inputs if value is not None and not _is_constant(value)]
        makers = [value.producer() for value in read]
        exact = all(
            _is_dequantized(value) or (len(read) == 1 and maker is not None and _runs_int8(maker, fusible))
            for value, maker in zip(read, makers, strict=True)
        )
        users = [user for value in node.outputs for user in value.consumers()]
        again = bool(users) and all(user.op_type == "QuantizeLinear" for user in users)
        if read and exact and again and not _is_weighted(node) and node.op_type not in _MOVES:
            fusible.add(node)
    return fusible


def _runs_int8(node: ir.Node, fused: set[ir.Node]) -> bool:
    return node in fused or (_is_weighted(node) and _reads_codes(node))


def _layer(node: ir.Node, fused: set[ir.Node]) -> Layer:
    moves = node.op_type in _MOVES
    precision = None if moves else Precision.INT8 if node in fused else _precision(node)
    return Layer(
        name=node.name or (node.outputs[0].name or "" if node.outputs else ""),
        kind=node.op_type,
        precision=precision,
        nodes=(original_name(node.name),) if node.name else (),
        inputs=tuple(_tensor(value) for value in node.inputs if value is not None and not _is_constant(value)),
        outputs=tuple(map(_tensor, node.outputs)),
        moves=moves,
        weighted=_is_weighted(node),
        attributes=_attributes(node),
        macs=_macs(node),
        why_not_int8="" if moves or (precision is not None and precision.quantized) else _why_not(node),
    )


def _precision(node: ir.Node) -> Precision | None:
    if node.op_type.startswith(_INT8_KERNELS):
        return Precision.INT8_DYNAMIC if _reads_dynamic(node) else Precision.INT8
    if _is_weighted(node) and _reads_codes(node):
        return Precision.INT8
    if (codes := _block_codes(node)) is not None:
        return Precision.in_blocks(codes)
    types = {precision_of(value.dtype) for value in (*node.inputs, *node.outputs) if value is not None and value.dtype}
    precisions = [precision for precision in types if precision is not None]
    return min(precisions, key=lambda precision: precision.rank, default=None)


def _block_codes(node: ir.Node) -> str | None:
    """The type of the weight alone that a product reads in blocks; None if it reads none."""
    if node.op_type == FLOAT8_KERNEL:
        return Precision.WF8.dtype
    if node.op_type == BLOCKS_KERNEL:
        return f"int{node.attributes.get_int('bits', 4)}"
    maker = node.inputs[1].producer() if _is_weighted(node) and len(node.inputs) > 1 and node.inputs[1] else None
    if maker is None or maker.op_type != "DequantizeLinear" or not maker.attributes.get_int("block_size", 0):
        return None
    codes = maker.inputs[0]
    return None if codes is None or codes.dtype is None else codes.dtype.numpy().name.removeprefix("u")


def _reads_dynamic(node: ir.Node) -> bool:
    """Whether the activations of an INT8 kernel are quantized anew in each inference."""
    maker = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return node.op_type == "DynamicQuantizeMatMul" or (maker is not None and maker.op_type == "DynamicQuantizeLinear")


def _reads_codes(node: ir.Node) -> bool:
    """Whether activation and weight both come straight from a DequantizeLinear of 8 bits: engines fuse that."""
    return len(node.inputs) > 1 and all(_is_dequantized(value) for value in node.inputs[:2])


def _weight_of(node: ir.Node) -> ir.Value | None:
    """The second factor of a node with weights: behind scale and zero point in the ops that read 8 bits."""
    place = 3 if node.op_type in ("QLinearConv", "QLinearMatMul", "QGemm") else 1
    return node.inputs[place] if _is_weighted(node) and len(node.inputs) > place else None


def _bias_of(node: ir.Node) -> ir.Value | None:
    """What a node with weights adds: behind weight and zero points in the ops that read 8 bits."""
    if not _is_weighted(node) or any(word in node.op_type for word in ("MatMul", "Attention", "Integer")):
        return None
    place = {"QLinearConv": 8, "QGemm": 6}.get(node.op_type, 2)
    return node.inputs[place] if len(node.inputs) > place else None


def _is_dequantized(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "DequantizeLinear":
        return False
    read = producer.inputs[0]
    return read is not None and (read.dtype is None or read.dtype in _BYTES)


def _why_not(node: ir.Node) -> str:
    if node.op_type not in _MAY_BE_INT8:
        return f"there is no INT8 kernel for {node.op_type} here, or none was asked for"
    quantized = [_is_dequantized(value) for value in node.inputs[:2]]
    if not any(quantized):
        return "it was not asked for: neither its input nor its weight is quantized"
    if not quantized[0]:
        return "its weight is quantized and its input is not"
    if _constant_root(node.inputs[1]):
        return "its input is quantized and its weight is not"
    return "its second input is no constant and is not quantized"


def _is_weighted(node: ir.Node) -> bool:
    return any(word in node.op_type for word in _WEIGHTED)


def _is_constant(value: ir.Value) -> bool:
    return value.const_value is not None


def _constant_root(value: ir.Value | None) -> bool:
    return value is not None and (_is_constant(value) or value.producer() is None)


def _tensor(value: ir.Value) -> Tensor:
    shape = None
    if value.shape is not None and all(isinstance(size, int) for size in value.shape):
        shape = tuple(int(size) for size in value.shape)  # type: ignore[arg-type]
    return Tensor(value.name or "", "" if value.dtype is None else value.dtype.name.lower(), "", shape)


def _attributes(node: ir.Node) -> dict[str, str]:
    attributes = {}
    for name, attribute in _ATTRIBUTES.items():
        value = node.attributes.get(attribute)
        if value is not None:
            attributes[name] = "×".join(map(str, value.as_ints()))
    group = node.attributes.get("group")
    activation = node.attributes.get("activation")
    weight, bias = _weight_of(node), _bias_of(node)
    attributes |= {} if group is None else {"groups": str(group.as_int())}
    attributes |= {} if activation is None else {"activation": activation.as_string()}
    attributes |= {} if weight is None or weight.dtype is None else {"weights": _root_type(weight)}
    attributes |= {} if bias is None or bias.dtype is None else {"bias": _root_type(bias)}
    return attributes


def _root_type(value: ir.Value) -> str:
    producer = value.producer()
    if producer is not None and producer.op_type == "DequantizeLinear" and producer.inputs[0] is not None:
        value = producer.inputs[0]
    return "" if value.dtype is None else value.dtype.name.lower()


def _macs(node: ir.Node) -> int | None:
    """Multiply-adds of a Conv, from its output and its weight's shape; of a Gemm or MatMul, from what it sums over.

    Those of a ConvTranspose come from its input: each of its values is multiplied by the weights of all outputs.
    """
    weight, made = _weight_of(node), _tensor(node.outputs[0]).shape
    size = None if weight is None else _tensor(weight).shape
    if not made or size is None or len(size) < 2:
        return None
    if "Transpose" in node.op_type:
        read = None if node.inputs[0] is None else _tensor(node.inputs[0]).shape
        return None if not read else math.prod(read) * math.prod(size[1:])
    if "Conv" in node.op_type:
        return math.prod(made) * math.prod(size[1:])
    return math.prod(made) * (size[-2] if size[-1] == made[-1] else size[-1])
