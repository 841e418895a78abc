"""Fronts, picks and hypervolume against plain O(n²) definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.judging.rules.feasibility import Near, feasible, nearest, overshoots
from studies.judging.rules.front import front
from studies.judging.rules.hypervolume import Corner, hypervolume, hypervolume_history, reference_of
from studies.options.limits import Limits

# Sums and differences of small multiples of 1/8 are exact, so that brute force and sweep agree on every tie.
EIGHTHS = st.integers(-8, 40).map(lambda k: k / 8)
BANDS = st.integers(0, 16).map(lambda k: k / 8)
ROW = st.tuples(st.integers(1, 24).map(lambda k: k / 8), EIGHTHS, BANDS, st.booleans())
ROWS = st.lists(ROW, max_size=14)
LATENCY_BANDS = st.sampled_from([0.0, 0.125, 0.25, 1.0])


def columns(rows):
    data = np.array(rows, float).reshape(-1, 4)
    return data[:, 0], data[:, 1], data[:, 2], data[:, 3] > 0


def brute_front(lat, los, band, hw, eligible):
    def faster(a, b):
        return lat[a] * (1 + band) < lat[b]

    def better(a, b):
        return los[b] - los[a] > max(hw[a], hw[b])

    def knocks(j, i):
        return (faster(j, i) and not better(i, j)) or (better(j, i) and not faster(i, j))

    n = len(lat)
    return np.array(
        [eligible[i] and not any(eligible[j] and knocks(j, i) for j in range(n) if j != i) for i in range(n)], bool
    )


@given(ROWS, LATENCY_BANDS)
def test_front_is_the_definition(rows, band):
    lat, los, hw, eligible = columns(rows)
    expected = brute_front(lat, los, band, hw, eligible)
    if not expected.any():
        expected = brute_front(lat, los, 0.0, 0 * hw, eligible)
    np.testing.assert_array_equal(front(lat, los, band, hw, eligible), expected)
    assert expected.any() == eligible.any()


@given(ROWS, LATENCY_BANDS, st.randoms(use_true_random=False))
def test_front_does_not_depend_on_the_order_of_rows(rows, band, random):
    mixed = list(range(len(rows)))
    random.shuffle(mixed)
    lat, los, hw, eligible = columns(rows)
    before = front(lat, los, band, hw, eligible)
    np.testing.assert_array_equal(front(lat[mixed], los[mixed], band, hw[mixed], eligible[mixed]), before[mixed])


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(-1, 1)), min_size=1, max_size=30))
def test_without_bands_it_is_the_plain_pareto_front(rows):
    lat, los = np.array(rows).T
    plain = [
        not any((a <= x and b < y) or (a < x and b <= y) for a, b in zip(lat, los, strict=True))
        for x, y in zip(lat, los, strict=True)
    ]
    np.testing.assert_array_equal(front(lat, los, 0.0, 0 * los, np.ones(len(lat))), plain)


def test_identical_rows_all_stay():
    assert front([1, 1, 1], [0.1, 0.1, 0.1], 0.02, [0, 0.01, 0], [1, 1, 1]).all()


def test_ties_within_the_bands_stay_and_clear_losers_go():
    # Row 1 is slower within the band and worse within the band; row 2 is clearly slower and ties in loss.
    on = front([1.0, 1.01, 1.1], [0.010, 0.012, 0.009], 0.02, [0.002, 0.002, 0.002], [1, 1, 1])
    assert on.tolist() == [True, True, False]


def test_the_wider_half_width_decides():
    assert front([1.0, 2.0], [0.02, 0.0], 0.0, [0.03, 0.0], [1, 1]).tolist() == [True, False]
    assert front([1.0, 2.0], [0.02, 0.0], 0.0, [0.01, 0.0], [1, 1]).tolist() == [True, True]


def test_ineligible_rows_neither_stay_nor_knock_out_and_may_be_nan():
    on = front([0.5, 1.0, np.nan], [0.0, 0.1, np.nan], 0.02, [0, 0, np.nan], [0, 1, 0])
    assert on.tolist() == [False, True, False]


def test_rows_that_knock_each_other_out_in_a_circle_leave_the_plain_front():
    # A wide row (1) ties in loss with everyone: 1 is faster than 0, 2 faster than 1, 3 and 4 lead back to 0.
    lat = np.exp([0.0, -0.11, -0.22, -0.13, -0.04])
    los, hw = [0.0, 5.0, 10.0, 6.0, 3.0], [0.0, 5.0, 0.0, 0.0, 0.0]
    band = float(np.expm1(0.1))
    assert not brute_front(lat, los, band, hw, [1] * 5).any()
    plain = brute_front(lat, los, 0.0, [0.0] * 5, [1] * 5)
    assert plain.any()
    assert front(lat, los, band, hw, [1] * 5).tolist() == plain.tolist()


def test_empty_and_wrong_rows():
    assert front([], [], 0.02, [], []).shape == (0,)
    for bad in ([np.nan], [0.0], [np.inf]):
        with pytest.raises(ValueError, match="finite latency above zero"):
            front(bad, [0.0], 0.02, [0.0], [1])
    with pytest.raises(ValueError, match="bands"):
        front([1.0], [0.0], 0.02, [-1.0], [1])


def test_front_and_history_of_ten_thousand_rows():
    generator = np.random.default_rng(0)
    lat = generator.uniform(1, 2, 10_000)
    los = 1 / lat + generator.normal(0, 0.01, 10_000)
    on = front(lat, los, 0.001, np.full(10_000, 0.001), np.ones(10_000))
    assert 0 < on.sum() < 10_000
    history = hypervolume_history(lat, los, np.ones(10_000), Corner(2.04, 1.1))
    assert history[-1] == pytest.approx(hypervolume(lat, los, Corner(2.04, 1.1)))


def measures(latency_ms, loss, value=(), memory_bytes=()):
    return {"latency_ms": latency_ms, "loss": loss, "metric_value": value, "memory_bytes": memory_bytes}


LIMITS = Limits(latency_budget_ms=2.0, max_drop=0.01, accuracy_limit=0.7, max_memory_bytes=100)


def test_feasible_keeps_what_meets_every_limit_exactly():
    keeps = feasible(measures([2.0], [0.01], [0.7], [100]), [0], LIMITS, higher_is_better=True)
    assert keeps.tolist() == [True]


@pytest.mark.parametrize(
    "row",
    [
        (2.1, 0, 1, 9, 0),
        (1, 0.02, 1, 9, 0),
        (1, 0, 0.6, 9, 0),
        (1, 0, 1, 101, 0),
        (1, 0, 1, np.nan, 0),
        (1, 0, 1, 9, 1),
    ],
)
def test_feasible_refuses_each_miss(row):
    keeps = feasible(measures(*([cell] for cell in row[:4])), row[4:], LIMITS, higher_is_better=True)
    assert keeps.tolist() == [False]


def test_feasible_without_limits_needs_both_objectives():
    keeps = feasible(measures([1, np.nan, 1], [0, 0, np.nan]), [0] * 3, Limits(), higher_is_better=True)
    assert keeps.tolist() == [True, False, False]


def test_feasible_turns_the_accuracy_limit_for_errors():
    limits = Limits(accuracy_limit=0.5)
    keeps = feasible(measures([1, 1], [0, 0], [0.4, 0.6]), [0, 0], limits, higher_is_better=False)
    assert keeps.tolist() == [True, False]


def test_nearest_orders_by_the_worst_relative_overshoot():
    limits = Limits(latency_budget_ms=1.0, max_drop=0.01)
    over = overshoots(measures([1.5, 1.1, 0.9, 0.5], [0.0, 0.0105, 0.02, np.nan]), limits, higher_is_better=True)
    found = nearest(over, [1, 1, 1, 1])
    assert [near.row for near in found] == [1, 0, 2]
    assert [name for name, _ in found[0].misses] == ["latency", "loss"]
    assert found[0].misses[0][1] == pytest.approx(0.1)
    assert nearest(over, [0, 0, 1, 0], count=1)[0].row == 2


def test_overshoot_of_a_zero_limit_is_the_difference():
    over = overshoots(measures([1], [0.02]), Limits(max_drop=0.0), higher_is_better=True)
    assert over["loss"][0] == pytest.approx(0.02)


def test_nearest_keeps_direction_and_needs_a_limit():
    over = overshoots(measures([1], [0], [20.0]), Limits(accuracy_limit=30.0), higher_is_better=True)
    assert nearest(over, [1]) == [Near(0, (("accuracy", pytest.approx(1 / 3)),))]
    lower = overshoots(measures([1], [0], [20.0]), Limits(accuracy_limit=30.0), higher_is_better=False)
    assert nearest(lower, [1]) == [Near(0, ())]
    assert nearest({}, [1]) == []


def test_reference_of_baselines():
    assert reference_of([1.0, 0.5], [0.0, 0.2]) == Corner(pytest.approx(1.02), pytest.approx(0.21))
    assert reference_of([1.0], [0.0]).loss == 1.0
    assert reference_of([1.0], [-0.1]).loss == 1.0
    with pytest.raises(ValueError, match="at least one baseline"):
        reference_of([], [])


def test_hypervolume_of_known_areas():
    reference = Corner(float(np.e), 1.0)
    assert hypervolume([1.0], [0.0], reference) == pytest.approx(1.0)
    assert hypervolume([1.0], [-5.0], reference) == pytest.approx(1.0)  # better than FP32 counts as equal to it
    two = hypervolume([1.0, float(np.sqrt(np.e))], [0.5, 0.0], reference)
    assert two == pytest.approx(0.5 * 1 + 0.5 * 0.5)
    assert hypervolume([3.0, np.nan, 1.0], [0.0, 0.0, 1.0], reference) == 0.0
    assert hypervolume([], [], reference) == 0.0


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(-0.5, 2), st.booleans()), max_size=40))
def test_history_is_the_hypervolume_of_every_beginning(rows):
    data = np.array(rows, float).reshape(-1, 3)
    lat, los, eligible = data[:, 0], data[:, 1], data[:, 2] > 0
    reference = Corner(4.0, 1.5)
    history = hypervolume_history(lat, los, eligible, reference)
    assert (np.diff(history) >= 0).all()
    expected = [hypervolume(lat[:k][eligible[:k]], los[:k][eligible[:k]], reference) for k in range(1, len(lat) + 1)]
    np.testing.assert_allclose(history, np.array(expected), rtol=1e-9, atol=1e-12)


def test_hypervolume_agrees_with_optuna():
    from optuna._hypervolume import compute_hypervolume

    generator = np.random.default_rng(1)
    lat, los = generator.uniform(0.5, 2.5, 60), generator.uniform(0, 0.9, 60)
    theirs = compute_hypervolume(np.column_stack([np.log(lat), los]), np.array([np.log(2.5), 0.9]))
    assert hypervolume(lat, los, Corner(2.5, 0.9)) == pytest.approx(theirs)
