"""Arrays in a file that two processes map: one writes them, the other copies them."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.process.handed_metric.metric_calls import ArrayPlace
from search.errors import MetricError

_ALIGNED = 64  # bytes; where an array may begin
_KINDS = "biufcSU"


class ArrayWriter:
    """Writes arrays to a file of its own, the next ones over the ones before.

    Args:
        folder: for the file, which is as large as the largest set of arrays and stays until the folder is removed.

    Attributes:
        file: its path.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._fd, path = tempfile.mkstemp(prefix="outputs-", dir=folder)
        self.file = Path(path)
        self._map: mmap.mmap | None = None

    def write(self, arrays: Sequence[NDArray[Any]]) -> list[ArrayPlace]:
        """Write arrays, and tell where each lies.

        Raises:
            MetricError: an array holds neither numbers nor texts.
            OSError: there is no room for them.
        """
        plain = [_plain(array) for array in arrays]
        places: list[ArrayPlace] = []
        end = 0
        for original, array in zip(arrays, plain, strict=True):
            places.append(ArrayPlace(end, list(array.shape), _write_dtype(array.dtype), original.dtype.hasobject))
            end += -(-array.nbytes // _ALIGNED) * _ALIGNED
        mapped = self._make_room(end)
        for place, array in zip(places, plain, strict=True):
            _view(mapped, place)[...] = array
        return places

    def _make_room(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            size = max(size, _ALIGNED)
            # Not a hole: a full disk is an error here, and a fatal signal where a mapped page is written.
            os.posix_fallocate(self._fd, 0, size)
            self._map = mmap.mmap(self._fd, size)
        return self._map


class ArrayReader:
    """Reads what an `ArrayWriter` of another process wrote."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._map: mmap.mmap | None = None

    def read(self, file: Path, place: ArrayPlace) -> NDArray[Any]:
        """A copy of an array: whoever gets it may keep it, as the file is written over."""
        end = place.offset + _size(place)
        if self._map is None or self._file != file or len(self._map) < end:
            with file.open("rb") as opened:
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            self._file = file
        array = _view(self._map, place)
        return array.astype(object) if place.objects else array.copy()


def _view(mapped: mmap.mmap, place: ArrayPlace) -> NDArray[Any]:
    view: NDArray[Any] = np.ndarray(tuple(place.shape), _read_dtype(place.dtype), mapped, place.offset)
    return view


def _write_dtype(dtype: np.dtype[Any]) -> str:
    """A dtype as numpy writes it; of several labels, which are fields, their names and dtypes as JSON."""
    return json.dumps(dtype.descr) if dtype.names else dtype.str


def _read_dtype(text: str) -> np.dtype[Any]:
    if not text.startswith("["):
        return np.dtype(text)
    return np.dtype([(name, kind, *map(tuple, shape)) for name, kind, *shape in json.loads(text)])


def _size(place: ArrayPlace) -> int:
    return int(np.prod(place.shape, dtype=np.int64)) * _read_dtype(place.dtype).itemsize


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself; one of Python texts as one of texts of equal length."""
    plain = array.astype(str) if array.dtype.hasobject else array
    kinds = [plain.dtype[name].base.kind for name in plain.dtype.names or ()] or [plain.dtype.kind]
    if not set(kinds) <= set(_KINDS):
        raise MetricError(
            f"handing outputs to a metric of the calling process: expected numbers or texts, got {plain.dtype}. Move "
            "the metric to a module of its own, which the evaluator process can import."
        )
    return plain
