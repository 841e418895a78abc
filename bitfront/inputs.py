"""A model and data that are given as Python objects, as files that a study can be resumed with."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from evaluators.data.checks import LABELS
from search.errors import DataError, ModelError, StudyError
from search.references import short
from studies.artifacts.locations import inputs_folder

Arrays = dict[str, NDArray[Any]]

_SHARD_BYTES = 32 * 2**20  # of one file of data: what is read at a time
_MODEL, _DATA = "model.onnx", "data"


class InputFiles:
    """The files of one study's inputs; a context manager, which removes what was written where the block raises.

    Objects are written beside the study's database and are removed with the study. Paths are left where they are.

    Args:
        study: its name.
        storage: URL of the database.

    Attributes:
        model, data: what a search is given, as texts.
    """

    def __init__(self, study: str, storage: str) -> None:
        self._study = study
        self._folder = inputs_folder(study, storage)
        self._staged = self._folder.with_name(f"{self._folder.name}.{os.getpid()}")
        self._names: tuple[str, ...] | None = None
        self.model = self.data = ""

    def __enter__(self) -> InputFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._staged, ignore_errors=True)
        with suppress(OSError):  # of other studies, or never made
            self._folder.parent.rmdir()

    def write(self, model: Any, data: Any) -> None:
        """Write what is no path.

        Args:
            model: a path, or an `onnx.ModelProto`.
            data: a path or `package.module:function`; arrays by name; or an iterable of batches, say a PyTorch
                `DataLoader`, see `batches_of`.

        Raises:
            ModelError, DataError: they are something else, or a batch is.
        """
        self.model = self._write_model(model)
        if isinstance(data, str | Path):
            self.data = str(data)
            return
        names = input_names(self.model)
        self._write_data(batches_of(data, names))
        self.data = str(self._staged / _DATA)

    def keep(self) -> None:
        """Let the study have what was written, in the place of what it had."""
        if not self._staged.exists():
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._staged.rename(self._folder)
        self.model, self.data = (self._kept(path) for path in (self.model, self.data))

    def match(self) -> None:
        """Take the files that the study has for what was written, which has to be the same.

        Raises:
            StudyError: it is not.
        """
        if not self._staged.exists():
            return
        if not _same_files(self._staged, self._folder):
            raise StudyError(
                f"going on with study {self._study!r}: expected the model and the data that it was made with, got "
                "others, or samples in another order. Give the same, or go on without them: "
                f"bitfront.resume({self._study!r})."
            )
        self.model, self.data = (self._kept(path) for path in (self.model, self.data))

    def _kept(self, path: str) -> str:
        written = Path(path)
        return str(self._folder / written.relative_to(self._staged)) if written.is_relative_to(self._staged) else path

    def _write_model(self, model: Any) -> str:
        if isinstance(model, str | Path):
            return str(model)
        if not isinstance(model, onnx.ModelProto):
            raise ModelError(
                f"reading the model: expected a path or an onnx.ModelProto, got {type(model).__name__}. Export it to "
                "ONNX first, say with torch.onnx.export."
            )
        path = self._make_folder() / _MODEL
        try:
            onnx.save(model, path)
        except ValueError as error:  # protobuf refuses more than 2 GB
            raise ModelError(
                f"writing the model: {short(error)}. Save it yourself with external data, and give the path."
            ) from error
        return str(path)

    def _write_data(self, batches: Iterator[Arrays]) -> None:
        folder = self._make_folder() / _DATA
        folder.mkdir()
        count, waiting, size = 0, list[Arrays](), 0
        for batch in batches:
            waiting.append(batch)
            size += sum(array.nbytes for array in batch.values())
            if size >= _SHARD_BYTES:
                _write_shard(folder, count, waiting)
                count, waiting, size = count + 1, [], 0
        if waiting:
            _write_shard(folder, count, waiting)
            count += 1
        if not count:
            raise DataError("reading the data: expected batches, got none. An iterator that was read before is empty.")

    def _make_folder(self) -> Path:
        self._staged.mkdir(parents=True, exist_ok=True)
        return self._staged


def input_names(model: str) -> tuple[str, ...]:
    """The names of a model's inputs, without its constants.

    Raises:
        ModelError: the file cannot be read.
    """
    try:
        graph = onnx.load(model, load_external_data=False).graph
    except Exception as error:
        raise ModelError(f"reading the model {model}: expected an ONNX file, got {short(error)}; check it.") from error
    constants = {each.name for each in graph.initializer}
    return tuple(each.name for each in graph.input if each.name not in constants)


def batches_of(data: Any, names: Sequence[str]) -> Iterator[Arrays]:
    """Arrays by name of every batch.

    Args:
        data: a mapping from name to array, all samples at once; or an iterable of batches. A batch is a mapping, a pair
            (x, y), or x alone. `x` is an array, or a mapping or sequence of as many arrays as the model has inputs; `y`
            are the labels. Arrays are what NumPy makes an array of, PyTorch tensors on any device included.
        names: of the model's inputs.

    Raises:
        DataError: it is something else.
    """
    if isinstance(data, Mapping):
        yield _mapping(data, "reading the data: ")
        return
    if not isinstance(data, Iterable):
        raise DataError(
            f"reading the data: expected a path, arrays by name, or an iterable of batches, got {type(data).__name__}."
        )
    for number, batch in enumerate(data):
        yield _batch(batch, names, f"reading batch {number} of the data: ")


def _batch(batch: Any, names: Sequence[str], doing: str) -> Arrays:
    """Arrays by name of one batch; `doing` begins messages."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return {**_inputs(batch[0], names, doing), LABELS: _array(batch[1], LABELS, doing)}
    if isinstance(batch, tuple | list):
        example = ", ".join(f"{name!r}: …" for name in (*names, LABELS))
        raise DataError(
            f"{doing}expected a mapping from name to array, a pair (x, y), or x, got {len(batch)} values. Give a dict: "
            f"{{{example}}}."
        )
    return _inputs(batch, names, doing)


