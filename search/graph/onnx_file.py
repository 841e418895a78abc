"""Reading ONNX files with a message for every way they can be damaged, writing them, and their digests."""

from __future__ import annotations

import errno
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import external_data_helper

from search.errors import BitfrontError, ModelError
from search.graph.fused.own_domain import refuse_layouts, set_own_ops_apart
from search.graph.opset_upgrade import nodes, sort_nodes
from search.graph.shapes import ShapeRequest
from search.graph.sizes import check_growth, put_batch_first
from search.values import digest_of

_PACKED = frozenset(
    number
    for name, number in onnx.TensorProto.DataType.items()
    if name.endswith(("INT4", "E2M1", "INT2", "E2M3", "E3M2"))
)
_LARGEST_FILE = 2**31 - 1  # what a protobuf message holds
_MOST_INSIDE = 2**31 - 2**26  # of constants in one file, which leaves room for the graph
_CHUNK_BYTES = 1 << 20
_REPLACED = {  # ops that opsets have deprecated, and how to export a model without them
    "GroupNormalization": "with opset 21 or newer, whose GroupNormalization is another",
    "Scatter": "with ScatterElements, which computes the same",
    "Upsample": "with Resize, which newer exporters write",
}
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
    refuse_layouts(proto, path)
    sort_nodes(proto.graph)
    check_growth(proto, path)
    total = _check_external_data(proto, path)
    _check_inside_data(proto, path)
    _complete_outputs(proto, path)
    check(proto, str(path))
    if total <= _MOST_INSIDE:
        with refuse_inconsistent(path):
            _load_external_data(proto, path)
    return proto


def check(proto: onnx.ModelProto, what: str) -> None:
    """Run the ONNX checker on a model; external data are not looked at.

    Args:
        what: the model, as a message names it.

    Raises:
        ModelError: naming the node, and what to do where that is known.
    """
    bare = proto
    if any(True for _ in _external(proto)):  # its tools refuse every link, and look for data where no model is
        bare = onnx.ModelProto()
        bare.CopyFrom(proto)
        for tensor, _ in _external(bare):
            tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    try:
        with set_own_ops_apart(bare):
            onnx.checker.check_model(bare)
    except (onnx.checker.ValidationError, ValueError) as error:
        text = _deprecated_op(proto) if "is deprecated" in str(error) else _first_line(error)
        raise ModelError(f"checking {what}: the ONNX checker reports an error: {text}") from error


def _deprecated_op(proto: onnx.ModelProto) -> str:
    """What to say of the first node whose op its opset has deprecated."""
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    for node in nodes(proto.graph):
        known = node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type, opset, "")
        if known and onnx.defs.get_schema(node.op_type, opset, "").deprecated:
            since = onnx.defs.get_schema(node.op_type, opset, "").since_version
            remedy = _REPLACED.get(node.op_type, f"with an opset before {since}")
            return (
                f"node {node.name or node.output[0]!r} is a {node.op_type}, which opset {since} has deprecated, and "
                f"the model is of opset {opset}. Export the model {remedy}."
            )
    return "an op is deprecated"


def _complete_outputs(proto: onnx.ModelProto, path: Path) -> None:
    """Infer the type and rank of outputs that do not say them, in place, as tools that cut models leave them."""
    bare = [value for value in proto.graph.output if not _is_typed(value)]
    if not bare:
        return
    with refuse_inconsistent(path):
        graph = onnx.shape_inference.infer_shapes(proto).graph
    value_infos = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output) if _is_typed(value)}
    missing = [value.name for value in bare if value.name not in value_infos]
    if missing:
        raise ModelError(
            f"checking {path}: expected a type and a shape of every output, but {missing[0]!r} has none in the file, "
            "and they cannot be inferred. Write them into the file, of unknown sizes if need be: "
            "onnx.helper.make_tensor_value_info gives what the list of outputs takes."
        )
    for value in bare:
        value.CopyFrom(value_infos[value.name])


