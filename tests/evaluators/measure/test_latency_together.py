"""Several engines measured in turn, with scripted sessions: when that is repeated, and what is marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evaluators.measure.blocks import rounds_worth
from evaluators.measure.latency import measure, measure_together
from evaluators.process.evaluator import Evaluator
from search.values import THREAD_CLOCK, Latency, Precision
from tests.support.command_line import three_layers
from tests.support.evaluator_jobs import case
from tests.support.scripted_sessions import COOL, HOT, Clock, states, steady

SLOWED = "the device was slowed down: power brake, hardware slowdown"
WARM = 10  # inferences of 5 ms that a steady engine warms up with


def together(sessions: Mapping[str, Clock], rounds: int = 6, **rest: Any) -> dict[str, Latency]:
    return measure_together(sessions, rounds, **{"statistic": "median", **rest})


def test_steady_engines_are_measured_once() -> None:
    sessions = {"a": steady(10.0), "b": steady(5.0)}
    baseline = steady(20.0)
    found = together(sessions, baseline=baseline, reference_ms=20.5)
    assert {name: len(each.samples_ms) for name, each in found.items()} == {"a": 12, "b": 24}
    assert {name: each.raw_ms for name, each in found.items()} == {"a": 10.0, "b": 5.0}
    assert all(each.baseline_ms == 20.0 and len(each.baseline_samples_ms) == 6 for each in found.values())
    assert found["a"].value_ms == pytest.approx(10.0 * 20.5 / 20)
    assert all(each.warnings == () and each.conditions == {} for each in found.values())


def test_slow_engines_are_visited_less_often() -> None:
    found = together({"slow": steady(1000.0), "slower": steady(2000.0)}, 20, clock=THREAD_CLOCK)
    assert [len(each.samples_ms) for each in found.values()] == [5, 5]
    assert len(together({"usual": steady(80.0)}, 20)["usual"].samples_ms) == 20
    assert rounds_worth(20, 200.0) == 10


def test_a_baseline_that_does_not_count_only_keeps_company() -> None:
    log: list[Clock] = []
    sessions = {"a": steady(10.0, log)}
    baseline = Clock(lambda i: 1.0 if i % 2 else 1.5, log)
    found = together(sessions, baseline=baseline, relative=False, reference_ms=20.5)
    assert (found["a"].baseline_ms, found["a"].value_ms, found["a"].warnings) == (None, 10.0, ())
    assert len(found["a"].baseline_samples_ms) == 0
    assert log[-12:] == [baseline, sessions["a"]] * 6


@pytest.mark.parametrize(
    ("doubtful", "says"),
    [
        (lambda: Clock(lambda i: 5.0 if i % 2 else 7.5), "spread"),
        (lambda: Clock(lambda i: 5.0 * (1 + 0.1 * i / 100)), "drift"),
        (lambda: Clock(lambda i: 10.0 * 1.03 ** (i // 3 % 5)), "warm-up"),
    ],
)
def test_what_is_unstable_is_measured_again_and_then_marked_as_one_engine_alone_is(
    doubtful: Callable[[], Clock], says: str
) -> None:
    calm = steady(10.0)
    found = together({"calm": calm, "doubtful": doubtful()}, 20)
    alone = measure(doubtful(), statistic="median", seconds=1.0)
    for warnings in (found["doubtful"].warnings, alone.warnings):
        assert any(warning.startswith(says) for warning in warnings)
    assert found["calm"].warnings == ()
    assert calm.done > (20 + 40) * 2, "all are measured again, twice as long"


def test_once_is_enough_where_the_caller_tries_again() -> None:
    session = Clock(lambda i: 5.0 if i % 2 or i < WARM else 7.5)
    (warning,) = together({"a": session}, 20, again=False)["a"].warnings
    assert warning.startswith("spread")
    assert session.done == WARM + 20 * 4


def test_a_passing_disturbance_leaves_no_mark() -> None:
    session, other = Clock(lambda i: 5.0 + (i % 2) * 4 if WARM <= i < 100 else 5.0), steady(5.0)
    found = together({"a": session, "b": other}, 20)
    assert [each.warnings for each in found.values()] == [(), ()]
    assert [len(each.samples_ms) for each in found.values()] == [160, 160], "both from the second measurement"


def test_what_was_throttled_is_measured_again_and_then_marked() -> None:
    found = together({"a": steady(5.0), "b": steady(5.0)}, state=states(COOL, HOT, HOT, COOL))
    for each in found.values():
        assert each.warnings == (SLOWED,)
        assert each.conditions["throttled"] == ["power brake", "hardware slowdown"]


def test_a_throttled_measurement_gives_way_to_one_that_is_not() -> None:
    found = together({"a": steady(5.0)}, state=states(HOT, COOL, COOL, COOL))
    assert (found["a"].warnings, found["a"].conditions["throttled"]) == ((), [])
    assert len(found["a"].samples_ms) == 48


def test_other_processes_are_told_but_not_a_reason_to_measure_again() -> None:
    found = together({"a": steady(5.0)}, state=states(COOL, {**COOL, "other_processes": 2}))
    assert found["a"].warnings == ("2 other processes use the device",)


def test_beside_a_baseline_far_from_its_usual_time_all_are_measured_again_and_judged_when_read() -> None:
    found = together({"a": steady(3.0)}, baseline=steady(16.0), reference_ms=10.0)
    assert found["a"].warnings == ()
    alone = together({"a": steady(3.0)}, baseline=steady(16.0))
    assert len(found["a"].samples_ms) in (len(alone["a"].samples_ms), 2 * len(alone["a"].samples_ms))


def test_the_less_doubtful_measurement_is_kept_whole() -> None:
    """In the second, `a` is calm but everything is slowed down; in the first, only `a` spreads."""
    first = Clock(lambda i: 7.5 if i % 2 and WARM <= i < WARM + 100 else 5.0)
    found = together({"a": first, "b": steady(5.0)}, 20, state=states(COOL, COOL, HOT, HOT))
    assert len(found["b"].samples_ms) == 20 * 4
    assert found["b"].warnings == ()
    assert any(warning.startswith("spread") for warning in found["a"].warnings)


def test_finalists_on_a_device_that_is_slowed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured by ONNX Runtime, with planted states of the device: measured again, and marked if it stays so."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("evaluators.measure.latency._doubts", lambda *_: iter(()))
    monkeypatch.setattr("evaluators.measure.blocks.MAX_WARM_UP_S", 0.01)
    monkeypatch.setattr("evaluators.measure.latency.BLOCK_MS", 0.5)
    made = case(tmp_path, three_layers())
    evaluator = Evaluator(made.job, lambda event, value: None)
    engines = {name: tmp_path / f"{name}.engine" for name in ("a", "b")}
    for engine in engines.values():
        evaluator.builds.rebuild(made.uniform(Precision.FP32), engine)
    for coming, marked in (((HOT, COOL, COOL, COOL), ()), ((COOL, HOT, COOL, HOT), (SLOWED,))):
        monkeypatch.setattr(evaluator.opened.backend, "device_state", states(*coming))
        found = evaluator.scores.score_finalists(engines, 2).latency
        assert [each.warnings for each in found.values()] == [marked, marked]
        assert all(each.baseline_ms is not None for each in found.values())
