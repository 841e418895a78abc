"""Calibration and evaluation data: `.npz` files, folders of them, image folders, functions."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from search.errors import DataError
from search.model import TensorSpec
from search.values import digest_of

Arrays = dict[str, NDArray[Any]]
Indices = NDArray[np.int64]

LABELS = "labels"
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
CACHE_BYTES = 512 * 2**20

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Dataset(Protocol):
    """Samples that fit a model. Its content never changes while it is open."""

    @property
    def digest(self) -> str:
        """64 hex digits of the content: names, dtypes, shapes and bytes, however they are stored."""

    @property
    def has_labels(self) -> bool: ...

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        """Rows in the order of `indices`: (len(indices), …) arrays by input name in the model's dtypes, and labels.

        Raises:
            DataError: a sample that is only now read does not fit the model, or its file is gone.
        """

    def labels(self, indices: Indices) -> NDArray[Any] | None:
        """The labels that `batch` gives, (len(indices), …), without reading more than they need."""


@dataclass(frozen=True)
class Batch:
    """What one inference takes.

    Attributes:
        inputs: by input name, exactly the model's batch of rows; the last real row repeated where samples ran out.
        labels: labels of the real rows, (count, …); None without labels.
        count: real rows; outputs behind them are to be thrown away.
    """

    inputs: Arrays
    labels: NDArray[Any] | None
    count: int


@dataclass(frozen=True)
class Splits:
    """Sorted sample indices of one dataset; a part that was given apart as data of its own is empty."""

    calibration: Indices
    search: Indices
    final: Indices


def open_data(
    source: str,
    inputs: Sequence[TensorSpec],
    *,
    preprocess: str | None = None,
    labels_required: bool = False,
) -> Dataset:
    """Open data for a model and check them.

    Arrays are read through once, so whatever is wrong with them is found here; of images only the first is read.

    Args:
        source: an `.npz` file (keys are input names, and `labels`), a folder of such files, an image folder
            (class sub-folders, sorted by name, give labels 0, 1, …), or `package.module:function`, called without
            arguments, that returns what an `.npz` holds or an iterable of such batches.
        inputs: the model's inputs; everything but the leading axis has to match.
        preprocess: for image folders, `package.module:function`, called with a Path; it returns one sample without
            the batch axis: an array for a model with one input, or a dict from input name to array.
        labels_required: refuse data without labels.

    Raises:
        DataError: the data cannot be read, do not fit the model, or hold fewer than two samples.
    """
    dataset = _open(source, inputs, preprocess)
    if labels_required and not dataset.has_labels:
        raise DataError(
            f"data {source!r} have no labels and the metric needs them: add an array {LABELS!r} with one row per "
            "sample (image folders: one sub-folder per class), or choose a metric without labels such as agreement"
        )
    if len(dataset) < 2:
        raise DataError(f"data {source!r} hold one sample: at least two are needed, one to search on, one to check")
    return dataset


def batches(dataset: Dataset, indices: Indices, batch: int) -> Iterator[Batch]:
    """The samples at `indices`, in this order, `batch` at a time, the last batch padded. Reads lazily."""
    for start in range(0, len(indices), batch):
        wanted = indices[start : start + batch]
        padded = np.pad(wanted, (0, batch - len(wanted)), mode="edge")
        rows, labels = dataset.batch(padded)
        yield Batch(rows, None if labels is None else labels[: len(wanted)], len(wanted))


def split(digest: str, samples: int, *, calibration_apart: bool = False, final_apart: bool = False) -> Splits:
    """Divide data once and for all: 20 % (1…512 samples) calibrate, 30 % (at least 1) are final, the rest search.

    The rule depends on nothing but its arguments, and stays the same over versions of numpy. With two samples to
    share three ways, one is final and the other both calibrates and searches: search must never see *final*.

    Args:
        digest: of the dataset, 64 hex digits; the only source of randomness.
        samples: length of the dataset.
        calibration_apart, final_apart: these data are a dataset of their own; their share goes to search.

    Raises:
        DataError: fewer than two samples.
    """
    if samples < 2:
        raise DataError(f"{samples} sample cannot be split: at least two are needed, one to search on, one to check")
    # RandomState, unlike Generator, promises the same stream in every version of numpy.
    state = np.random.RandomState(np.frombuffer(bytes.fromhex(digest), "<u4").astype(np.uint32))
    order = state.permutation(samples).astype(np.int64)
    final = 0 if final_apart else max(1, samples * 30 // 100)
    calibration = 0 if calibration_apart else min(512, max(1, samples * 20 // 100))
    rest = samples - final
    overlap = calibration == rest
    return Splits(
        calibration=np.sort(order[:calibration]),
        search=np.sort(order[0 if overlap else calibration : rest]),
        final=np.sort(order[rest:]),
    )


def import_function(reference: str, purpose: str) -> Callable[..., Any]:
    """Import `package.module:function`, with the current folder importable.

    Args:
        reference: what the user wrote.
        purpose: what it is for, as it reads in messages: `--preprocess`, `data`.

    Raises:
        DataError: it is not of that form, the module cannot be imported, or has no such function.
    """
    if not _REFERENCE.fullmatch(reference):
        raise DataError(f"{purpose} {reference!r} is not of the form package.module:function")
    name, _, attribute = reference.partition(":")
    try:
        module = _import_module(name)
    except Exception as error:
        raise DataError(
            f"{purpose} {reference!r}: importing {name} from {os.getcwd()} or the installed packages failed with "
            f"{_short(error)}; run from the folder that holds it, or install it"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise DataError(f"{purpose} {reference!r}: module {name} has no function {attribute}")
    return function  # type: ignore[no-any-return]


# Opening ------------------------------------------------------------------------------------------------------------


def _open(source: str, inputs: Sequence[TensorSpec], preprocess: str | None) -> Dataset:
    path = Path(source)
    if path.is_dir():
        return _open_folder(path, inputs, preprocess)
    if preprocess is not None:
        raise DataError(f"--preprocess {preprocess!r} is for image folders, and {source!r} is none: leave it out")
    if path.is_file():
        return _Shards([_Shard(path.name, lambda: _read_npz(path))], inputs)
    if _REFERENCE.fullmatch(source):
        return _Shards(_call_source(source), inputs)
    raise DataError(
        f"data {source!r}: no such file or folder (looked from {os.getcwd()}); give an .npz file, a folder, "
        "or package.module:function"
    )


def _open_folder(folder: Path, inputs: Sequence[TensorSpec], preprocess: str | None) -> Dataset:
    arrays = sorted(folder.glob("*.npz"))
    images = sorted(_images(folder), key=lambda image: image.relative_to(folder).as_posix())
    if arrays and images:
        raise DataError(f"data folder {str(folder)!r} holds both .npz files and images: give a folder of one kind")
    if images:
        return _ImageFolder(folder, images, inputs, preprocess)
    if not arrays:
        raise DataError(f"data folder {str(folder)!r} is empty: found neither .npz files nor images")
    if preprocess is not None:
        raise DataError(f"--preprocess {preprocess!r} is for image folders, and {str(folder)!r} holds .npz files")
    return _Shards([_Shard(path.name, _npz_reader(path)) for path in arrays], inputs)


def _images(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in IMAGE_SUFFIXES and not hidden and path.is_file():
            yield path


def _npz_reader(path: Path) -> Callable[[], Arrays]:
    return lambda: _read_npz(path)


def _read_npz(path: Path) -> Arrays:
    try:
        # Opened here, because numpy leaves a file that turns out to be no archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        # A bare .npy gives an array, which is no context manager: AttributeError on 3.10, TypeError later.
        raise DataError(
            f"data file {str(path)!r} is not a readable .npz archive of plain arrays ({_short(error)}): write it with "
            "numpy.savez; pickled and object arrays are refused because loading them could run foreign code"
        ) from error
    strange = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise DataError(f"data file {str(path)!r}: {strange} are not arrays; write the file with numpy.savez")
    return arrays


def _call_source(reference: str) -> list[_Shard]:
    function = import_function(reference, "data")
    try:
        value = function()
        parts = [value] if isinstance(value, Mapping) else list(value)
    except Exception as error:
        raise DataError(f"data {reference!r}: the function failed with {_short(error)}") from error
    if not parts:
        raise DataError(f"data {reference!r}: the function gave no batch; it has to return at least two samples")
    return [_shard_of(part, f"{reference} batch {number}", reference) for number, part in enumerate(parts)]


def _shard_of(part: Any, name: str, reference: str) -> _Shard:
    if not isinstance(part, Mapping):
        raise DataError(
            f"data {reference!r}: the function has to return a dict from input name to array, or an iterable of "
            f"such dicts; got {type(part).__name__}"
        )
    arrays = {str(key): _as_array(array, f"{name}: {key!r}") for key, array in part.items()}
    return _Shard(name, lambda: arrays)


def _as_array(value: Any, where: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where} cannot be read as an array ({_short(error)}): return numpy arrays") from error


def _import_module(name: str) -> Any:
    """Import with the current folder first; afterwards it stays importable, but last, where it shadows nothing."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# Datasets -----------------------------------------------------------------------------------------------------------


