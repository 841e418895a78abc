"""What a search tells while it runs: to a listener of the caller's own, and as plain lines."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from bitfront import verbs
from studies.events import Quiet
from studies.judging.search_events import RunTime
from studies.judging.standing import Standing
from studies.options.read_options import read_config
from studies.run.session.setup import _tell_doing
from studies.show import progress_display
from studies.show.progress_display import Display, Lines
from studies.show.terminal import run_text
from studies.store.records import StoredEvaluation
from tests.support.command_line import quick, write_inputs


class Listener(Quiet):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: dict[int, list[str]] = {}
        self.losses: dict[int, float] = {}
        self.best: list[int | None] = []
        self.steps: list[str] = []
        self.shown: list[str] = []

    def step(self, text: str, done: int, total: int) -> None:
        self.steps.append(text)

    def announce(self, text: str) -> None:
        self.shown.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stage(self, trial: int, stage: str) -> None:
        self.stages.setdefault(trial, []).append(stage)

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:  # type: ignore[override]
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


class Both(Quiet):
    """Tells two listeners of one search."""

    def __init__(self, *shown: Lines | Display) -> None:
        self._shown = shown

    def stage(self, trial: int, stage: str) -> None:
        for each in self._shown:
            each.stage(trial, stage)

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:  # type: ignore[override]
        for each in self._shown:
            each.evaluation(record, standing, total)


@pytest.mark.slow
def test_lines_and_display_show_the_same_evaluations(options: dict[str, str]) -> None:
    """Of one search, whose end the display has drawn by the time it is left, however rarely it draws."""
    written, drawn = io.StringIO(), io.StringIO()
    with Display(Console(file=drawn, width=200, force_terminal=True)) as display:
        verbs.search(read_config(options), Both(Lines(Console(file=written, width=200)), display))
    lines = [line for line in written.getvalue().splitlines() if "/4 trial " in line]
    assert [line.split()[0] for line in lines] == ["1/4", "2/4", "3/4", "4/4"], written.getvalue()
    assert "4 of 4" in drawn.getvalue(), drawn.getvalue()[-2000:]


def test_the_display_has_a_clock_and_says_what_is_done_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [100.0]
    for module in (progress_display, run_text):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    display = Display(Console(file=io.StringIO(), width=80))

    def drawn() -> list[str]:
        out = io.StringIO()
        Console(file=out, width=80).print(display.draw())
        return [line.strip() for line in out.getvalue().splitlines()]

    display.report_time(RunTime(90.0, 240.0))
    display.announce("trying the float model")
    moment[0] += 42.0
    assert drawn() == ["0:52 of 4:00", "trying the float model, for 42s"]
    display.step("recovering INT8", 1, 5)
    moment[0] += 10.0
    display.step("recovering INT8", 2, 5)
    assert drawn()[1].endswith("recovering INT8 2/5, for 10s"), "its steps take unequal times"
    display.step("recovering INT8", 5, 5)
    assert drawn()[1].startswith("recovering INT8 5/5"), "no bar stands full while what follows is waited for"
    display.step("calibration samples", 10, 40)
    moment[0] += 10.0
    display.step("calibration samples", 20, 40)
    assert drawn()[1].endswith("calibration samples 20/40, for 10s, about 20s left")
    display.stage(3, "build")
    moment[0] += 5.0
    display.stage(4, "waiting for process 4711, which measures on cpu")
    display.report_time(RunTime(90.0, 240.0, moment[0] + 58.0))
    moment[0] += 3.0
    assert drawn() == [
        "1:20 of 4:00, about 55s left",
        "trial 3: building, for 8s",
        "trial 4: waiting for process 4711, which measures on cpu, for 3s",
    ]
    display.report_time(RunTime(90.0, 240.0, moment[0] + 55.0, may_end=True))
    assert drawn()[0] == "1:20 of 4:00, at most 55s left"
    moment[0] += 3600.0
    assert drawn()[0] == "1:01:20 of 4:00", "an estimate that is over says nothing"


def test_a_pipe_is_told_what_goes_on_where_nothing_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_display, "_SILENT_S", 0.0)
    monkeypatch.setattr(progress_display, "_LOOK_S", 0.01)
    told, written = threading.Event(), io.StringIO()

    class Heard(Lines):
        def note(self, text: str) -> None:
            super().note(text)
            told.set()

    with Heard(Console(file=written, width=200)) as lines:
        lines.report_time(RunTime(time.monotonic(), 240.0))
        lines.stage(7, "build")
        told.clear()
        assert told.wait(300)
    assert re.search(r"^0:\d\d of 4:00; trial 7: building", written.getvalue().splitlines()[-1])


def test_waiting_for_another_process_is_told_by_every_command(tmp_path: Path) -> None:
    """The first wait for a process has a line; a display shows further ones too."""
    heard = Listener()
    known: set[str] = set()
    for doing, holder in (("exporting", ""), ("exporting", "process 1"), ("exporting", ""), ("exporting", "process 1")):
        _tell_doing(heard, known, doing, holder)
    assert heard.steps == ["exporting: waiting for process 1"]
    assert heard.shown == ["exporting", "exporting", "exporting: waiting for process 1"]
