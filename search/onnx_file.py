"""ONNX files: reading with every way they can be broken named, writing, digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import external_data_helper, version_converter

from search.errors import ModelError
from search.shapes import ShapeRequest
from search.values import digest_of

OLDEST_OPSET = 13  # the first with per-channel QuantizeLinear
UPGRADE_OPSET = 17  # the newest that TensorRT 8.6 reads
_IR_VERSION_TAG = 0x08  # every ONNX file starts with its ir_version field


def read(path: Path) -> onnx.ModelProto:
    """Read and check an ONNX file with its external data.

    Raises:
        ModelError: no such file, no ONNX, truncated, external data missing or outside the model's folder, or
            refused by the ONNX checker.
    """
    proto = _parse(path)
    _check_external_data(proto, path)
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, onnx.onnx_cpp2py_export.shape_inference.InferenceError, ValueError) as error:
        raise ModelError(f"checking {path}: the ONNX checker refuses it: {_first_line(error)}") from error
    external_data_helper.load_external_data_for_model(proto, str(path.parent))
    return proto


def write(model: ir.Model, path: Path) -> None:
    """Write a model as one file without external data; byte-equal for equal models."""
    path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def at_least_opset(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model at its own opset, or converted when that cannot carry per-channel quantization.

    Raises:
        ModelError: ONNX's own converter cannot convert the model.
    """
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    if version >= OLDEST_OPSET:
        return proto
    try:
        converted: onnx.ModelProto = version_converter.convert_version(proto, UPGRADE_OPSET)
        return converted
    except Exception as error:
        raise ModelError(
            f"converting {path} from opset {version} to {UPGRADE_OPSET}: ONNX's converter gave up: "
            f"{_first_line(error)}. Export the model with opset {OLDEST_OPSET} or newer."
        ) from error


def digest(path: Path, proto: onnx.ModelProto, shapes: Mapping[str, ShapeRequest], batch: int | None) -> str:
    """Digest of the file's bytes, its external data and the requested shapes; the same after the file has moved."""
    content = hashlib.sha256(path.read_bytes())
    for location in sorted({where for _, where in _external(onnx.load(str(path), load_external_data=False))}):
        content.update((path.parent / location).read_bytes())
    requested = {name: [list(shape) for shape in (r.low, r.best, r.high)] for name, r in shapes.items()}
    return digest_of({"file": content.hexdigest(), "shapes": requested, "batch": batch})


def _parse(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise ModelError(f"loading the model: there is no file {path}. Give the path of an ONNX file.")
    data = path.read_bytes()
    try:
        proto = onnx.ModelProto()
        proto.ParseFromString(data)
    except DecodeError as error:
        damaged = bool(data) and data[0] == _IR_VERSION_TAG
        found = "it is truncated or damaged: copy or export it again" if damaged else "it is not an ONNX file"
        raise ModelError(f"loading {path}: expected an ONNX model, but {found}.") from error
    if not proto.graph.node or not proto.ir_version:
        raise ModelError(f"loading {path}: expected an ONNX model, but it is not an ONNX file or has no nodes.")
    return proto


def _external(proto: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, str]]:
    for tensor in external_data_helper._get_all_tensors(proto):
        if external_data_helper.uses_external_data(tensor):
            yield tensor, external_data_helper.ExternalDataInfo(tensor).location


def _check_external_data(proto: onnx.ModelProto, path: Path) -> None:
    folder = path.parent.resolve()
    for tensor, location in _external(proto):
        file = (folder / location).resolve()
        if not file.is_relative_to(folder):
            raise ModelError(
                f"loading {path}: tensor {tensor.name!r} keeps its data in {location!r}, outside the model's folder. "
                "External data must lie beside the model; move it there and save the model again."
            )
        if not file.is_file():
            raise ModelError(
                f"loading {path}: tensor {tensor.name!r} needs the external data file {location!r}, which is not in "
                f"{folder}. Copy it beside the model."
            )
        info = external_data_helper.ExternalDataInfo(tensor)
        if (info.offset or 0) + (info.length or 0) > file.stat().st_size:
            raise ModelError(f"loading {path}: external data file {location!r} is truncated. Copy it again.")


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
