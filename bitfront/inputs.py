"""Writing a model and data that are given as Python objects to files, with which the study can be resumed."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import onnx

from evaluators.data.dataset import Arrays
from evaluators.data.reading.read_source import ReadListener, write_batches
from evaluators.data.reading.user_batches import batches_of, count_batches
from evaluators.held_folders import held_folder
from search.errors import DataError, ModelError, StudyError
from search.graph.onnx_file import read_input_shapes
from search.references import short
from studies.artifacts.locations import inputs_folder
from studies.events import Events, Quiet

_MODEL, _DATA = "model.onnx", "data"


class InputFiles:
    """The files of one study's inputs. As a context manager it removes the files that it wrote if the block raises.

    Objects are written beside the study's database and are removed with the study. Files given by path stay as they
    are.

    Args:
        study: name of the study.
        storage: URL of the database.
        most: largest number of samples to write of data that are not a path; None for all.

    Attributes:
        model, data: the model and the data as texts, as a search takes them.
    """

    def __init__(self, study: str, storage: str, most: int | None = None) -> None:
        self._study = study
        self._most = most
        self._events: Events = Quiet()
        self._folder = inputs_folder(study, storage)
        self._held = ExitStack()
        self._staged: Path | None = None
        self.model = self.data = ""

    def __enter__(self) -> InputFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
        with suppress(OSError):  # of other studies, or never made
            self._folder.parent.rmdir()

    def tell(self, events: Events) -> None:
        """Report the size of the files and the progress of writing them to a listener."""
        self._events = events

    def write(self, model: Any, data: Any) -> None:
        """Write the model and the data, unless they are paths.

        Args:
            model: a path, or an `onnx.ModelProto`.
            data: a path or `package.module:function`; arrays by name; or an iterable of batches such as a PyTorch
                `DataLoader`, see `batches_of`.

        Raises:
            ModelError, DataError: the model, the data or a batch is of another type.
        """
        self.model = self._write_model(model)
        if isinstance(data, str | Path):
            self.data = str(data)
            return
        batches = _check_batches(batches_of(data, input_names(self.model)), self.model)
        listener = ReadListener(self._events.note, self._events.step)
        folder = self._make_folder() / _DATA
        write_batches(batches, folder, "the data", expected=count_batches(data), most=self._most, listener=listener)
        self.data = str(folder)

    def keep(self) -> None:
        """Give the written files to the study, in place of those that it had."""
        if self._staged is None:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._staged.rename(self._folder)
        self.model, self.data = (self._path_when_kept(path) for path in (self.model, self.data))

    def match(self) -> None:
        """Use the files that the study already has, after checking that the written ones are equal.

        Raises:
            StudyError: they differ.
        """
        if self._staged is None:
            return
        if not _same_files(self._staged, self._folder):
            raise StudyError(
                f"continuing study {self._study!r}: expected the model and the data that it was made with, got "
                "others, or samples in another order. Give the same ones, or continue without giving them: "
                f"bitfront.resume({self._study!r})."
            )
        self.model, self.data = (self._path_when_kept(path) for path in (self.model, self.data))

    def _path_when_kept(self, path: str) -> str:
        written = Path(path)
        if self._staged is None:
            return path
        return str(self._folder / written.relative_to(self._staged)) if written.is_relative_to(self._staged) else path

    def _write_model(self, model: Any) -> str:
        if isinstance(model, str | Path):
            return str(model)
        if not isinstance(model, onnx.ModelProto):
            raise ModelError(
                f"reading the model: expected a path or an onnx.ModelProto, got {type(model).__name__}. Export the "
                "model to "
                "ONNX first, for example with torch.onnx.export."
            )
        path = self._make_folder() / _MODEL
        try:
            onnx.save(model, path)
        except ValueError as error:  # protobuf refuses more than 2 GB
            raise ModelError(
                f"writing the model: {short(error)}. Save the model yourself with external data, and give its path."
            ) from error
        return str(path)

    def _make_folder(self) -> Path:
        if self._staged is None:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            held = held_folder(self._folder.parent, f"{self._folder.name}.")
            self._staged = self._held.enter_context(held)
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


def _check_batches(batches: Iterator[Arrays], model: str) -> Iterator[Arrays]:
    """The batches, as long as they fit the sizes that the model fixes and have as many rows in each array.

    Raises:
        DataError: naming the batch that does not.
    """
    shapes = read_input_shapes(Path(model))
    for number, batch in enumerate(batches):
        for name, array in batch.items():
            dims = shapes[name][1:] if name in shapes else array.shape[1:]
            if not _fits(array.shape[1:], dims):
                expected = ", ".join(["samples", *(str(dim) if isinstance(dim, int) else "any" for dim in dims)])
                raise DataError(
                    f"reading batch {number} of the data: input {name!r} has to be of shape ({expected}), got "
                    f"{array.shape}. Pad texts to that length, or give images that size; or export the model with a "
                    "dynamic size there."
                )
        lengths = ", ".join(f"{name} {len(array)}" for name, array in batch.items())
        if len({len(array) for array in batch.values()}) > 1:
            raise DataError(
                f"reading batch {number} of the data: every array needs one row per sample, but the lengths differ: "
                f"{lengths}."
            )
        yield batch


def _fits(row: Sequence[int], dims: Sequence[object]) -> bool:
    """Whether a row has the sizes that a model fixes."""
    sizes = zip(row, dims, strict=False)
    return len(row) == len(dims) and all(size == dim for size, dim in sizes if isinstance(dim, int))


def _same_files(left: Path, right: Path) -> bool:
    """Whether two folders hold the same files."""
    names = [sorted(path.relative_to(folder) for path in folder.rglob("*.*")) for folder in (left, right)]
    return names[0] == names[1] and all(filecmp.cmp(left / name, right / name, shallow=False) for name in names[0])
