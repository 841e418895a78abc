"""A clock for searches with a time limit, which only evaluations and named steps move on."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from studies import run_clock
from studies.events import Quiet
from studies.run import pace


class Clock(Quiet):
    """A clock for time limits that nothing moves on but evaluations, when they are timed, and steps of a name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, evaluation_s: float, **steps_s: float) -> None:
        self.evaluation_s, self.steps_s, self.moved_s = evaluation_s, steps_s, 0.0
        self.notes: list[str] = []
        clock = SimpleNamespace(monotonic=lambda: 1000.0 + self.moved_s, time=time.time)
        for module in (pace, run_clock):
            monkeypatch.setattr(module, "time", clock)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def detail(self, text: str) -> None: ...

    def step(self, text: str, done: int, total: int) -> None:
        self.moved_s += self.steps_s.pop(text, 0.0)

    def stage(self, trial: int, stage: str) -> None:
        if stage == "latency":
            self.moved_s += self.evaluation_s
