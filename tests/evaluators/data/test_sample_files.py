"""Samples that come in batches, written once to files that are read by the row."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from evaluators.data.dataset import limit
from evaluators.data.opening import open_data
from evaluators.data.reading import read_source
from evaluators.data.reading.read_source import ReadListener, write_batches
from evaluators.data.reading.sample_files import SampleFiles
from evaluators.data.reading.stored_arrays import read_folder
from search.errors import DataError
from search.graph.model import TensorSpec

IMAGE = (TensorSpec("image", "float32", (4, 3)),)


class Usage(NamedTuple):
    free: int


def batch(size: int, first: int = 0) -> dict[str, Any]:
    rows = np.arange(first, first + size)
    return {"image": np.repeat(rows.astype(np.float32), 3).reshape(size, 3), "labels": rows}


def test_batches_of_any_size_are_one_array(tmp_path: Path) -> None:
    with SampleFiles(tmp_path / "s") as files:
        for size, first in ((1, 0), (12, 1), (2, 13)):
            files.add(batch(size, first))
        assert not (tmp_path / "s").exists(), "it appears whole"
    assert files.samples == 15
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    np.testing.assert_array_equal(np.load(tmp_path / "s/labels.npy"), np.arange(15))
    np.savez(tmp_path / "whole.npz", **batch(15))
    assert open_data(str(tmp_path / "s"), IMAGE).digest == open_data(str(tmp_path / "whole.npz"), IMAGE).digest


def test_samples_of_several_shapes_are_known_by_where_they_came(tmp_path: Path) -> None:
    """Though those of one shape lie together."""
    wide = (TensorSpec("image", "float32", (4, 3), (1, 3), (8, 9)),)
    with SampleFiles(tmp_path / "s") as files:
        for number in range(6):
            given = batch(3, 3 * number)
            files.add({**given, "image": np.repeat(given["image"], 1 + number % 2, axis=1)})
    dataset = open_data(str(tmp_path / "s"), wide)
    assert dataset.forms is not None
    every = np.arange(18)
    np.testing.assert_array_equal(
        dataset.source_rows(every), np.concatenate([dataset.batch(every[:9])[1], dataset.batch(every[9:])[1]])
    )


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_hidden_files_are_no_data(suffix: str, tmp_path: Path) -> None:
    """What editors copy, and macOS writes beside files."""
    folder = tmp_path / "parts"
    folder.mkdir()
    for name in ("image", "._image"):
        if suffix == "npz":
            np.savez(folder / f"{name}.npz", image=np.ones((5, 3), np.float32))
        else:
            np.save(folder / f"{name}.npy", np.ones((5, 3), np.float32))
    assert len(open_data(str(folder), IMAGE)) == 5


def test_texts_may_become_longer(tmp_path: Path) -> None:
    with SampleFiles(tmp_path / "s") as files:
        for name in ("a", "street"):
            files.add({**batch(2), "clusters": np.array([name] * 2)})
    assert open_data(str(tmp_path / "s"), IMAGE).clusters.tolist() == ["a", "a", "street", "street"]  # type: ignore[union-attr]


def test_what_fails_leaves_nothing_and_what_was_there_before(tmp_path: Path) -> None:
    with SampleFiles(tmp_path / "s") as files:
        files.add(batch(2))
    for wrong in ({"image": np.zeros((2, 3))}, {**batch(2), "labels": np.zeros(2)}):
        with pytest.raises(DataError, match=r"Name the same in each|'labels' is float64 with 1 axis in batch 1"):
            write_batches(iter([batch(2), wrong]), tmp_path / "s", "the data")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert len(read_folder(tmp_path / "s")["image"]) == 2


@pytest.mark.parametrize(
    ("expected", "most", "says"),
    [
        (5, None, "about 100 B for 5 samples"),
        (None, 3, "about 60 B for 3 samples"),
        (5, 3, "about 60 B for 3 samples"),
        (None, None, "20 B for each sample"),
    ],
)
def test_the_size_is_said_first(tmp_path: Path, expected: int | None, most: int | None, says: str) -> None:
    notes: list[str] = []
    steps: list[tuple[str, int, int]] = []

    def batches() -> Iterator[dict[str, Any]]:
        yield batch(1)
        assert says in notes[0], "before the second batch is read"
        yield batch(1)

    listener = ReadListener(notes.append, lambda *step: steps.append(step))
    write_batches(batches(), tmp_path / "s", "the data", expected=expected, most=most, listener=listener)
    assert len(notes) == 1
    if expected is None:
        assert steps[-1] == ("reading samples, 2 so far", 0, 0)
    else:
        assert steps[-1][1:] == (2, most or expected)


def test_what_has_no_room_is_refused_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(100))
    with pytest.raises(DataError, match=r"room for about 800 B in .*, got 100 B.*--max-samples"):
        write_batches(iter([batch(1)]), tmp_path / "s", "the data", expected=40)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(files: SampleFiles, samples: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(read_source.SampleFiles, "add", fail)
    with pytest.raises(DataError, match="cannot be written: No space left on device"):
        write_batches(iter([batch(1)]), tmp_path / "s", "the data")
    assert list(tmp_path.iterdir()) == []


def test_some_samples_are_drawn_by_the_content_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", **batch(50), clusters=np.arange(50) // 2)
    whole = open_data(str(tmp_path / "a.npz"), IMAGE)
    some, again = (open_data(str(tmp_path / f"{name}.npz"), IMAGE, most=10) for name in ("a", "b"))
    assert some.digest == again.digest != whole.digest
    rows, labels = some.batch(np.arange(10))
    assert labels is not None
    assert len(set(labels.tolist())) == 10
    assert labels.max() > 10, "not the first ones"
    np.testing.assert_array_equal(rows["image"][:, 0], labels)
    assert some.clusters is not None
    np.testing.assert_array_equal(some.clusters, labels // 2)
    assert limit(whole, 50) is whole
