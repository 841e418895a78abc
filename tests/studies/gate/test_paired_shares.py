"""Exact tests of the drop of a share: McNemar's where the limit is zero, level and power by enumeration elsewhere."""

from __future__ import annotations

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.gate.paired_shares import detectable_drop, drop_bounds, drop_p_value

LEVEL = 0.005


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (11, 0), (5, 12), (30, 12)])
def test_without_a_limit_it_is_mcnemars_exact_test(lost: int, won: int) -> None:
    changed = lost + won
    expected = sum(comb(changed, k) for k in range(lost, changed + 1)) / 2**changed
    assert drop_p_value(lost, won, 1000, 0.0, LEVEL) == pytest.approx(expected)


def rejection_probability(samples: int, limit: float, lost_share: float, won_share: float, level: float) -> float:
    """Of a true pair of shares, by adding up every outcome that the test rejects."""
    total = 0.0
    for lost, won in product(range(samples + 1), repeat=2):
        rest = samples - lost - won
        if rest >= 0 and drop_p_value(lost, won, samples, limit, level) <= level:
            ways = comb(samples, lost) * comb(samples - lost, won)
            total += ways * lost_share**lost * won_share**won * (1 - lost_share - won_share) ** rest
    return total


@pytest.mark.parametrize("limit", [0.0, 0.1, -0.1])
@pytest.mark.parametrize("won_share", [0.0, 0.1, 0.3])
def test_a_drop_of_exactly_the_limit_is_rejected_no_more_often_than_the_level_says(
    limit: float, won_share: float
) -> None:
    won_share = max(won_share, -limit)
    assert rejection_probability(18, limit, won_share + limit, won_share, 0.05) <= 0.05


@settings(max_examples=30)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(81, 500))
def test_bounds_surround_the_estimate_and_turn_around_with_the_engines(lost: int, won: int, samples: int) -> None:
    low, high = drop_bounds(lost, won, samples, LEVEL)
    assert low <= (lost - won) / samples <= high
    assert drop_bounds(won, lost, samples, LEVEL) == pytest.approx((-high, -low), abs=1e-9)


def test_a_bound_is_where_the_test_turns() -> None:
    low, high = drop_bounds(150, 50, 5000, LEVEL)
    assert drop_p_value(150, 50, 5000, low - 1e-4, LEVEL) <= LEVEL < drop_p_value(150, 50, 5000, low + 1e-4, LEVEL)
    assert drop_p_value(50, 150, 5000, -high - 1e-4, LEVEL) <= LEVEL
    assert drop_p_value(50, 150, 5000, -high + 1e-4, LEVEL) > LEVEL


@pytest.mark.parametrize("lost", range(5, 12))
def test_a_drop_is_certain_exactly_where_mcnemars_test_says_so(lost: int) -> None:
    low, _ = drop_bounds(lost, 0, 300, LEVEL)
    assert (low >= 0) == (drop_p_value(lost, 0, 300, 0.0, LEVEL) <= LEVEL)


def test_no_change_at_all_bounds_the_drop_by_the_number_of_samples() -> None:
    few, many = drop_bounds(0, 0, 200, LEVEL)[1], drop_bounds(0, 0, 20_000, LEVEL)[1]
    assert 0 < many < few / 50
    assert drop_p_value(0, 0, 2000, -0.01, LEVEL) <= LEVEL  # so the drop is surely below 1 %


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "share", "limit"), [(400, 0.02, 0.05), (2000, 0.005, 0.01), (2000, 0.01, 0.0)])
def test_the_drop_that_is_called_detectable_is_found_in_nine_of_ten_cases(
    samples: int, share: float, limit: float
) -> None:
    random = np.random.default_rng(1)
    found = []
    for _ in range(80):
        drop = detectable_drop(int(random.binomial(samples, share)), samples, limit, LEVEL)
        assert drop is not None
        lost, won, _ = random.multinomial(samples, [share + drop, share, 1 - 2 * share - drop])
        found.append(drop_p_value(int(lost), int(won), samples, limit, LEVEL) <= LEVEL)
    assert np.mean(found) >= 0.9


def test_too_few_samples_detect_nothing() -> None:
    assert detectable_drop(1, 3, 0.5, LEVEL) is None
