"""Writing batches of samples to a folder of `.npy` files, from which single rows can be read."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evaluators.data.reading.stored_arrays import ROWS, Form, file_name, form_folder, form_of
from evaluators.data.reading.user_batches import count_samples
from search.errors import DataError

_HEADER = {"fortran_order": False}
_PARTIAL = ".partial-"


class SampleFiles:
    """A folder of `.npy` files that is being written. A context manager: the folder appears whole at its end, or never.

    What was at the folder before is replaced. Samples of another shape than the first ones go to folders within it, one
    for each form, see `form_folders`.

    Args:
        folder: which it will be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._partial = folder.with_name(f"{_PARTIAL}{os.getpid()}-{secrets.token_hex(4)}")
        self._forms: dict[Form, dict[str, _ArrayFile]] = {}
        self._rows: dict[Form, list[NDArray[np.int64]]] = {}  # where samples of each form stand among all
        self._dtypes: dict[str, str] = {}
        self._batches = self._samples = 0

    def __enter__(self) -> SampleFiles:
        self._partial.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for arrays in self._forms.values():
                for array in arrays.values():
                    array.close()
            if error is None:
                # Where samples stood before those of one form were brought together.
                for number, rows in enumerate(self._rows.values() if len(self._rows) > 1 else ()):
                    np.save(form_folder(self._partial, number) / ROWS, np.concatenate(rows), allow_pickle=False)
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
            DataError: it has other arrays than those before, or rows of another dtype or with other axes.
            OSError: the disk is full.
        """
        self._check_kinds(batch)
        form = form_of(batch)
        if form not in self._forms:
            folder = form_folder(self._partial, len(self._forms))
            folder.mkdir(exist_ok=True)
            self._forms[form] = {name: _ArrayFile(folder / file_name(name)) for name in batch}
        for name, array in batch.items():
            self._forms[form][name].add(array)
        count = count_samples(batch)
        self._rows.setdefault(form, []).append(np.arange(self._samples, self._samples + count))
        self._batches += 1
        self._samples += count

    def _check_kinds(self, batch: Mapping[str, NDArray[Any]]) -> None:
        kinds = {name: _kind_of(array) for name, array in batch.items()}
        self._dtypes = self._dtypes or kinds
        if kinds.keys() != self._dtypes.keys():
            raise DataError(
                f"reading the data: one batch has {list(self._dtypes)}, another {list(batch)}. Name the same in each."
            )
        for name, kind in kinds.items():
            if kind != self._dtypes[name]:
                raise DataError(
                    f"reading the data: batches do not fit together: {name!r} is {kind} in batch {self._batches}, and "
                    f"{self._dtypes[name]} in those before. Give all samples one type and as many axes."
                )


def _kind_of(array: NDArray[Any]) -> str:
    """What all batches have in common: dtype and number of axes. Texts may become longer from batch to batch."""
    dtype = "text" if array.dtype.kind in "US" else str(array.dtype.newbyteorder("="))
    return f"{dtype} with {array.ndim} ax{'i' if array.ndim == 1 else 'e'}s"


@dataclass
class _ArrayFile:
    """One array that grows. Its file is open only while something is written, because there may be many.

    Texts may become longer from batch to batch: they are written at the end.
    """

    path: Path
    _dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype("f4"))
    _row: tuple[int, ...] = ()
    _rows: int = 0
    _texts: list[NDArray[Any]] = field(default_factory=list)

    def add(self, array: NDArray[Any]) -> None:
        if array.dtype.kind in "US":
            self._texts.append(array)
            return
        native = array.dtype.newbyteorder("=")
        if not self.path.exists():
            self._dtype, self._row = native, array.shape[1:]
            with self.path.open("wb") as file:
                self._write_header(file)
        with self.path.open("ab") as file:
            file.write(np.ascontiguousarray(array, native).reshape(-1).view(np.uint8).data)
        self._rows += len(array)

    def close(self) -> None:
        if self._texts:
            np.save(self.path, np.concatenate(self._texts), allow_pickle=False)
        elif self.path.exists():
            with self.path.open("r+b") as file:
                self._write_header(file)

    def _write_header(self, file: BinaryIO) -> None:
        """A header has room for more rows, so the last one takes no more bytes than the first."""
        header = {**_HEADER, "descr": np.lib.format.dtype_to_descr(self._dtype), "shape": (self._rows, *self._row)}
        np.lib.format.write_array_header_1_0(file, header)


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
