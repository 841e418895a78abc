"""The layers of a TensorRT engine, from JSON of its inspector or of trtexec. This module does not need TensorRT."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evaluators.backends.layers import Layer, Tensor
from evaluators.backends.tensorrt.audit import EngineLayer, parse
from search.values import Precision

_MYELIN = re.compile(r"__myl|_myl\d")  # in names of its layers, for which the inspector never lists weights
_WEIGHTED = ("convolution", "deconvolution", "fullyconnected", "gemm", "matrixmultiply", "matrix_multiply")
_MOST_AXES = 64  # TensorRT has 8
_ATTRIBUTES = {
    "kernel": ("Kernel",),
    "stride": ("Stride",),
    "padding": ("PrePadding", "PostPadding"),
    "dilation": ("Dilation",),
    "groups": ("Groups",),
    "activation": ("Activation",),
    "tactic": ("TacticName",),
}


def read_layers(text: str) -> tuple[Layer, ...]:
    """Layers of the inspector's detailed JSON, of TensorRT 8.6, 10.x or 11.x.

    Raises:
        ValueError: it is no such JSON, or holds names only.
    """
    parsed = parse(text)
    raw = json.loads(text, strict=False)["Layers"]
    return tuple(_layer(layer, data) for layer, data in zip(parsed, raw, strict=True))


def read_times(text: str) -> dict[str, float]:
    """Layer name → milliseconds of one inference, of `trtexec --exportProfile`.

    Raises:
        ValueError: it is no such JSON.
    """
    data = json.loads(text, strict=False)
    rows = [row for row in data if isinstance(row, dict) and "name" in row] if isinstance(data, list) else []
    if not rows:
        raise ValueError("expected a list of layers with `name` and `averageMs`, as trtexec --exportProfile writes it")
    runs = next((row["count"] for row in data if isinstance(row, dict) and "count" in row), 1)
    return {str(row["name"]): _milliseconds(row, runs) for row in rows}


def _milliseconds(row: Mapping[str, Any], runs: float) -> float:
    if "averageMs" in row:
        return float(row["averageMs"])
    if "timeMs" not in row:
        raise ValueError(f"expected `averageMs` or `timeMs` of layer {row['name']!r}, got {', '.join(row)}")
    return float(row["timeMs"]) / max(1.0, float(runs))


def _layer(layer: EngineLayer, data: Mapping[str, Any]) -> Layer:
    precision = None if layer.moves or layer.opaque else layer.precision()
    return Layer(
        name=layer.name,
        kind=layer.kind,
        precision=precision,
        nodes=tuple(sorted(layer.nodes())),
        inputs=_tensors(data.get("Inputs")),
        outputs=_tensors(data.get("Outputs")),
        moves=layer.moves,
        weighted=_is_weighted(layer, data),
        attributes=_attributes(data),
        macs=_macs(data),
        why_not_int8=_why_not(layer, precision),
    )


def _is_weighted(layer: EngineLayer, data: Mapping[str, Any]) -> bool:
    words = f"{layer.kind} {data.get('ParameterType', '')}".lower()
    return layer.weights is not None or (not layer.moves and any(word in words for word in _WEIGHTED))


def _why_not(layer: EngineLayer, precision: Precision | None) -> str:
    if layer.moves or (precision is not None and precision.quantized):
        return ""
    if layer.opaque:
        return "it is a fused region, of which the inspector does not show the layers"
    if precision is None:
        return "the file does not tell what it computes in"
    if any(tensor.precision is not None and tensor.precision.quantized for tensor in layer.inputs):
        return "its inputs are INT8 and it is not: it was not asked for, or the builder has no faster INT8 kernel"
    if layer.weights is None and _MYELIN.search(layer.name):
        return "the file does not tell whether it has weights; what feeds it is not in INT8"
    if layer.weights is None:
        return "it has no weights, and what feeds it is not in INT8"
    return f"it was not asked for, not calibrated, or slower than {precision.label} here"


def _attributes(data: Mapping[str, Any]) -> dict[str, str]:
    attributes = {}
    for name, keys in _ATTRIBUTES.items():
        said = [_words(data[key]) for key in keys if key in data]
        if any(said):
            attributes[name] = " ".join(dict.fromkeys(said))
    for name, key in (("weights", "Weights"), ("bias", "Bias")):
        if isinstance(data.get(key), dict) and data[key].get("Count"):
            attributes[name] = str(data[key].get("Type", ""))
    attributes["sparse"] = "yes" if data.get("HasSparseWeights") else "no"
    return attributes


def _words(value: Any) -> str:
    return "×".join(map(str, value)) if isinstance(value, list) else str(value)


def _macs(data: Mapping[str, Any]) -> int | None:
    """Multiply-adds of a convolution, from its output and its kernel; None for other layers."""
    outputs, inputs, kernel = _tensors(data.get("Outputs")), _tensors(data.get("Inputs")), data.get("Kernel")
    groups = data.get("Groups", 1)
    if not (outputs and inputs and isinstance(kernel, list)):
        return None
    made, read = outputs[0].shape, inputs[0].shape
    if not made or not read or len(read) < 2 or not all(map(_is_size, (*made, *read, *kernel, groups))):
        return None
    return int(math.prod(made) * math.prod(kernel) * read[1] // groups)


def _is_size(value: Any) -> bool:
    """Whether it can be a size: a file may have anything there, and a text would be repeated by it."""
    return isinstance(value, int) and 1 <= value < 2**31


def _tensors(data: Any) -> tuple[Tensor, ...]:
    rows: Sequence[Any] = data if isinstance(data, list) else ()
    return tuple(_tensor(row) for row in rows if isinstance(row, dict))


def _tensor(data: Mapping[str, Any]) -> Tensor:
    said = {key.lower(): value for key, value in data.items()}
    both = str(said.get("format/datatype", ""))
    sizes = said.get("dimensions")
    if isinstance(sizes, list) and not (len(sizes) <= _MOST_AXES and all(isinstance(size, int) for size in sizes)):
        raise ValueError(f"expected up to {_MOST_AXES} whole numbers as dimensions of {said.get('name')!r}")
    shape = tuple(sizes) if isinstance(sizes, list) else None
    return Tensor(
        str(said.get("name", "")),
        str(said.get("datatype", both)),
        str(said.get("format", both)),
        shape,
    )
