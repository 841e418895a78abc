"""What a search says before anything is calibrated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from search.graph.model import load
from studies.events import Quiet
from studies.lifecycle import new_study
from studies.options.config import SearchConfig
from tests.support.command_line import three_layers
from tests.support.networks import save


class Told(Quiet):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class StudyBeginsError(Exception):
    """Raised where the study would be made, which calibration comes after."""


def test_a_frozen_batch_is_said_before_the_study_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(three_layers(batch="n"), tmp_path / "model.onnx")
    config = SearchConfig(str(path), "d.npz", study="s", storage=f"sqlite:///{tmp_path / 'a.db'}", batch=4)

    @contextmanager
    def checked(config: SearchConfig, **rest: Any) -> Iterator[Any]:
        yield SimpleNamespace(config=config, model=load(path, batch=4))

    def create_study(*arguments: object) -> None:
        raise StudyBeginsError

    monkeypatch.setattr(new_study, "check_inputs", checked)
    monkeypatch.setattr(new_study, "check_searchable", lambda good: None)
    monkeypatch.setattr(new_study, "create_study", create_study)
    told = Told()
    with pytest.raises(StudyBeginsError):
        new_study._search(config, (), told, replace=False)
    assert len(told.notes) == 1
    assert told.notes[0].startswith("engines take exactly 4 samples at a time")


def test_the_classes_of_image_folders_are_said(tmp_path: Path) -> None:
    for name in ("dog", "10", "2", "Cat"):
        (tmp_path / name).mkdir()
    said = (
        "classes are the sub-folders of the data in alphabetical order: 0 is 10, 1 is 2, 2 is Cat and so on, 4 classes "
        "in all"
    )
    assert new_study._classes_text(SearchConfig("m.onnx", str(tmp_path), preprocess="imagenet")) == said
    assert new_study._classes_text(SearchConfig("m.onnx", str(tmp_path / "dog"), preprocess="imagenet")) == ""
    assert new_study._classes_text(SearchConfig("m.onnx", "data.npz")) == ""
