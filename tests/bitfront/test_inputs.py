"""A model and data as Python objects: what is written is what would have been given as files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitfront.inputs import InputFiles, input_names
from evaluators.data.opening import open_data
from evaluators.data.reading.user_batches import batches_of
from search.errors import DataError, ModelError
from search.graph.model import load
from studies.events import Quiet
from tests.support.command_line import environment, three_layers, write_inputs
from tests.support.forks.processes import run_python

NAMES = ("image",)


class Tensor:
    """As much of a PyTorch tensor as is asked for: NumPy reads it only once it is detached and on the processor."""

    def __init__(self, values: Any, steps: tuple[str, ...] = ()) -> None:
        self._values = values
        self._steps = steps

    def detach(self) -> Tensor:
        return Tensor(self._values, (*self._steps, "detach"))

    def cpu(self) -> Tensor:
        return Tensor(self._values, (*self._steps, "cpu"))

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        assert self._steps == ("detach", "cpu")
        return np.array(self._values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with its data as files."""
    found = tmp_path_factory.mktemp("inputs")
    write_inputs(found, samples=12)
    return found


def pairs(x: Any, y: Any, size: int) -> list[tuple[Any, Any]]:
    return [(x[start : start + size], y[start : start + size]) for start in range(0, len(x), size)]


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "arrays by name": lambda x, y: {"image": x, "labels": y},
    "pairs": lambda x, y: pairs(x, y, 4),
    "lists of two": lambda x, y: [list(each) for each in pairs(x, y, 5)],
    "a generator of dicts": lambda x, y: ({"image": a, "labels": b} for a, b in pairs(x, y, 3)),
    "pairs of dict and labels": lambda x, y: [({"image": a}, b) for a, b in pairs(x, y, 10)],
    "tensors": lambda x, y: [(Tensor(a), Tensor(b)) for a, b in pairs(x, y, 4)],
    "a list of inputs": lambda x, y: [([a], b) for a, b in pairs(x, y, 4)],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_holds_the_same_samples(form: str, folder: Path, tmp_path: Path) -> None:
    arrays = np.load(folder / "data.npz")
    model = load(folder / "model.onnx")
    with InputFiles("s", f"sqlite:///{tmp_path}/b.db") as files:
        files.write(folder / "model.onnx", FORMS[form](arrays["image"], arrays["labels"]))
        files.keep()
    assert files.model == str(folder / "model.onnx"), "a path stays where it is"
    assert open_data(files.data, model.inputs).digest == open_data(str(folder / "data.npz"), model.inputs).digest


def test_batches_without_labels_are_taken(folder: Path) -> None:
    batch = np.zeros((4, 3, 8, 8), np.float32)
    assert [list(each) for each in batches_of([batch, batch], NAMES)] == [["image"], ["image"]]


def test_data_are_written_as_they_come_and_no_more_than_asked_for(tmp_path: Path) -> None:
    files = InputFiles("s", f"sqlite:///{tmp_path}/b.db", most=4)

    def batches() -> Iterator[dict[str, Any]]:
        yield {"image": np.zeros((2, 3, 8, 8), np.float32)}
        assert [path.name for path in tmp_path.rglob("*.npy")] == ["image.npy"], "the first batch is written"
        yield {"image": np.ones((3, 3, 8, 8), np.float32)}
        raise AssertionError("four samples were asked for")

    with files:
        files.write(three_layers(), batches())
        files.keep()
    assert [path.name for path in Path(files.data).iterdir()] == ["image.npy"]
    written = np.load(Path(files.data) / "image.npy")
    assert written[:, 0, 0, 0].tolist() == [0, 0, 1, 1]


class Heard(Quiet):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, text: str, done: int, total: int) -> None:
        self.steps.append((done, total))


def test_size_and_progress_of_a_loader_are_told(folder: Path, tmp_path: Path) -> None:
    heard, batch = Heard(), np.zeros((4, 3, 8, 8), np.float32)
    with InputFiles("s", f"sqlite:///{tmp_path}/b.db") as files:
        files.tell(heard)
        files.write(folder / "model.onnx", [batch, batch, batch])
    assert [text.partition(": ")[2].partition(",")[0] for text in heard.notes] == ["about 9.2 kB for 12 samples"]
    assert heard.steps == [(4, 12), (8, 12), (12, 12)]


def test_what_was_not_kept_is_removed(folder: Path, tmp_path: Path) -> None:
    with InputFiles("../s", f"sqlite:///{tmp_path}/b.db") as files:
        files.write(three_layers(), {"image": np.zeros((4, 3, 8, 8), np.float32)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_a_killed_process_wrote_goes_with_the_next_that_writes(folder: Path, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path / 's.db'}"
    write = f"""
import os, sys
import numpy as np
from bitfront.inputs import InputFiles
with InputFiles("s", {place!r}) as files:
    files.write({str(folder / "model.onnx")!r}, {{"image": np.zeros((4, 3, 8, 8), np.float32)}})
    os.kill(os.getpid(), 9)
"""
    run_python([sys.executable, "-c", write], env=environment())
    (left,) = (tmp_path / "s.db.inputs").iterdir()
    with InputFiles("s", place) as files:
        files.write(folder / "model.onnx", {"image": np.zeros((4, 3, 8, 8), np.float32)})
        assert not left.exists()
    assert not (tmp_path / "s.db.inputs").exists()


def test_constants_are_no_inputs(folder: Path) -> None:
    assert input_names(str(folder / "model.onnx")) == NAMES


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (3, "expected a path, arrays by name, or an iterable of batches, got int"),
        ([], "expected batches, got none"),
        ([(1, 2, 3)], r"batch 0 of the data: expected a mapping.*got 3 values. Give a dict: {'image': …, 'labels': …}"),
        ([([np.zeros(2), np.zeros(2)], np.zeros(2))], "expected 1 arrays, for the model's inputs image, got 2"),
        (
            [np.zeros((2, 3, 8, 8), np.float32), "text"],
            "batch 1 of the data: 'image': expected an array with one row per sample",
        ),
        ([{"image": np.zeros((2, 3, 8, 8))}, {"picture": np.zeros((2, 3, 8, 8))}], "one batch has"),
        ([{"image": np.zeros((2, 3, 8, 8))}, {"image": np.zeros((2, 3, 8, 8), int)}], "batches do not fit together"),
        ([np.zeros((2, 3, 8, 8)), np.zeros((2, 3, 8, 9))], r"batch 1 of the data: input 'image' has to be of shape"),
        ([{"image": np.zeros((2, 3, 8, 8)), "labels": [1]}], "batch 0 of the data: every array .* image 2, labels 1"),
        ([{"image": [[1.0, 2.0], [1.0]]}], "batch 0 of the data: 'image' has rows of different lengths: .* Pad texts"),
    ],
)
def test_what_is_no_data_is_named(data: Any, says: str, folder: Path, tmp_path: Path) -> None:
    files = InputFiles("s", f"sqlite:///{tmp_path}/b.db")
    with pytest.raises(DataError, match=says), files:
        files.write(folder / "model.onnx", data)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_model_is_named(folder: Path, tmp_path: Path) -> None:
    files = InputFiles("s", f"sqlite:///{tmp_path}/b.db")
    with pytest.raises(ModelError, match=r"expected a path or an onnx\.ModelProto, got dict"), files:
        files.write({}, [])
    with pytest.raises(ModelError, match="expected an ONNX file"), files:
        files.write(folder / "data.npz", [])
