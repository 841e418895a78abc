"""The circuit breaker as a function of its samples and the clock."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.guard import BreakerState, GuardOptions
from studies.guard.breaker import add_sample, at, leave, return_threshold
from studies.guard.state import Breaker

OPTIONS = GuardOptions(window=10, windows=5, probe_after_s=60, good_windows=2)


def feed(breaker: Breaker, agreement: float, samples: int, now: float = 0.0) -> Breaker:
    for _ in range(samples):
        breaker = add_sample(breaker, agreement, 0.9, OPTIONS, now)
    return breaker


def test_five_bad_windows_in_a_row_leave_the_fast_engine() -> None:
    almost = feed(Breaker(), 0.8, 49)
    assert almost.state is BreakerState.CLOSED
    left = feed(almost, 0.8, 1)
    assert left.state is BreakerState.OPEN
    assert left.probe_at == 60
    assert "5 windows of 10 samples in a row agreed less than 0.9" in left.reason


def test_agreements_of_exactly_the_threshold_are_enough() -> None:
    """Fifty times 0.9 is less than 45 in floating point."""
    options = GuardOptions(window=50, windows=1)
    breaker = Breaker()
    for _ in range(50):
        breaker = add_sample(breaker, 0.9, 0.9, options, 0.0)
    assert breaker.state is BreakerState.CLOSED


def test_one_good_window_in_between_begins_the_count_anew() -> None:
    breaker = feed(feed(feed(Breaker(), 0.8, 40), 0.95, 10), 0.8, 40)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.bad == 4


def test_it_comes_back_after_good_windows_above_a_higher_threshold() -> None:
    half = at(leave(Breaker(), "planted", OPTIONS, now=0), OPTIONS, now=60)
    assert half.state is BreakerState.HALF_OPEN
    assert feed(half, 0.91, 10).state is BreakerState.OPEN  # enough to stay, too little to come back
    assert feed(half, return_threshold(0.9) + 1e-9, 10).state is BreakerState.HALF_OPEN
    assert feed(half, return_threshold(0.9) + 1e-9, 20).state is BreakerState.CLOSED


def test_every_failed_trial_doubles_the_rest_up_to_a_limit() -> None:
    breaker, now, rests = Breaker(), 0.0, []
    for _ in range(7):
        breaker = leave(breaker, "planted", OPTIONS, now)
        rests.append(breaker.probe_at - now)
        now = breaker.probe_at
        breaker = at(breaker, OPTIONS, now)
    assert rests == [60, 120, 240, 480, 960, 960, 960]


def test_many_failures_at_once_leave_the_engine_once() -> None:
    left = leave(Breaker(), "the first", OPTIONS, now=0)
    assert leave(left, "the second", OPTIONS, now=1) == left


def test_a_window_of_good_service_forgets_earlier_trials() -> None:
    closed = feed(at(leave(Breaker(), "planted", OPTIONS, 0), OPTIONS, 60), 1.0, 20)
    assert (closed.state, closed.trials) == (BreakerState.CLOSED, 1)
    assert feed(closed, 1.0, 10).trials == 0


def test_a_clock_that_is_set_back_does_not_prolong_the_rest() -> None:
    left = leave(Breaker(), "planted", OPTIONS, now=1e9)
    assert at(left, OPTIONS, now=1e9 + 59).state is BreakerState.OPEN
    assert at(left, OPTIONS, now=0).state is BreakerState.HALF_OPEN


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), max_size=200))
def test_what_is_stored_comes_back(agreements: list[float]) -> None:
    breaker = Breaker()
    for value in agreements:
        breaker = add_sample(breaker, value, 0.9, OPTIONS, 0.0)
        assert Breaker.from_json(breaker.to_json()) == breaker


def test_a_planted_shift_breaks_by_the_seventh_window_and_hardly_anything_else_does() -> None:
    options, random = GuardOptions(window=50), np.random.default_rng(0)
    breaker = Breaker()
    false_breaks = 0
    for hit in random.random(1000 * 50) < 0.95:  # two engines that agree on 95 % of the samples
        breaker = add_sample(breaker, float(hit), 0.9, options, 0.0)
        if breaker.state is not BreakerState.CLOSED:
            false_breaks, breaker = false_breaks + 1, Breaker()
    assert false_breaks <= 1
    needed = 0
    while breaker.state is BreakerState.CLOSED:
        breaker = add_sample(breaker, float(random.random() < 0.7), 0.9, options, 0.0)
        needed += 1
    assert needed <= 7 * 50