class _Cache:
    """The values used last, as many as fit the byte limit, and always the newest."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._items: OrderedDict[int, tuple[Arrays, int]] = OrderedDict()

    def get(self, key: int, read: Callable[[], Arrays]) -> Arrays:
        if key in self._items:
            self._items.move_to_end(key)
            return self._items[key][0]
        value = read()
        size = sum(array.nbytes for array in value.values())
        self._items[key] = (value, size)
        self._used += size
        while self._used > self._limit and len(self._items) > 1:
            self._used -= self._items.popitem(last=False)[1][1]
        return value


@dataclass(frozen=True)
class _Shard:
    """A part of the data that is read as a whole; `name` is for messages."""

    name: str
    read: Callable[[], Arrays]


class _Shards:
    """Samples in arrays, in one part or many."""

    def __init__(self, shards: Sequence[_Shard], inputs: Sequence[TensorSpec]) -> None:
        self._shards = shards
        self._checker = _Checker(inputs)
        self._cache = _Cache(CACHE_BYTES)
        content = _Content()
        starts = [0]
        for number, shard in enumerate(shards):
            arrays = self._arrays(number)
            starts.append(starts[-1] + self._checker.check(arrays, shard.name, starts[-1]))
            content.add(arrays, shard.name)
        self._starts = np.array(starts, np.int64)
        self._digest = content.digest(len(self))
        self._labels = LABELS in content.names and self._checker.takes_labels

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def has_labels(self) -> bool:
        return self._labels

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        rows = self._rows(indices)
        labels = rows.pop(LABELS) if self._labels else None
        return rows, labels

    def labels(self, indices: Indices) -> NDArray[Any] | None:
        return self._rows(indices, only=LABELS)[LABELS] if self._labels else None

    def _rows(self, indices: Indices, only: str | None = None) -> Arrays:
        """Rows of all arrays, or of only one."""
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        rows: Arrays = {}
        # Runs of one shard, so that sorted indices read every shard once.
        cuts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(indices)]
        for start, stop in pairwise(cuts):
            arrays = self._arrays(int(owners[start]))
            local = indices[start:stop] - self._starts[owners[start]]
            for name, array in arrays.items() if only is None else [(only, arrays[only])]:
                if name not in rows:
                    rows[name] = np.empty((len(indices), *array.shape[1:]), array.dtype)
                rows[name][start:stop] = array[local]
        return rows

    def _arrays(self, number: int) -> Arrays:
        return self._cache.get(number, lambda: self._checker.native(self._shards[number].read()))


class _ImageFolder:
    """Image files that the user's function turns into samples, one by one, when they are asked for."""

    def __init__(self, folder: Path, images: list[Path], inputs: Sequence[TensorSpec], preprocess: str | None) -> None:
        if preprocess is None:
            raise DataError(
                f"data folder {str(folder)!r} holds images: --preprocess package.module:function is needed to turn "
                "a file into what the model takes"
            )
        self._images = images
        self._checker = _Checker(inputs)
        self._reference = preprocess
        self._function = import_function(preprocess, "--preprocess")
        self._labels = _folder_labels(folder, images)
        self._cache = _Cache(CACHE_BYTES)
        self._digest = self._content(folder)
        self._sample(0)

    def __len__(self) -> int:
        return len(self._images)

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def has_labels(self) -> bool:
        return self._labels is not None

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        samples = [self._sample(int(index)) for index in indices]
        rows = {spec.name: np.concatenate([sample[spec.name] for sample in samples]) for spec in self._checker.inputs}
        return rows, self.labels(indices)

    def labels(self, indices: Indices) -> NDArray[Any] | None:
        return None if self._labels is None else self._labels[indices]

    def _content(self, folder: Path) -> str:
        files = [[image.relative_to(folder).as_posix(), _file_digest(image)] for image in self._images]
        labels = None if self._labels is None else self._labels.tolist()
        return digest_of({"files": files, "labels": labels, "preprocess": self._reference})

    def _sample(self, index: int) -> Arrays:
        return self._cache.get(index, lambda: self._read(index))

    def _read(self, index: int) -> Arrays:
        """One sample with a batch axis of 1, checked."""
        image = self._images[index]
        try:
            value = self._function(image)
        except Exception as error:
            raise DataError(f"--preprocess {self._reference} failed on {image} with {_short(error)}") from error
        named = value if isinstance(value, Mapping) else self._alone(value, image)
        where = f"--preprocess {self._reference} on {image}"
        rows = {str(name): _as_array(array, f"{where}: {name!r}")[np.newaxis] for name, array in named.items()}
        arrays = self._checker.native(rows)
        self._checker.check(arrays, where, index)
        return arrays

    def _alone(self, value: Any, image: Path) -> Arrays:
        inputs = self._checker.inputs
        if not isinstance(value, np.ndarray) or len(inputs) != 1:
            wanted = "an array" if len(inputs) == 1 else f"a dict with {[spec.name for spec in inputs]}"
            raise DataError(
                f"--preprocess {self._reference} on {image}: expected {wanted}, without the batch axis; "
                f"got {type(value).__name__}"
            )
        return {inputs[0].name: value}


