"""Reading ONNX files with a message for every way they can be damaged, writing them, and their digests."""

from __future__ import annotations

import errno
import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import external_data_helper

from search.errors import BitfrontError, ModelError
from search.graph.shapes import ShapeRequest
from search.graph.sizes import check_growth
from search.values import digest_of

_PACKED = frozenset(
    number for name, number in onnx.TensorProto.DataType.items() if name.endswith(("INT4", "E2M1", "INT2"))
)
_LARGEST_FILE = 2**31 - 1  # what a protobuf message holds
_MOST_INSIDE = 2**31 - 2**26  # of constants in one file, which leaves room for the graph
_CHUNK_BYTES = 1 << 20
_PLACE = "bitfront.place"  # of a mapped constant in its file
_IR_VERSION_TAG = 0x08  # every ONNX file starts with its ir_version field

Dims = tuple[int | str, ...]


def read(path: Path) -> onnx.ModelProto:
    """Read and check an ONNX file with its external data.

    Returns:
        The model. If its constants exceed the 2 GiB of one ONNX file, external data stay in their files, and `to_graph`
        maps them into memory.

    Raises:
        ModelError: the file does not exist, is not ONNX or truncated, external data are missing or outside the model's
            folder, or the ONNX checker refuses it.
    """
    proto = _parse(path)
    check_growth(proto, path)
    total = _check_external_data(proto, path)
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, onnx.onnx_cpp2py_export.shape_inference.InferenceError, ValueError) as error:
        raise ModelError(f"checking {path}: the ONNX checker reports an error: {_first_line(error)}") from error
    if total <= _MOST_INSIDE:
        with understanding(path):
            external_data_helper.load_external_data_for_model(proto, str(path.parent))
    return proto


def read_input_shapes(path: Path) -> dict[str, Dims]:
    """Read the sizes of every input from a file: a number, or the name of a dynamic size.

    Inputs without a shape and constants are left out. Nothing else of the file is checked.

    Raises:
        ModelError: the file does not exist or is not ONNX.
    """
    graph = _parse(path).graph
    constants = {each.name for each in graph.initializer}
    tensors = {each.name: each.type.tensor_type for each in graph.input if each.name not in constants}
    return {
        name: tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim)
        for name, tensor in tensors.items()
        if tensor.HasField("shape")
    }


def to_graph(proto: onnx.ModelProto, path: Path) -> ir.Model:
    """Make the graph of a model that was read from `path`; constants in other files are mapped into memory."""
    model = ir.from_proto(proto)
    for graph in model.graphs():
        ir.external_data.set_base_dir(graph, path.parent)
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _map_tensor(value.const_value)
        for node in graph:
            for name, attribute in node.attributes.items():
                if isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, _map_tensor(attribute.value))
    return model


