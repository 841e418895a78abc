"""What a search tells while it runs: to a listener of the caller's own, and as plain lines."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from studies import verbs
from studies.events import Quiet
from studies.judging.standing import Standing
from studies.options.read_options import read_config
from studies.show.progress_display import Display, Lines
from studies.store.records import EvaluationRecord
from tests.support.command_line import quick, write_inputs


class Listener(Quiet):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: dict[int, list[str]] = {}
        self.losses: dict[int, float] = {}
        self.best: list[int | None] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stage(self, trial: int, stage: str) -> None:
        self.stages.setdefault(trial, []).append(stage)

    def evaluation(self, record: EvaluationRecord, standing: Standing, total: int) -> None:  # type: ignore[override]
        assert record.evaluation.accuracy is not None
        assert total == 4
        self.losses[record.trial] = record.evaluation.accuracy.loss
        self.best.append(standing.picks.best)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    with quick():
        yield {"model": "model.onnx", "data": "data.npz", "backend": "fake", "trials": "4", "study": "s"}


@pytest.mark.slow
def test_a_listener_is_told_of_every_evaluation_and_its_stages(options: dict[str, str]) -> None:
    listener = Listener()
    verbs.search(read_config(options), listener)
    now = verbs.front("s").standing
    assert listener.losses == {point.trial: point.loss for point in now.points(range(4))}
    assert listener.best[-1] == now.picks.best
    every = ["lower", "build", "audit", "latency", "accuracy"]
    assert listener.stages == dict.fromkeys(listener.losses, every)
    assert any(note.startswith("study 's' in ") for note in listener.notes)


@pytest.mark.slow
def test_lines_and_display_show_the_same_evaluations(options: dict[str, str]) -> None:
    written = io.StringIO()
    verbs.search(read_config(options), Lines(Console(file=written, width=200)))
    lines = [line for line in written.getvalue().splitlines() if "/4 trial " in line]
    assert [line.split()[0] for line in lines] == ["1/4", "2/4", "3/4", "4/4"]
    drawn = io.StringIO()
    with Display(Console(file=drawn, width=200, force_terminal=True)) as display:
        verbs.search(read_config({**options, "study": "t"}), display)
    assert "4 of 4" in drawn.getvalue()
