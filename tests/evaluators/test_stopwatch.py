"""Seconds by kind of work: nested kinds count once, and their sum is the time that has passed."""

from __future__ import annotations

import threading

import pytest

from evaluators import stopwatch
from evaluators.stopwatch import Stopwatch, current_stopwatch, time_spent, use_stopwatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still; tests move its only item."""
    now = [100.0]
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now[0])
    return now


def test_inner_time_is_not_counted_twice(clock: list[float]) -> None:
    watch = Stopwatch(since=97.0, kind="start")
    with watch.measure("sampler"):
        clock[0] += 2
        with watch.measure("database"):
            clock[0] += 5
        clock[0] += 1
    clock[0] += 4
    assert watch.seconds() == {"start": 7.0, "sampler": 3.0, "database": 5.0}


def test_what_is_under_way_counts_and_a_context_may_change_its_kind(clock: list[float]) -> None:
    watch = Stopwatch()
    with watch.measure("build"):
        clock[0] += 2
        assert watch.seconds() == {"build": 2.0}
        watch.turn("timing")
        clock[0] += 3
    clock[0] += 1
    assert watch.seconds() == {"build": 2.0, "timing": 3.0, "other": 1.0}


def test_no_more_is_moved_than_there_is(clock: list[float]) -> None:
    watch = Stopwatch()
    with watch.measure("scoring"):
        clock[0] += 2
    watch.move("scoring", "running", 1.5)
    watch.move("scoring", "waiting", 9.0)
    watch.move("scoring", "waiting", -1.0)
    assert watch.seconds() == {"running": 1.5, "waiting": 0.5}


def test_an_error_ends_what_was_measured(clock: list[float]) -> None:
    watch = Stopwatch()

    def fail() -> None:
        clock[0] += 1
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), watch.measure("build"):
        fail()
    clock[0] += 2
    assert watch.seconds() == {"build": 1.0, "other": 2.0}


def test_only_the_thread_that_uses_a_stopwatch_is_counted(clock: list[float]) -> None:
    @time_spent("work")
    def work() -> None:
        clock[0] += 1

    work()  # none is in use
    with use_stopwatch(Stopwatch()) as watch:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert "work" not in watch.seconds()
        work()
        assert watch.seconds()["work"] == 1.0
    assert current_stopwatch() is None
