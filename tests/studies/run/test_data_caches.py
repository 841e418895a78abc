"""What a function of the user gives is read once, kept with its study, and removed with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import invoke, ok, quick, write_inputs

LOADER = """
import numpy as np
def load(limit=60, broken=0):
    with open("calls.txt", "a") as calls:
        print("called", file=calls)
    print("from the loader")
    with np.load("data.npz") as file:
        data = dict(file)
    order = np.random.permutation(limit)  # another one at each call
    for start in range(0, limit, 7):
        rows = order[start : start + 7]
        image = data["image"][rows]
        yield image[:, :, :, : 8 - broken], data["labels"][rows]
"""
SEARCH = ("search", "model.onnx", "--data", "loaders.py:load", "--backend", "fake", "--study", "s")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_inputs(tmp_path)
    (tmp_path / "loaders.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with quick():
        yield tmp_path
    sys.modules.pop("loaders", None)


def calls(folder: Path) -> int:
    path = folder / "calls.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_a_shuffling_generator_is_read_once_for_the_whole_study(here: Path) -> None:
    result = invoke(*SEARCH, "--trials", 3)
    assert result.exit_code == 0, result.output
    assert "reading data 'loaders.py:load' once into" in result.stderr
    assert "from the loader" not in result.stdout
    (samples,) = here.glob("bitfront.db.inputs/*/samples-*")
    assert sorted(path.name for path in samples.iterdir()) == ["image.npy", "labels.npy"]
    ok("resume", "s", "--trials", 4)
    ok("sensitivity", "s", "--json")
    assert calls(here) == 1
    ok("delete", "s", "--yes")
    assert not (here / "bitfront.db.inputs").exists()


@pytest.mark.slow
def test_without_a_cache_the_function_is_called_at_every_start(here: Path) -> None:
    (here / "loaders.py").write_text(LOADER.replace("np.random.permutation", "np.arange"))
    ok(*SEARCH, "--trials", 3, "--no-cache")
    assert not (here / "bitfront.db.inputs").exists()
    ok("resume", "s", "--trials", 4)
    assert calls(here) == 2
    (here / "loaders.py").write_text(LOADER)
    del sys.modules["loaders"]
    result = invoke("resume", "s", "--trials", 5)
    assert result.exit_code == 2
    assert "the data have other content" in result.output


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("?broken=1", "batch 0: input 'image' has to be of shape (samples, 3, 8, 8)"),
        ("?limit=61", "the function failed with IndexError"),
        (" --metric miou", "miou"),
    ],
)
def test_what_is_refused_leaves_no_samples(here: Path, given: str, says: str) -> None:
    result = invoke(*f"search model.onnx --backend fake --data loaders.py:load{given}".split())
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert not (here / "bitfront.db.inputs").exists()
    assert not (here / "bitfront.db").exists()


@pytest.mark.slow
def test_a_search_reads_anew_what_a_killed_one_left_but_never_what_a_study_has(here: Path) -> None:
    ok(*SEARCH, "--trials", 3)
    (samples,) = here.glob("bitfront.db.inputs/*/samples-*")
    (samples.parent / ".partial-1").mkdir()
    assert invoke(*SEARCH, "--trials", 3).exit_code == 2
    assert samples.is_dir(), "the study that is there keeps its samples"
    ok("resume", "s", "--trials", 4)
    assert not (samples.parent / ".partial-1").exists(), "half-written samples of a process that was killed"
    (here / "bitfront.db").unlink()
    ok(*SEARCH, "--trials", 3)
    assert calls(here) == 2


@pytest.mark.slow
def test_fewer_samples_are_taken_of_functions_and_of_files(here: Path) -> None:
    ok(*SEARCH, "--trials", 3, "--max-samples", 30)
    (samples,) = here.glob("bitfront.db.inputs/*/samples-*")
    assert len(np.load(samples / "labels.npy")) == 30
    ok("search", "model.onnx", "--data", "data.npz", "--backend", "fake", "--trials", 3, "--max-samples", 30)
    for study in ("s", "model"):
        assert '"search": 15' in ok("status", study, "--json") or '"search": 15' in ok("show", study, "0", "--json")