def _folder_labels(folder: Path, images: list[Path]) -> Indices | None:
    """(samples,) int64 class numbers from sub-folders; None for a flat folder."""
    classes = [image.relative_to(folder).parts[0] for image in images if image.parent != folder]
    if not classes:
        return None
    if len(classes) < len(images):
        raise DataError(
            f"data folder {str(folder)!r} holds images both beside and inside sub-folders: put every image into the "
            "sub-folder of its class, or all into one folder without labels"
        )
    # Sub-folders without images count, so that a class keeps its number when its last image goes.
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    number = {name: index for index, name in enumerate(names)}
    return np.array([number[name] for name in classes], np.int64)


def _file_digest(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            sha.update(block)
    return sha.hexdigest()


# Checking -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Checker:
    """Compares arrays with the model's inputs; messages number samples over the whole dataset, from 0."""

    inputs: Sequence[TensorSpec]

    @property
    def takes_labels(self) -> bool:
        """False for the odd model with an input of that name: then the key is that input."""
        return all(spec.name != LABELS for spec in self.inputs)

    def native(self, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """The same arrays in this machine's byte order."""
        return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}

    def check(self, arrays: Arrays, where: str, first: int) -> int:
        """Number of samples in `arrays`, whose first is sample `first`; raises DataError for anything that is off."""
        self._check_keys(arrays, where)
        for spec in self.inputs:
            _check_array(arrays[spec.name], spec, where)
        lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
        samples = lengths[self.inputs[0].name]
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"{where}: every array needs one row per sample, but the lengths differ: "
                + ", ".join(f"{name} {length}" for name, length in lengths.items())
            )
        if samples == 0:
            raise DataError(f"{where} is empty: its arrays have no rows")
        for spec in self.inputs:
            _check_finite(arrays[spec.name], spec.name, where, first)
        return samples

    def _check_keys(self, arrays: Arrays, where: str) -> None:
        wanted = [spec.name for spec in self.inputs]
        missing = [name for name in wanted if name not in arrays]
        if missing:
            raise DataError(
                f"{where} lacks the model's input {missing[0]!r}: expected arrays {wanted}, got {sorted(arrays)}; "
                "name each array as the model names its input"
            )
        extra = sorted(arrays.keys() - {*wanted, LABELS})
        if extra:
            raise DataError(
                f"{where} has {extra[0]!r}, which is no input of the model: expected arrays {wanted} and perhaps "
                f"{LABELS!r}; rename it or leave it out"
            )
        if any(array.dtype.hasobject for array in arrays.values()):
            raise DataError(f"{where} holds object arrays: every array has to be of a plain number type")


