"""What a session of ONNX Runtime reads a graph from: a message, and large constants from where they are in memory.

A message that is parsed is a copy of all its constants, and above 2 GiB there is none: the model would have to be
written to a file for every session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.held_folders import held_folder
from search.graph import onnx_file

# An entry of a session's options: kernels make no copies of the weights in the order that suits them.
IN_PLACE = ("session.disable_prepacking", "1")
_MOST_COPIED = 2**28  # bytes of constants in a message
_LEAST_BYTES = 2**10  # of a constant that is lent; smaller ones are shapes and scales, which ONNX Runtime may fold
# Another: where external data lie of a model that is opened from memory.
FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
_NUMPY_TYPES = frozenset(
    np.dtype(name) for name in ("float32", "float64", "float16", "int8", "uint8", "int32", "int64")
)


@contextmanager
def session_source(ort: Any, graph: ir.Model, options: Any, most_copied: int | None = None) -> Iterator[bytes | str]:
    """Give what a session of a graph of any size is opened with: a message or, rarely, the path of a temporary file.

    Args:
        ort: the onnxruntime module.
        graph: is not changed, and may be changed or deleted later. A session holds what it was lent; files that
            constants were mapped from have to stay.
        options: of the session; large constants are added to them.
        most_copied: bytes of constants from which on they are lent; None for what is worth it.
    """
    most_copied = _MOST_COPIED if most_copied is None else most_copied
    if onnx_file.bytes_inside(graph) <= most_copied:
        yield ir.to_proto(graph).SerializeToString()
        return
    rest = detach_constants(graph)
    if not onnx_file.fits_inside(graph, rest.left_out_bytes):
        with held_folder() as folder:
            path = folder / "model.onnx"
            onnx_file.write_any_size(graph, path)
            yield str(path)
        return
    rest.add_to(ort, options)
    yield ir.to_proto(rest.model).SerializeToString()


@dataclass(frozen=True)
class Detached:
    """A model that only refers to its large constants.

    Attributes:
        model: the copy.
        lent: constants by name that are in memory.
        folder: of the files with all others; None if there are none.
        mapped_bytes: of those in files.
    """

    model: ir.Model
    lent: dict[str, NDArray[Any]]
    folder: Path | None
    mapped_bytes: int

    @property
    def left_out_bytes(self) -> int:
        return self.mapped_bytes + self._lent_bytes

    @property
    def _lent_bytes(self) -> int:
        return sum(array.nbytes for array in self.lent.values())

    def add_to(self, ort: Any, options: Any) -> None:
        """Tell a session's options where the constants are.

        Float weights that lie in files are used where they are. A copy of each would be as much memory again for every
        session, for a gain in time that a few runs do not repay.
        """
        if self.lent:
            values = [ort.OrtValue.ortvalue_from_numpy(array) for array in self.lent.values()]
            options.add_external_initializers(list(self.lent), values)
        if self.folder is not None:
            options.add_session_config_entry(FOLDER_ENTRY, str(self.folder))
        if self.mapped_bytes > self._lent_bytes:
            options.add_session_config_entry(*IN_PLACE)


def detach_constants(model: ir.Model) -> Detached:
    """Give a copy of a model that refers to its large constants: in the files they were mapped from, or in memory.

    Constants in the bodies of If and Loop, and those of types that numpy has not, stay in the copy, and those that
    nothing reads are left out. No values are copied, unless they are not contiguous in memory.
    """
    copy = model.clone()
    lent: dict[str, NDArray[Any]] = {}
    folder: Path | None = None
    mapped_bytes = 0
    for name, value in list(copy.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del copy.graph.initializers[name]  # ONNX Runtime drops it too, and does not find then what it is lent
            continue
        tensor = value.const_value
        if tensor is None or tensor.nbytes < _LEAST_BYTES or tensor.numpy().dtype not in _NUMPY_TYPES:
            continue
        place = onnx_file.mapped_from(tensor)
        if place is not None and folder in (None, Path(place.base_dir)):
            folder = Path(place.base_dir)
            mapped_bytes += tensor.nbytes
            where, offset = str(place.location), place.offset or 0
        else:
            lent[name] = np.ascontiguousarray(tensor.numpy())
            where, offset = "memory", 0
        shape = ir.Shape(tensor.numpy().shape)
        value.const_value = ir.ExternalTensor(where, offset, tensor.nbytes, tensor.dtype, shape=shape, name=name)
    return Detached(copy, lent, None if folder is None else folder.resolve(), mapped_bytes)
