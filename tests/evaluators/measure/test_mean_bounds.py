"""Bounds of a loss: exact tests where there are such, and how often they are wrong elsewhere."""

from __future__ import annotations

from itertools import product
from math import comb, inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaincinv

from evaluators.measure.intervals import Floats
from evaluators.measure.mean_bounds import LossUnits, batch_losses, reverse_units, sample_losses

SHARE = 1.0  # the most that a sample can lose


def shares(lost: int, won: int, samples: int) -> LossUnits:
    return sample_losses(np.repeat([1.0, -1.0, 0.0], [lost, won, samples - lost - won]), SHARE)


def test_no_change_at_all_leaves_open_a_loss_as_large_as_clopper_and_pearson_say() -> None:
    assert shares(0, 0, 180).upper(0.05) == pytest.approx(0.0165052, abs=1e-7)
    assert shares(0, 0, 298).upper(0.05) > 0.01
    assert shares(0, 0, 299).upper(0.05) <= 0.01


@pytest.mark.parametrize(("lost", "samples"), [(1, 50), (3, 180), (40, 1000), (2, 10_000), (3000, 10_000)])
@pytest.mark.parametrize("level", [0.05, 0.001])
def test_without_wins_it_is_the_bound_of_clopper_and_pearson(lost: int, samples: int, level: float) -> None:
    expected = float(betaincinv(lost + 1, samples - lost, 1 - level))
    assert shares(lost, 0, samples).upper(level) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (11, 0), (5, 12), (30, 12)])
def test_at_a_limit_of_zero_it_is_mcnemars_exact_test(lost: int, won: int) -> None:
    changed = lost + won
    expected = sum(comb(changed, k) for k in range(lost, changed + 1)) / 2**changed
    assert reverse_units(shares(lost, won, 1000)).chance_below(0.0) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("limit", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("won", [0.0, 0.05, 0.2])
def test_a_loss_of_just_the_limit_is_called_kept_in_no_more_cases_than_the_level_says(limit: float, won: float) -> None:
    """Every outcome of 18 samples that is called kept, added up."""
    samples, lost, total = 18, won + limit, 0.0
    for n_lost, n_won in product(range(samples + 1), repeat=2):
        rest = samples - n_lost - n_won
        if rest >= 0 and shares(n_lost, n_won, samples).chance_below(limit) <= 0.05:
            ways = comb(samples, n_lost) * comb(samples - n_lost, n_won)
            total += ways * lost**n_lost * won**n_won * (1 - lost - won) ** rest
    assert total <= 0.05


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=60), st.sampled_from([0.05, 0.005]))
def test_a_bound_is_where_the_test_turns(losses: list[float], level: float) -> None:
    units = sample_losses(np.array(losses), SHARE)
    upper = units.upper(level)
    assert units.mean <= upper <= 1
    if upper < 1 - 1e-6:
        assert units.chance_below(upper + 1e-6) <= level <= units.chance_below(upper - 1e-6)
    assert -reverse_units(units).upper(level) <= units.mean


def false_kept(draw: Floats, true: float, most: float | None) -> float:
    """How often samples, one row each, whose true loss is `true`, are said to lose less."""
    return float(np.mean([sample_losses(row, most).chance_below(true) <= 0.05 for row in draw]))


def test_scores_between_zero_and_one_are_called_kept_falsely_in_one_of_twenty_cases_at_most() -> None:
    random = np.random.default_rng(0)
    rare = random.random((500, 300)) < 0.01  # one in a hundred carries the whole loss
    assert false_kept(rare * random.uniform(0.5, 1, rare.shape), 0.0075, SHARE) <= 0.07
    assert false_kept(random.beta(0.2, 4, (500, 100)), 0.2 / 4.2, SHARE) <= 0.07


@pytest.mark.parametrize("clusters", [20, 60])
def test_clusters_that_change_together_count_as_one(clusters: int) -> None:
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(300):
        sizes = random.integers(1, 30, clusters)
        lost = np.repeat(random.random(clusters) < 0.05, sizes).astype(float)
        codes = np.repeat(np.arange(clusters), sizes)
        wrong += sample_losses(lost, SHARE, codes).chance_below(0.05) <= 0.05
    assert wrong / 300 <= 0.08


def test_scores_without_bounds_have_a_bound_from_a_hundred_samples_on() -> None:
    random = np.random.default_rng(2)
    losses = random.exponential(size=(300, 100))
    assert sample_losses(losses[0, :99], None).upper(0.05) == inf
    assert false_kept(losses, 1.0, None) <= 0.06


def test_batches_that_lose_nothing_leave_open_that_a_sample_does() -> None:
    units = batch_losses(np.zeros(12), np.full(12, 15.0), 0.0, SHARE)
    assert units.upper(0.05) > 1 - 0.05 ** (1 / 180)
    assert batch_losses(np.zeros(9), np.full(9, 20.0), 0.0, SHARE).upper(0.05) == inf


def test_batches_vary_about_the_loss_of_everything() -> None:
    units = batch_losses(np.array([0.0, 0.02] * 10), np.full(20, 16.0), 0.05, SHARE)
    assert units.mean == pytest.approx(0.05)
    assert 0.05 < units.upper(0.05) < 0.08


def test_bounds_of_several_levels_widen() -> None:
    found = shares(4, 2, 500).uppers([0.05, 0.02, 0.001])
    assert found == sorted(found)
    assert sample_losses(np.ones(10), SHARE).upper(0.05) == 1
