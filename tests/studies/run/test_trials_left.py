"""How many trials are left reaches the sampler: by the number wanted, by the time limit, and when a study goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bitfront import verbs
from search.forecast.history import History
from search.sampler.guided import GuidedSampler
from studies.options.read_options import read_config
from studies.run.pace import Pace
from tests.support.command_line import ok, quick, write_inputs
from tests.support.networks import mobile_cnn
from tests.support.time_limit_clock import Clock

pytestmark = pytest.mark.slow


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """What the guided sampler is told with every proposal, in a working directory with inputs."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in", mobile_cnn())
    told: list[float | None] = []
    is_late = GuidedSampler._is_late

    def noted(sampler: GuidedSampler, history: History) -> bool:
        told.append(sampler.guidance.left())
        return is_late(sampler, history)

    monkeypatch.setattr(GuidedSampler, "_is_late", noted)
    return told


def test_a_study_that_goes_on_with_more_trials_has_trials_left_again(left: list[float | None]) -> None:
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 6)
    assert left == [4, 3, 2, 1], "the two uniform assignments are not proposed by the sampler"
    left.clear()
    ok("resume", "s", "--trials", 9, "--latency-budget", "5s")
    assert left == [3, 2, 1]


def test_a_time_limit_leaves_as_many_as_end_in_time(left: list[float | None], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, evaluation_s=100)
    options = {"model": "in/model.onnx", "data": "in/data.npz", "study": "s", "trials": "40", "time-limit": "1000s"}
    with quick():
        verbs.search(read_config(options), clock)
    assert all(isinstance(number, float) and number < 8 for number in left)
    assert left == sorted(left, key=lambda number: -(number or 0.0))
    assert left[-1] is not None
    assert 1 <= left[-1] < 2


def test_how_often_evaluations_end_says_how_many_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[float] = [0.0]
    monkeypatch.setattr(Pace, "passed_s", property(lambda self: passed[0]))
    monkeypatch.setattr(Pace, "reserve_s", lambda self, now: 20.0)
    now: Any = None
    pace = Pace(100.5)
    assert pace.evaluations_left(now) == float("inf"), "nothing is known yet"
    pace._took_s["load"].append(0.0)
    for second in (10.0, 14.0, 18.0):
        passed[0] = second
        pace._ended_s.append(second)
    assert pace.evaluations_left(now) == pytest.approx((100 - 18 - 20) / 4)
    passed[0] = 99.0
    assert pace.evaluations_left(now) == 0.0
    assert Pace().evaluations_left(now) == float("inf")
