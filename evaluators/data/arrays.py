"""Data given as arrays: `.npz` and `.npy` files, folders of them, and the results of functions."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data.checks import LABELS, SEVERAL, Checker
from evaluators.data.clusters import CLUSTERS, join_ids, read_ids
from evaluators.data.dataset import Arrays, Indices
from evaluators.data.reading.read_source import read_function
from evaluators.data.reading.stored_arrays import (
    Form,
    RowArrays,
    Rows,
    StoredArray,
    blocks,
    form_folders,
    form_of,
    in_memory,
    map_npz,
    read_folder,
    read_npy,
    read_rows,
    size_of,
)
from search.errors import DataError
from search.graph.model import TensorSpec
from search.references import short
from search.values import digest_of

CACHE_BYTES = 192 * 2**20  # of samples that are kept in memory
WHOLE_BYTES = 64 * 2**20  # data of more, over all their files, are read by the row
FILE_BYTES = 4 * 2**30  # of samples that are written to files because they do not fit into memory
_FREE_SHARE = 0.25  # of the disk that may be taken for them


@dataclass(frozen=True)
class Shard:
    """A part of the data that is read as a whole; `name` is for messages."""

    name: str
    read: Callable[[], RowArrays]
    rows: Indices | None = None
    """Where its samples stand in the data, if they do not stand there one after the other."""


def npz_shard(path: Path) -> Shard:
    """One `.npz` file; it is read when it is needed, by the row where it is not compressed."""
    return Shard(path.name, lambda: _read_npz(path))


def npy_shard(path: Path, inputs: Sequence[TensorSpec]) -> Shard:
    """One `.npy` file, for a model with one input.

    Raises:
        DataError: the model has several.
    """
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise DataError(
            f"data file {str(path)!r}: expected an array for each of the model's inputs, {names}, and a .npy file "
            f"holds one. Give an .npz file, or a folder of .npy files with these names"
        )
    return Shard(path.name, lambda: {inputs[0].name: read_npy(path)})


def folder_shards(folder: Path, name: str) -> list[Shard]:
    """A folder of `.npy` files, one for each array, which are named as the arrays; a part for each form of samples."""
    return [Shard(name, partial(_read_arrays, each), read_rows(each)) for each in form_folders(folder)]


def _read_arrays(folder: Path) -> RowArrays:
    return {**read_folder(folder)}


def _read_npz(path: Path) -> RowArrays:
    try:
        if (mapped := map_npz(path)) is not None:
            return {**mapped}
        # Opened here, because numpy leaves a file that turns out to be no archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        # A bare .npy gives an array, which is no context manager: AttributeError on 3.10, TypeError later.
        raise DataError(
            f"data file {str(path)!r} is not a readable .npz archive of plain arrays ({short(error)}): write it with "
            "numpy.savez; pickled and object arrays are refused because loading them could run foreign code"
        ) from error
    strange = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise DataError(f"data file {str(path)!r}: {strange} are not arrays; write the file with numpy.savez")
    return {**arrays}


def function_shards(source: str, inputs: Sequence[TensorSpec], most: int | None) -> list[Shard]:
    """What a function of the user's gives, in memory.

    Args:
        most: samples that are taken; None for all.

    Raises:
        DataError: the function fails, or gives no batch or what does not fit the model.
    """
    batches = list(read_function(source, inputs, most))
    if not batches:
        raise DataError(f"data {source!r}: the function gave no batch; it has to return at least two samples")
    return [_shard_of(batch, f"{source} batch {number}") for number, batch in enumerate(batches)]


def _shard_of(arrays: Arrays, name: str) -> Shard:
    return Shard(name, lambda: {**arrays})


def as_array(value: Any, where: str) -> NDArray[Any]:
    """A value of the user's function as an array; `where` names it in messages."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where} cannot be read as an array ({short(error)}): return numpy arrays") from error


