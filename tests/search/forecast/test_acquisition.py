"""Hypervolume gains of candidates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr

from search.forecast.acquisition import (
    Forecast,
    Reference,
    expected_gains,
    expected_improvements,
    expected_speedups,
    front,
    gains,
    reference,
)
from search.sampler.goals import Known, MixGoal, worth
from search.sampler.loss_bounds import LossBounds
from studies.judging.rules.hypervolume import hypervolume, reference_of

CORNER = Reference(1.0, 1.0)
UNIT = st.floats(0, 1.2, allow_nan=False)


def volume(points, corner=CORNER):
    """By definition, on a fine grid of the points' own coordinates."""
    points = [(x, y) for x, y in points if x < corner.log_ms and y < corner.loss]
    xs = sorted({x for x, _ in points} | {corner.log_ms})
    total = 0.0
    for left, right in itertools.pairwise(xs):
        low = min((y for x, y in points if x <= left), default=corner.loss)
        total += (right - left) * (corner.loss - low)
    return total


@given(st.lists(st.tuples(UNIT, UNIT), max_size=8), st.tuples(UNIT, UNIT))
def test_a_gain_is_the_difference_of_two_volumes(points, point):
    array = np.array(points, dtype=float).reshape(-1, 2)
    kept = array[front(array[:, 0], array[:, 1])]
    gain = gains(np.array([point[0]]), np.array([point[1]]), kept[:, 0], kept[:, 1], CORNER)[0]
    assert gain == pytest.approx(volume([*points, point]) - volume(points), abs=1e-9)


def test_the_corner_is_that_of_the_reports():
    ms, loss = np.array([1.0, 0.5, 0.3]), np.array([0.0, 0.001, 0.1])
    corner = reference(ms, loss, 0.001)
    assert np.exp(corner.log_ms) == pytest.approx(1.02)
    assert corner.loss == pytest.approx(0.105)
    assert reference(ms, np.zeros(3), 0.002).loss == 0.002
    theirs = hypervolume(ms[1:], loss[1:], reference_of(ms, loss))
    kept = front(np.log(ms[1:]), loss[1:])
    mine = volume([(np.log(ms[1:][i]), loss[1:][i]) for i in kept], corner)
    assert mine == pytest.approx(theirs)


def test_certain_forecasts_gain_what_they_gain():
    forecast = Forecast(np.exp([0.2, 0.9]), np.zeros(2), np.array([0.5, 0.95]), np.zeros(2))
    kept = np.array([[0.1, 0.9], [0.5, 0.3]])
    found = expected_gains(forecast, kept[:, 0], kept[:, 1], CORNER, np.random.default_rng(0))
    assert found[0] == pytest.approx(volume([*map(tuple, kept), (0.2, 0.5)]) - volume([*map(tuple, kept)]))
    assert found[1] == 0


def single(ms, ms_std, loss, loss_std):
    return Forecast(*(np.atleast_1d(np.array(part, dtype=float)) for part in (ms, ms_std, loss, loss_std)))


def test_uncertainty_is_worth_something_and_a_budget_is_kept():
    assert expected_improvements(single(1.0, 0, 0.5, 0), 2.0, 0.5, 1.0)[0] == pytest.approx(0)
    assert expected_improvements(single(1.0, 0, 0.5, 0.2), 2.0, 0.5, 1.0)[0] > 0.01
    assert expected_improvements(single(1.0, 0, 0.5, 0.2), 0.5, 0.5, 1.0)[0] == pytest.approx(0)


def test_expected_gains_within_limits_are_what_many_draws_say():
    forecast, rng = (
        single([1.0, 0.9, 1.1], [0.05, 0.02, 0.3], [0.03, 0.001, 0.08], [0.02, 0.01, 0.05]),
        np.random.default_rng(1),
    )
    log_ms, loss = forecast.draws(400_000, rng)
    drawn = np.maximum(0.04 - np.maximum(loss, 0), 0) * (log_ms <= np.log(1.02))
    assert expected_improvements(forecast, 1.02, 0.04, 1.0) == pytest.approx(drawn.mean(axis=1), rel=0.02)
    drawn = np.maximum(0.05 - log_ms, 0) * (loss <= 0.02)
    kept = log_ndtr((0.02 - forecast.loss) / forecast.loss_std)
    assert expected_speedups(forecast, kept, 0.05, 1.0) == pytest.approx(drawn.mean(axis=1), rel=0.02)


def test_while_nothing_keeps_a_limit_the_likeliest_to_keep_it_is_worth_most():
    far = single([2.0, 1.5, 1.9], [0.02, 0.02, 0.02], [0.0, 0.01, 0.0], [0.01, 0.01, 0.01])
    assert np.argmax(expected_improvements(far, 1.0, None, 0.05)) == 1
    assert expected_improvements(far, 1.0, None, 0.05).max() == 1
    lossy = single([0.5, 1.0], [0.01, 0.01], [0.5, 0.3], [0.01, 0.01])
    kept = LossBounds().log_chances(lossy.loss, lossy.loss_std, 0.01)
    assert np.argmax(expected_speedups(lossy, kept, None, 1.0)) == 1


def test_where_nothing_is_left_to_gain_at_the_limits_they_say_nothing():
    known, rng = measured([1.0, 0.5], [0.0, 0.1], 0.001), np.random.default_rng(0)
    sure = single([0.9, 0.6], [0.001, 0.001], [0.05, 0.08], [0.001, 0.001])
    assert worth(MixGoal(budget_ms=1.1), sure, known, rng) is None
    better = worth(MixGoal(budget_ms=0.7), sure, known, rng)
    assert better is not None
    assert better[1] == pytest.approx(0.02 - 0.01 / 8, rel=0.1)
    assert worth(MixGoal(max_loss=0.06), sure, known, rng) is not None


def measured(ms, loss, std):
    """Trials whose latencies are known to a relative `std`, and their losses to a tenth of it."""
    corner, n = Reference(np.log(1.02), 0.105), len(ms)
    return Known(np.log(ms), np.array(loss), np.full(n, std), np.full(n, std / 10), corner, 0.01, 0.005, np.array(loss))


def test_a_trial_that_kept_a_limit_by_luck_leaves_something_to_gain():
    """One noisy measurement a hair within the limit does not make it kept, nor one beyond it broken."""
    rng = np.random.default_rng(0)
    surely = single([0.9], [0.001], [0.02], [0.001])  # well within the limits, but no better than the lucky trial
    lucky, broken, sound = ([[0.999, 0.5], [1.001, 0.5], [0.9, 0.5]][i] for i in range(3))
    gains = [
        worth(MixGoal(budget_ms=1.0), surely, measured(ms, [0.02, 0.1], 0.01), rng) for ms in (lucky, broken, sound)
    ]
    assert gains[2] is None
    half = (0.1 - 0.02) / 2
    assert gains[0] is not None
    assert gains[0][0] == pytest.approx(half, rel=0.4)
    assert gains[1] is not None
    assert gains[1][0] == pytest.approx(half, rel=0.4)
    fast = single([0.5], [0.001], [0.01], [0.0001])
    at_limit = worth(MixGoal(max_loss=0.02), fast, measured([0.5, 1.0], [0.0199, 0.0], 0.01), rng)
    assert at_limit is not None
    assert at_limit[0] == pytest.approx(np.log(2) / 2, rel=0.4)