def _check_array(array: NDArray[Any], spec: TensorSpec, where: str) -> None:
    if array.ndim == 0 or array.shape[1:] != spec.shape[1:]:
        expected = ", ".join(["samples", *map(str, spec.shape[1:])])
        raise DataError(
            f"{where}: input {spec.name!r} has to be of shape ({expected}), got {array.shape}; "
            "shape the samples as the model takes them, or fix the model's input shape"
        )
    if array.dtype.name != spec.dtype:
        raise DataError(
            f"{where}: input {spec.name!r} has to be {spec.dtype}, got {array.dtype.name}; convert it with "
            f".astype({spec.dtype!r}) where the data are made, scaling included"
        )


def _check_finite(array: NDArray[Any], name: str, where: str, first: int) -> None:
    if array.dtype.kind != "f":
        return
    # A block at a time: the mask of a whole shard would be a quarter of its size again.
    for start in range(0, len(array), 256):
        finite = np.isfinite(array[start : start + 256]).reshape(len(array[start : start + 256]), -1).all(axis=1)
        if not finite.all():
            sample = first + start + int(np.argmin(finite))
            raise DataError(f"{where}: input {name!r} holds NaN or Inf, first in sample {sample}: repair or drop it")


@dataclass
class _Content:
    """Digest of arrays that come in parts; independent of where the parts are cut."""

    names: set[str] = field(default_factory=set)
    _rows: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    _bytes: dict[str, Any] = field(default_factory=dict)

    def add(self, arrays: Arrays, where: str) -> None:
        if self.names and self.names != arrays.keys():
            raise DataError(f"{where} has arrays {sorted(arrays)}, the parts before it have {sorted(self.names)}")
        self.names = set(arrays)
        for name, array in arrays.items():
            row = (array.dtype.str, array.shape[1:])
            if self._rows.setdefault(name, row) != row:
                raise DataError(f"{where}: {name!r} has rows of {row}, the parts before it of {self._rows[name]}")
            sha = self._bytes.setdefault(name, hashlib.sha256())
            for start in range(0, len(array), 256):
                block = np.ascontiguousarray(array[start : start + 256]).reshape(-1)
                sha.update(block.view(np.uint8).data)

    def digest(self, samples: int) -> str:
        content = {
            name: [dtype, list(shape), self._bytes[name].hexdigest()] for name, (dtype, shape) in self._rows.items()
        }
        return digest_of({"samples": samples, "arrays": content})
