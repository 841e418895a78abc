"""Arrays in files, of which only the requested rows are read into memory."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from search.errors import DataError
from search.references import short

BLOCK_BYTES = 8 * 2**20  # of what is looked at in one go
ROWS = ".rows.npy"  # hidden, for it is no array of the data
_SUFFIX = ".npy"


class Rows(Protocol):
    """What an array in memory and one in a file have in common."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any:
        """Some rows, by a slice or by their numbers, as an array in memory."""


RowArrays = dict[str, Rows]
Form = tuple[tuple[str, tuple[int, ...]], ...]  # name and shape of a row of each array, sorted


class StoredArray:
    """An array in a file.

    The file is mapped for each reading and no longer, so that pages that were read do not count as memory of this
    process.

    Args:
        path: the file.
        offset: of the first value, in bytes.
        shape, dtype: of the array, which lies in C order, or in Fortran order if `fortran`.
    """

    def __init__(
        self, path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, fortran: bool = False
    ) -> None:
        self._path = path
        self._offset = offset
        self._fortran = fortran
        self.shape = shape
        self.dtype = dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> NDArray[Any]:
        """Raises DataError where the file is gone or has become shorter."""
        if self.shape[0] == 0:
            return np.empty(self.shape, self.dtype)[rows]  # type: ignore[no-any-return]
        order: Any = "F" if self._fortran else "C"
        try:
            mapped = np.memmap(self._path, self.dtype, "r", self._offset, self.shape, order)
        except (OSError, ValueError) as error:
            raise DataError(
                f"reading samples from {self._path}: expected the file as it was when the run began, got "
                f"{short(error)}. Leave data where they are until the run ends"
            ) from error
        samples: NDArray[Any] = np.asarray(mapped)[rows]
        return samples if samples.base is None else samples.copy()  # a slice would keep the file mapped


def size_of(array: Rows) -> int:
    """Bytes of all values."""
    return int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize


def blocks(array: Rows) -> Iterator[NDArray[Any]]:
    """All rows in order, some at a time, which are in memory while they are looked at."""
    rows = max(1, BLOCK_BYTES * len(array) // max(1, size_of(array)))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


# -- files -------------------------------------------------------------------------------------------------------------


def read_npy(path: Path) -> StoredArray:
    """The array in a `.npy` file.

    Raises:
        DataError: it is none, holds Python objects, or has no axis of samples.
    """
    try:
        with path.open("rb") as file:
            shape, fortran, dtype = _read_header(file)
            offset = file.tell()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"data file {str(path)!r}: expected an array that numpy.save wrote, got {short(error)}. Write it again"
        ) from error
    if dtype.hasobject or not shape:
        what = (
            "one of Python objects: pickled and object arrays are refused because loading them could run foreign code"
            if dtype.hasobject
            else "a single value (of an input that is the same for all samples, give it by --input-value NAME=VALUE)"
        )
        raise DataError(f"data file {str(path)!r}: expected an array of numbers with one row per sample, got {what}")
    wanted = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if path.stat().st_size < wanted:
        raise DataError(
            f"data file {str(path)!r}: expected {wanted} bytes, got {path.stat().st_size}: it was not written to its "
            "end. Write it again"
        )
    return StoredArray(path, offset, shape, dtype, fortran=fortran)


def map_npz(path: Path) -> dict[str, StoredArray] | None:
    """The arrays of an `.npz` file where they lie; None if they are compressed or in another way not to be mapped.

    Checksums are compared, which reads the file once.

    Raises:
        OSError, ValueError, zipfile.BadZipFile: the file cannot be read or is damaged.
    """
    arrays: dict[str, StoredArray] = {}
    with path.open("rb") as raw, zipfile.ZipFile(raw) as archive:
        for member in archive.infolist():
            stored = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
            if not stored or not member.filename.endswith(_SUFFIX):
                return None
            with archive.open(member) as file:
                shape, fortran, dtype = _read_header(file)
                header = file.tell()
                while file.read(BLOCK_BYTES):
                    pass
            if dtype.hasobject or not shape:
                return None
            offset = _data_offset(raw, member) + header
            arrays[member.filename.removesuffix(_SUFFIX)] = StoredArray(path, offset, shape, dtype, fortran=fortran)
    return arrays


def read_npz_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of an `.npz` file, of which only the headers are read.

    Raises:
        OSError, ValueError, zipfile.BadZipFile: the file cannot be read or is damaged.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                shapes[member.filename.removesuffix(_SUFFIX)] = _read_header(file)[0]
    return shapes


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def _data_offset(file: Any, member: zipfile.ZipInfo) -> int:
    """Where the content of a member begins: behind its own header, whose name and extra field may be any length."""
    file.seek(member.header_offset + 26)
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    return member.header_offset + 30 + name + extra


# -- folders -----------------------------------------------------------------------------------------------------------


def file_name(array: str) -> str:
    """The file of an array in a folder of arrays: its name, in which `/` and the like are written as `%2F`."""
    return quote(array, safe=" ()[],;=+-@") + _SUFFIX


def read_folder(folder: Path) -> dict[str, StoredArray]:
    """The arrays of a folder of `.npy` files, each by the name of its file.

    Raises:
        DataError: one cannot be read.
    """
    return {unquote(path.name.removesuffix(_SUFFIX)): read_npy(path) for path in visible_files(folder, f"*{_SUFFIX}")}


def read_rows(folder: Path) -> NDArray[np.int64] | None:
    """Where the samples of one form stand among all of the data; None where the folder does not say it."""
    path = folder / ROWS
    return np.load(path, allow_pickle=False) if path.exists() else None


def visible_files(folder: Path, pattern: str) -> list[Path]:
    """Files of a folder by name, without hidden ones: copies of editors, and what macOS writes beside files."""
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def form_of(arrays: Mapping[str, Rows]) -> Form:
    """What samples have in common that fit into one batch: the shape of a row of each array."""
    return tuple(sorted((name, array.shape[1:]) for name, array in arrays.items()))


def form_folder(folder: Path, number: int) -> Path:
    """Where samples of one form are in a folder of samples: those of the first form are in the folder itself."""
    return folder / f"form-{number:05d}" if number else folder


def form_folders(folder: Path) -> list[Path]:
    """The folders of all forms of a folder of samples, in the order in which they were first seen."""
    return [folder, *sorted(folder.glob("form-[0-9]*"))]


def in_memory(arrays: Mapping[str, Rows]) -> dict[str, NDArray[Any]]:
    """Read stored arrays whole."""
    return {name: np.asarray(array[:]) for name, array in arrays.items()}