class Cache:
    """Parts of the data, each read once: from then on it is in memory or in files.

    What lies in files stays there. The rest is kept in memory up to `CACHE_BYTES`, the parts used last and always the
    newest, and what no longer fits is written to files. Samples are scored in random order, again and again: a part
    that were read anew whenever it is needed, decompressed or preprocessed, would cost more than everything else.

    Args:
        folder: for those files, as many as `FILE_BYTES` and a quarter of what is free on the disk allow; it is emptied.
            None: what does not fit into memory is read again when it is needed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._limit = CACHE_BYTES
        self._used = 0
        self._items: OrderedDict[int, tuple[Mapping[str, Rows], int]] = OrderedDict()
        self._settled: dict[int, Mapping[str, Rows]] = {}  # in files, or little
        self._folder = folder
        self._room: float | None = None  # bytes; None before anything was written

    def get(self, key: int, read: Callable[[], Mapping[str, Rows]]) -> Mapping[str, Rows]:
        if key in self._settled:
            return self._settled[key]
        if key in self._items:
            self._items.move_to_end(key)
            return self._items[key][0]
        value = read()
        if all(isinstance(array, StoredArray) for array in value.values()):
            self._settled[key] = value
            return value
        size = sum(map(size_of, value.values()))
        self._items[key] = (value, size)
        self._used += size
        while self._used > self._limit and len(self._items) > 1:
            oldest, (kept, size) = self._items.popitem(last=False)
            self._used -= size
            self._write(oldest, kept, size)
        return value

    def hold_small(self) -> None:
        """Read what lies in files into memory where all of it together is little."""
        if sum(size_of(array) for arrays in self._settled.values() for array in arrays.values()) <= WHOLE_BYTES:
            self._settled = {key: {**in_memory(arrays)} for key, arrays in self._settled.items()}

    def _write(self, key: int, arrays: Mapping[str, Rows], size: int) -> None:
        """Write a part to files if there is room; where that fails, none is written any more."""
        if self._folder is None or any(0 in array.shape for array in arrays.values()):
            return
        try:
            if self._room is None:
                shutil.rmtree(self._folder, ignore_errors=True)  # of a process that was replaced
                self._folder.mkdir(parents=True)
                self._room = min(FILE_BYTES, _FREE_SHARE * shutil.disk_usage(self._folder).free)
            if size > self._room:
                return
            self._room -= size
            rows_by_name = {}
            for place, (name, array) in enumerate(arrays.items()):
                file = self._folder / f"{key}-{place}.npy"
                np.save(file, np.ascontiguousarray(array[:]), allow_pickle=False)
                rows_by_name[name] = read_npy(file)
            self._settled[key] = rows_by_name
        except OSError:  # the disk is full
            self._room = 0


class ArrayDataset:
    """Samples in arrays, in one part or many.

    Args:
        inputs: of the model.
        folder: where parts that do not fit into memory may be written, see `Cache`.
        fixed: names of arrays that are constants of the model, and left out.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        inputs: Sequence[TensorSpec],
        folder: Path | None = None,
        fixed: Collection[str] = (),
    ) -> None:
        self._shards = shards
        self._checker = Checker(inputs, fixed)
        self._cache = Cache(folder)
        content = Content()
        sizes: list[int] = []
        forms: list[int] = []
        ids = []
        for number, shard in enumerate(shards):
            arrays = self._arrays(number)
            sizes.append(self._checker.check(arrays, shard.name, sum(sizes)))
            content.check_names(arrays, shard.name)
            if self._checker.takes(CLUSTERS) and CLUSTERS in arrays:
                ids.append(read_ids(np.asarray(arrays[CLUSTERS][:]), shard.name))
            forms.append(content.add(self._without_clusters(arrays), shard.name))
        self._source_rows: Indices | None = None
        if max(forms) > 0:
            order = np.argsort(forms, kind="stable")  # samples of one form stand together, however they came
            self._shards = [shards[place] for place in order]
            firsts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
            self._source_rows = np.concatenate(
                [
                    firsts[place] + np.arange(sizes[place]) if (rows := shards[place].rows) is None else rows
                    for place in order
                ]
            )
            sizes, forms = ([values[place] for place in order] for values in (sizes, forms))
            ids = [ids[place] for place in order] if ids else ids
            self._cache = Cache(folder)
        self._starts = np.cumsum([0, *sizes], dtype=np.int64)
        self._forms = np.repeat(np.array(forms, np.int64), sizes) if max(forms) > 0 else None
        self._clusters = join_ids(ids, [shard.name for shard in self._shards]) if ids else None
        self._digest = content.digest(len(self), self._clusters)
        self._labels = label_names(name for name in content.names if self._checker.takes(name))
        self._cache.hold_small()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def has_labels(self) -> bool:
        return bool(self._labels)

    @property
    def clusters(self) -> NDArray[Any] | None:
        return self._clusters

    @property
    def forms(self) -> Indices | None:
        return self._forms

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        rows = self._rows(indices)
        labels = {name: rows.pop(name) for name in self._labels}
        return rows, join_labels(labels) if labels else None

    def labels(self, indices: Indices) -> NDArray[Any] | None:
        if not self._labels or not self._have_one_shape(indices):
            return None
        return join_labels(self._rows(indices, only=self._labels))

    def source_rows(self, indices: Indices) -> Indices:
        return indices if self._source_rows is None else self._source_rows[indices]

    def _have_one_shape(self, indices: Indices) -> bool:
        """Whether the labels of all these samples have the same shape."""
        if self._forms is None:
            return True
        owners = np.unique(np.searchsorted(self._starts, indices, side="right") - 1)
        parts = (self._arrays(int(owner)) for owner in owners)
        return len({tuple(part[name].shape[1:] for name in self._labels) for part in parts}) == 1

    def _rows(self, indices: Indices, only: Sequence[str] = ()) -> Arrays:
        """Rows of all arrays, or of some."""
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        rows: Arrays = {}
        for owner in np.unique(owners):
            arrays = self._arrays(int(owner))
            places = np.flatnonzero(owners == owner)
            local = indices[places] - self._starts[owner]
            wanted = {name: arrays[name] for name in only} or self._without_clusters(arrays)
            for name, array in wanted.items():
                if name not in rows:
                    rows[name] = np.empty((len(indices), *array.shape[1:]), array.dtype.newbyteorder("="))
                rows[name][places] = array[local]
        return rows

    def _without_clusters(self, arrays: Mapping[str, Rows]) -> RowArrays:
        kept = not self._checker.takes(CLUSTERS)
        return {name: array for name, array in arrays.items() if kept or name != CLUSTERS}

    def _arrays(self, number: int) -> Mapping[str, Rows]:
        return self._cache.get(number, lambda: self._checker.leave_out_constants(self._shards[number].read()))


