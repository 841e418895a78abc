"""Writing batches of samples to a folder of `.npy` files, from which single rows can be read."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evaluators.data.reading.stored_arrays import file_name
from evaluators.data.reading.user_batches import count_samples
from search.errors import DataError

Told = Callable[[int, int], object]
_HEADER = {"fortran_order": False}
_PARTIAL = ".partial-"


class SampleFiles:
    """A folder of `.npy` files that is being written. A context manager: the folder appears whole at its end, or never.

    What was at the folder before is replaced.

    Args:
        folder: which it will be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._partial = folder.with_name(f"{_PARTIAL}{os.getpid()}-{secrets.token_hex(4)}")
        self._arrays: dict[str, _ArrayFile] = {}
        self._batches = self._samples = 0

    def __enter__(self) -> SampleFiles:
        self._partial.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for array in self._arrays.values():
                array.close()
            if error is None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._partial.rename(self._folder)
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    @property
    def samples(self) -> int:
        """How many were written."""
        return self._samples

    def add(self, batch: Mapping[str, NDArray[Any]]) -> None:
        """Write the samples of one batch.

        Raises:
            DataError: it has other arrays than those before, or rows of another dtype or shape.
            OSError: the disk is full.
        """
        if not self._arrays:
            self._arrays = {name: _ArrayFile(self._partial / file_name(name), name) for name in batch}
        if batch.keys() != self._arrays.keys():
            raise DataError(
                f"reading the data: one batch has {list(self._arrays)}, another {list(batch)}. Name the same in each."
            )
        for name, array in batch.items():
            self._arrays[name].add(array, self._batches)
        self._batches += 1
        self._samples += count_samples(batch)


@dataclass
class _ArrayFile:
    """One array that grows. Texts may become longer from batch to batch: they are written at the end."""

    path: Path
    name: str
    _file: BinaryIO | None = None
    _dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype("f4"))
    _row: tuple[int, ...] = ()
    _rows: int = 0
    _texts: list[NDArray[Any]] = field(default_factory=list)

    def add(self, array: NDArray[Any], number: int) -> None:
        if array.dtype.kind in "US":
            self._texts.append(array)
            return
        native = array.dtype.newbyteorder("=")
        if self._file is None and not self._texts:
            self._file, self._dtype, self._row = self.path.open("wb"), native, array.shape[1:]
            self._write_header()
        if self._file is None or (native, array.shape[1:]) != (self._dtype, self._row):
            raise DataError(
                f"reading the data: batches do not fit together: {self.name!r} has rows of {native} {array.shape[1:]} "
                f"in batch {number}, and of {self._dtype} {self._row} in those before. Give all samples one form."
            )
        self._file.write(np.ascontiguousarray(array, native).reshape(-1).view(np.uint8).data)
        self._rows += len(array)

    def close(self) -> None:
        if self._file is not None:
            with self._file as file:
                file.seek(0)
                self._write_header()
        elif self._texts:
            np.save(self.path, np.concatenate(self._texts), allow_pickle=False)

    def _write_header(self) -> None:
        """A header has room for more rows, so the last one takes no more bytes than the first."""
        assert self._file is not None
        told = {**_HEADER, "descr": np.lib.format.dtype_to_descr(self._dtype), "shape": (self._rows, *self._row)}
        np.lib.format.write_array_header_1_0(self._file, told)


def first_samples(batches: Iterable[Mapping[str, NDArray[Any]]], most: int | None) -> Iterable[dict[str, NDArray[Any]]]:
    """The batches with the first samples; no more is read than they need.

    Args:
        most: samples; None for all.
    """
    left = most
    for batch in batches:
        yield {name: array[:left] for name, array in batch.items()}
        if left is not None:
            left -= count_samples(batch)
            if left <= 0:
                return
