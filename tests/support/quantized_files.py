"""Files as ONNX Runtime's quantizers write them, from networks of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from search.graph.model import load
from tests.support.networks import feeds, save

Array = NDArray[Any]


class _Batches(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, batches: Iterator[dict[str, Array]]) -> None:
        self._batches = batches

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


def quantized(
    network: onnx.ModelProto,
    folder: Path,
    layout: str = "QDQ",
    *,
    per_channel: bool = True,
    signed: bool = False,
    activations: QuantType | None = None,
    **options: Any,
) -> Path:
    """The file that `quantize_static` makes of a network; the float one is `float.onnx` beside it.

    Args:
        layout: QDQ, or QOperator for QLinear ops.
        signed: activations in INT8 with the zero point 0, as TensorRT wants them; else UINT8.
        activations: another type of theirs.
    """
    source, out = save(network, folder / "float.onnx"), folder / "quantized.onnx"
    model = load(source)
    quantize_static(
        source,
        out,
        _Batches(feeds(model, seed) for seed in range(4)),
        quant_format=QuantFormat[layout],
        per_channel=per_channel,
        activation_type=activations or (QuantType.QInt8 if signed else QuantType.QUInt8),
        extra_options={"ActivationSymmetric": signed},
        **options,
    )
    return out


def with_rounded_constants(folder: Path) -> onnx.ModelProto:
    """`float.onnx` with every constant that `quantized.onnx` beside it has as codes, read back by its scales."""
    proto, codes = onnx.load(str(folder / "float.onnx")), onnx.load(str(folder / "quantized.onnx"))
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in codes.graph.initializer}
    readers = {name: node for node in proto.graph.node for name in node.input}
    for tensor in proto.graph.initializer:
        array = known.get(f"{tensor.name}_quantized")
        scale = known.get(f"{tensor.name}_quantized_scale", known.get(f"{tensor.name}_scale"))
        if array is not None and scale is not None:  # QLinear ops state no scale of a bias
            axis = _channel_axis(readers[tensor.name]) if array.ndim > 1 else 0
            form = [-1 if i == axis else 1 for i in range(array.ndim)] if scale.size > 1 else []
            zero = known.get(f"{tensor.name}_zero_point", np.zeros_like(scale)).astype(np.float32)
            wide = (array.astype(np.float32) - zero.reshape(form)) * scale.reshape(form)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(wide, np.float32), tensor.name))
    return proto


def _channel_axis(node: onnx.NodeProto) -> int:
    turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return 0 if node.op_type == "Conv" or turned else 1