def _map_tensor(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    mapped = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
    mapped.meta[_PLACE] = tensor
    return mapped


def mapped_from(tensor: ir.TensorProtocol) -> ir.ExternalTensor | None:
    """Where in which file the values of a constant lie that was mapped into memory; None for another constant."""
    place = tensor.meta.get(_PLACE) if isinstance(tensor, ir.Tensor) else None
    return place if isinstance(place, ir.ExternalTensor) else None


@contextmanager
def understanding(path: Path) -> Iterator[None]:
    """Turn errors of ONNX's own tools about a file that only looks valid into a ModelError with its cause."""
    try:
        yield
    except (BitfrontError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"loading {path}: the file passes the ONNX checker, but its contents are inconsistent: {_cause(error)}. "
            "Export it again."
        ) from error


def write(model: ir.Model, path: Path) -> None:
    """Write a model as one file without external data. Equal models give equal bytes."""
    path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def bytes_inside(model: ir.Model) -> int:
    """Bytes of all constants of a model."""
    constants = [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
    return sum(tensor.nbytes for tensor in constants if tensor is not None)


def fits_inside(model: ir.Model, without: int = 0) -> bool:
    """Whether one ONNX file can hold a model with all its constants, but for so many bytes of them."""
    return bytes_inside(model) - without <= _MOST_INSIDE


def write_any_size(model: ir.Model, path: Path) -> None:
    """Write a model as one file, or with its weights in `NAME.data` beside it if one file cannot hold them."""
    if fits_inside(model):
        write(model, path)
        return
    try:
        ir.save(model, path, external_data=weights_beside(path).name)
    except OSError as error:
        if error.errno is None:  # numpy's, which writes arrays, says that the disk is full in words alone
            raise OSError(errno.ENOSPC, str(error), str(path)) from error
        raise


def weights_beside(path: Path) -> Path:
    """The path of the weights of an ONNX file that cannot hold them itself."""
    return path.with_name(f"{path.name}.data")


def refer_to(proto: onnx.ModelProto, location: str) -> None:
    """Let all external constants of a model refer to another file in its folder; changes the model in place."""
    for tensor, _ in _external(proto):
        next(entry for entry in tensor.external_data if entry.key == "location").value = location


def digest(path: Path, proto: onnx.ModelProto, shapes: Mapping[str, ShapeRequest], batch: int | None) -> str:
    """Digest of the file's bytes, its external data and the requested shapes. It does not depend on the path."""
    content = hashlib.sha256(path.read_bytes())
    for location in external_files(path):
        with (path.parent / location).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                content.update(chunk)
    requested = {name: [list(shape) for shape in (r.low, r.best, r.high)] for name, r in shapes.items()}
    return digest_of({"file": content.hexdigest(), "shapes": requested, "batch": batch})


def external_files(path: Path) -> list[str]:
    """Paths of the files of external data that a checked ONNX file reads, relative to its folder, sorted."""
    return sorted({where for _, where in _external(onnx.load(str(path), load_external_data=False))})


def _parse(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise ModelError(f"loading the model: there is no file {path}. Give the path of an ONNX file.")
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ModelError(
                f"loading {path}: expected an ONNX file of at most 2 GiB, got {path.stat().st_size / 2**30:.1f} GiB. "
                "Save the model with external data, which allow weights of any size."
            )
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"loading {path}: the file cannot be read: {error.strerror}.") from error
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
            yield tensor, next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _check_external_data(proto: onnx.ModelProto, path: Path) -> int:
    """Bytes of the file with its external data; raises ModelError if these are missing, damaged or misplaced.

    A tensor may leave the length of its data out, but what reads them then takes the rest of the file: it is added.
    """
    folder = path.parent.resolve()
    total = path.stat().st_size
    for tensor, location in _external(proto):
        size = _size_inside(folder, tensor.name, location, path)
        try:
            info = external_data_helper.ExternalDataInfo(tensor)
        except ValueError as error:
            raise ModelError(f"loading {path}: tensor {tensor.name!r} is damaged: {_first_line(error)}.") from error
        start, needed = info.offset or 0, _bytes_of(tensor)
        total += needed
        if info.length is None and needed:
            tensor.external_data.add(key="length", value=str(needed))
        if start + (info.length or needed) > size:
            raise ModelError(f"loading {path}: external data file {location!r} is truncated. Copy it again.")
        if needed and info.length not in (None, needed):
            raise ModelError(
                f"loading {path}: tensor {tensor.name!r} needs {needed} bytes, but the model gives it {info.length} of "
                f"{location!r}: it is damaged. Copy or export it again."
            )
    return total


def _size_inside(folder: Path, tensor: str, location: str, path: Path) -> int:
    """Size of an external data file, which must lie in `folder` after links are followed."""
    try:
        file = (folder / location).resolve()
        inside, size = file.is_relative_to(folder), file.stat().st_size if file.is_file() else None
    except (OSError, ValueError):  # no name that a file could have
        inside, size = True, None
    if not inside:
        raise ModelError(
            f"loading {path}: tensor {tensor!r} keeps its data in {location!r}, outside the model's folder. "
            "External data must lie beside the model; move it there and save the model again."
        )
    if size is None:
        raise ModelError(
            f"loading {path}: tensor {tensor!r} needs the external data file {location[:200]!r}, which is not in "
            f"{folder}. Copy it beside the model."
        )
    return size


def _bytes_of(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's values; 0 for types narrower than a byte, which are packed, and for negative sizes."""
    if tensor.data_type in _PACKED or min(tensor.dims, default=0) < 0:
        return 0
    dtype: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return int(math.prod(tensor.dims)) * dtype.itemsize


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {_first_line(error)}".rstrip(".")


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