def _inputs(x: Any, names: Sequence[str], doing: str) -> Arrays:
    """The model's inputs of a batch, and whatever else a mapping names."""
    if isinstance(x, Mapping):
        return _mapping(x, doing)
    values = list(x) if isinstance(x, tuple | list) else [x]
    if len(values) != len(names):
        raise DataError(
            f"{doing}expected {len(names)} arrays, for the model's inputs {', '.join(names)}, got {len(values)}. Name "
            "them: give a dict from name to array."
        )
    return {name: _array(value, name, doing) for name, value in zip(names, values, strict=True)}


def _mapping(arrays: Mapping[Any, Any], doing: str) -> Arrays:
    return {str(name): _array(value, str(name), doing) for name, value in arrays.items()}


def _array(value: Any, name: str, doing: str) -> NDArray[Any]:
    """An array of plain numbers, or of texts."""
    if hasattr(value, "detach"):  # a tensor of PyTorch, which may be on a GPU or know its gradient
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{doing}{name!r} cannot be read as an array: {short(error)}.") from error
    if array.dtype.hasobject or not array.ndim:
        raise DataError(f"{doing}{name!r}: expected an array with one row per sample, got {type(value).__name__}.")
    return array


def _write_shard(folder: Path, number: int, batches: Sequence[Arrays]) -> None:
    names = list(batches[0])
    for batch in batches:
        if batch.keys() != batches[0].keys():
            raise DataError(f"reading the data: one batch has {names}, another {list(batch)}. Name the same in each.")
    try:
        arrays = {name: np.concatenate([batch[name] for batch in batches]) for name in names}
    except ValueError as error:
        raise DataError(f"reading the data: batches do not fit together: {short(error)}.") from error
    np.savez(folder / f"{number:06}.npz", **arrays)  # type: ignore[arg-type]


def _same_files(left: Path, right: Path) -> bool:
    """Whether two folders hold the same files."""
    names = [sorted(path.relative_to(folder) for path in folder.rglob("*.*")) for folder in (left, right)]
    return names[0] == names[1] and all(filecmp.cmp(left / name, right / name, shallow=False) for name in names[0])
