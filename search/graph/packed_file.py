"""A model of any size as one file: an ONNX file, or a packed file if the model is too large for that.

An ONNX file holds at most 2 GiB; a larger model keeps its weights in a second file. But an engine has to be one file,
which is copied, sent and named by its digest. So a packed file has the weights, then the ONNX message that refers to
them, and at its end the length of the message and a mark. ONNX Runtime maps the weights into memory from there.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from search.graph import onnx_file

_MARK = b"bitfront packed\0"
_END = struct.Struct(f"<Q{len(_MARK)}s")  # bytes of the message, and the mark


def write(model: ir.Model, path: Path) -> None:
    """Write a model as one file, packed if an ONNX file cannot hold it. Equal models give equal bytes."""
    if onnx_file.fits_inside(model):
        onnx_file.write(model, path)
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as folder:
        draft = Path(folder) / "model.onnx"
        onnx_file.write_any_size(model, draft)
        weights, message = onnx_file.weights_beside(draft), draft.read_bytes()
        with weights.open("ab") as file:
            file.write(message)
            file.write(_END.pack(len(message), _MARK))
        weights.replace(path)


def read_message(path: Path) -> onnx.ModelProto | None:
    """Read the ONNX message of a packed file, whose constants refer to this file by name; None for another file."""
    with path.open("rb") as file:
        size = _message_size(file)
        if size is None:
            return None
        file.seek(-_END.size - size, 2)
        message = onnx.ModelProto()
        message.ParseFromString(file.read(size))
    onnx_file.refer_to(message, path.name)
    return message


def copy_as_onnx(path: Path, out: Path) -> None:
    """Copy a file as an ONNX file. Of a packed file, the weights go to `NAME.data` beside it."""
    message = read_message(path)
    if message is None:
        shutil.copyfile(path, out)
        return
    weights = onnx_file.weights_beside(out)
    shutil.copyfile(path, weights)
    with weights.open("rb+") as file:
        size = _message_size(file)
        assert size is not None
        file.seek(-_END.size - size, 2)
        file.truncate()
    onnx_file.refer_to(message, weights.name)
    out.write_bytes(message.SerializeToString(deterministic=True))


def load_graph(path: Path) -> ir.Model:
    """Load the graph of a file, packed or not. Large constants stay in the file until they are used."""
    message = read_message(path)
    proto = onnx.load(str(path), load_external_data=False) if message is None else message
    return onnx_file.to_graph(proto, path)


def _message_size(file: BinaryIO) -> int | None:
    """Bytes of the message of an open file, if it is packed."""
    if file.seek(0, 2) < _END.size:
        return None
    file.seek(-_END.size, 2)
    size, mark = _END.unpack(file.read(_END.size))
    return int(size) if mark == _MARK else None