def _is_typed(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return value.type.WhichOneof("value") is not None and (
        not value.type.HasField("tensor_type") or (tensor.elem_type != 0 and tensor.HasField("shape"))
    )


def _load_external_data(proto: onnx.ModelProto, path: Path) -> None:
    """Read external data into the model, in place; `_check_external_data` has found them good."""
    for tensor, location in list(_external(proto)):
        info = external_data_helper.ExternalDataInfo(tensor)
        with (path.parent / location).open("rb") as file:
            file.seek(info.offset or 0)
            tensor.raw_data = file.read(info.length or 0)
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT


def read_input_shapes(path: Path, batch: int | None = None) -> dict[str, Dims]:
    """Read the sizes of every input from a file: a number, or the name of a dynamic size.

    Inputs without a shape and constants are left out. With a `batch` of one, an axis of size one behind others is that
    of the samples and comes first. Nothing else of the file is checked.

    Raises:
        ModelError: the file does not exist or is not ONNX.
    """
    graph = _parse(path).graph
    if batch == 1:
        put_batch_first(graph, single=True)
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
    """Map a constant into memory from the file that links lead to, whose folder was checked when it was read."""
    file = Path(tensor.path).resolve()
    size = tensor.offset, tensor.length, tensor.dtype
    values = ir.ExternalTensor(str(file), *size, shape=tensor.shape, name=tensor.name).numpy()
    mapped = ir.Tensor(values, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
    mapped.meta[_PLACE] = ir.ExternalTensor(
        file.name, *size, shape=tensor.shape, name=tensor.name, base_dir=file.parent
    )
    return mapped


def mapped_from(tensor: ir.TensorProtocol) -> ir.ExternalTensor | None:
    """Where in which file the values of a constant lie that was mapped into memory; None for another constant."""
    place = tensor.meta.get(_PLACE) if isinstance(tensor, ir.Tensor) else None
    return place if isinstance(place, ir.ExternalTensor) else None


@contextmanager
def refuse_inconsistent(path: Path) -> Iterator[None]:
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


def digest(path: Path, shapes: Mapping[str, ShapeRequest], batch: int | None, values: Sequence[str] = ()) -> str:
    """Digest of the file, its external data, and the shapes and values that were asked for; not of the path."""
    content = hashlib.sha256(path.read_bytes())
    for location in external_files(path):
        with (path.parent / location).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                content.update(chunk)
    requested = {name: [list(shape) for shape in (r.low, r.best, r.high)] for name, r in shapes.items()}
    fixed = {"values": sorted(values)} if values else {}
    return digest_of({"file": content.hexdigest(), "shapes": requested, "batch": batch, **fixed})


def external_files(path: Path) -> list[str]:
    """Paths of the files of external data that a checked ONNX file reads, relative to its folder, sorted."""
    return sorted({where for _, where in _external(onnx.load(str(path), load_external_data=False))})


def without_repeated_names(path: Path) -> bytes | None:
    """The message of a file in which nodes share names, without these: ONNX Runtime refuses them. None for others."""
    proto = onnx.load(str(path), load_external_data=False)
    counts = Counter(node.name for node in nodes(proto.graph))
    if all(count == 1 or not name for name, count in counts.items()):
        return None
    for node in nodes(proto.graph):
        if counts[node.name] > 1:
            node.name = ""
    return bytes(proto.SerializeToString())


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
        problem = "it is truncated or damaged: copy or export it again" if damaged else "it is not an ONNX file"
        raise ModelError(f"loading {path}: expected an ONNX model, but {problem}.") from error
    if not proto.graph.node or not proto.ir_version:
        raise ModelError(f"loading {path}: expected an ONNX model, but it is not an ONNX file or has no nodes.")
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:  # how PaddlePaddle spells a dynamic size
                dim.Clear()
    put_batch_first(proto.graph)
    return proto


def _external(proto: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, str]]:
    for tensor in external_data_helper._get_all_tensors(proto):
        if external_data_helper.uses_external_data(tensor):
            yield tensor, next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _check_inside_data(proto: onnx.ModelProto, path: Path) -> None:
    """Refuse a tensor with more or fewer numbers in the file than its type and shape say: the checker takes it."""
    for tensor in external_data_helper._get_all_tensors(proto):
        if external_data_helper.uses_external_data(tensor):
            continue
        try:
            onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(
                f"loading {path}: tensor {tensor.name!r} is damaged: expected the numbers of a tensor of the shape "
                f"{list(tensor.dims)}, got {_first_line(error)}. Copy the file or export it again."
            ) from error


def _check_external_data(proto: onnx.ModelProto, path: Path) -> int:
    """Bytes of the file with its external data; raises ModelError if these are missing, damaged or misplaced.

    A tensor may leave the length of its data out, but what reads them then takes the rest of the file: it is added.
    """
    total = path.stat().st_size
    for tensor, location in _external(proto):
        size = _size_inside(tensor.name, location, path)
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


def _size_inside(tensor: str, location: str, path: Path) -> int:
    """Size of an external data file. With links followed, it lies in the folder of the model's path or real path."""
    folders = path.parent.resolve(), path.resolve().parent
    try:
        file = (path.parent / location).resolve()
        plain = not Path(location).is_absolute() and ".." not in Path(location).parts
        inside = plain and any(file.is_relative_to(folder) for folder in folders)
        size = file.stat().st_size if file.is_file() else None
    except (OSError, ValueError):  # no name that a file could have
        inside, size = True, None
    if not inside:
        raise ModelError(
            f"loading {path}: tensor {tensor!r} keeps its data in {location!r}, outside the model's folder. External "
            "data must lie beside the model. If they are a link, copy what it leads to: "
            f"`cp -L {path.name} {Path(location).name} FOLDER/`; otherwise move them there and save the model again."
        )
    if size is None:
        raise ModelError(
            f"loading {path}: tensor {tensor!r} needs the external data file {location[:200]!r}, which is not in "
            f"{folders[0]}. Copy it beside the model."
        )
    return size


def _bytes_of(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's values; 0 for negative sizes."""
    if min(tensor.dims, default=0) < 0:
        return 0
    if tensor.data_type in _PACKED:
        return math.ceil(int(math.prod(tensor.dims)) * float(ir.DataType(tensor.data_type).itemsize))
    dtype: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return int(math.prod(tensor.dims)) * dtype.itemsize


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {_first_line(error)}".rstrip(".")


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
