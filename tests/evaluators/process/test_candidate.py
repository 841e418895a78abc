"""The time of a candidate: what its stages took is all that it took, whichever process they ran in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluators import stopwatch
from evaluators.process.tasks import candidate
from evaluators.process.tasks.candidate import Candidate
from evaluators.stopwatch import time_spent
from search.values import Assignment, Evaluation, Precision, Stage


def test_the_time_of_its_stages_adds_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    for module in (stopwatch, candidate):
        monkeypatch.setattr(module, "time", clock)

    built = Candidate(Evaluation(Assignment({"g000": Precision.FP32})), Path("engine"), Stage.LOWER, "lower")
    with built.stages():
        now[0] += 1
        built.enter(Stage.BUILD, "build")
        now[0] += 4
    found = built.finish(())
    assert (found.stage_s, found.total_s) == ({"lower": 1.0, "build": 4.0}, 5.0)

    measured = Candidate(found, Path("engine"), Stage.AUDIT, "load")
    with measured.stages():
        now[0] += 2
        measured.enter(Stage.LATENCY, "latency")
        with time_spent("wait"):
            now[0] += 8
        now[0] += 16
    found = measured.finish(())
    assert found.stage_s == {"lower": 1.0, "build": 4.0, "load": 2.0, "latency": 16.0, "wait": 8.0}
    assert found.total_s == 31.0