@dataclass
class Content:
    """Digest of arrays that come in parts; independent of where the parts are cut.

    Rows may have several shapes, as batches of texts do. Then every form has a digest of its own.
    """

    names: set[str] = field(default_factory=set)
    _kinds: dict[str, tuple[str, int]] = field(default_factory=dict)
    _forms: dict[Form, dict[str, Any]] = field(default_factory=dict)

    def check_names(self, arrays: Mapping[str, Rows], where: str) -> None:
        """Refuse a part that has other arrays than those before it."""
        if self.names and self.names != arrays.keys():
            raise DataError(f"{where} has arrays {sorted(arrays)}, the parts before it have {sorted(self.names)}")
        self.names = set(arrays)

    def add(self, arrays: Mapping[str, Rows], where: str) -> int:
        """Take in the rows of one part; returns the number of their form, in the order in which forms were seen."""
        for name, array in arrays.items():
            kind = (array.dtype.newbyteorder("=").str, len(array.shape))
            if self._kinds.setdefault(name, kind) != kind:
                raise DataError(
                    f"{where}: {name!r} has rows of {kind[0]} with {kind[1]} axes, the parts before it of "
                    f"{self._kinds[name][0]} with {self._kinds[name][1]}"
                )
        form = form_of(arrays)
        digests = self._forms.setdefault(form, {name: hashlib.sha256() for name in arrays})
        for name, array in arrays.items():
            for block in blocks(array):
                native = np.ascontiguousarray(block, array.dtype.newbyteorder("="))
                digests[name].update(native.reshape(-1).view(np.uint8).data)
        return list(self._forms).index(form)

    def digest(self, samples: int, clusters: NDArray[Any] | None) -> str:
        """64 hex digits of all parts; clusters, which may be texts of any length, count by their values."""
        contents = [self._digest_form(form, digests) for form, digests in self._forms.items()]
        ids = {} if clusters is None else {"clusters": digest_of(clusters.tolist())}
        arrays = {"arrays": contents[0]} if len(contents) == 1 else {"forms": contents}
        return digest_of({"samples": samples, **arrays, **ids})

    def _digest_form(self, form: Form, digests: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: [self._kinds[name][0], list(shape), digests[name].hexdigest()] for name, shape in form}


def label_names(arrays: Iterable[str]) -> tuple[str, ...]:
    """Which arrays are labels: `labels`, or those whose names begin with `labels.`."""
    return tuple(sorted(name for name in arrays if name == LABELS or name.startswith(SEVERAL)))


def join_labels(arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Labels of some samples in one array.

    Args:
        arrays: those that `label_names` names, each (n, …).

    Returns:
        The array `labels`, (n, …); or where there are several, (n,) with one field for each: of `labels.price` the
        field `price`, so that `joined["price"]` is (n, …).
    """
    if LABELS in arrays:
        return arrays[LABELS]
    fields = [(name.removeprefix(SEVERAL), array.dtype, array.shape[1:]) for name, array in arrays.items()]
    joined = np.empty(len(next(iter(arrays.values()))), fields)
    for name, array in arrays.items():
        joined[name.removeprefix(SEVERAL)] = array
    return joined
