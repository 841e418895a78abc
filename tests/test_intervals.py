"""Confidence intervals of a loss: how often they cover it."""

from __future__ import annotations

import numpy as np
import pytest

from evaluators.intervals import Z99, bootstrap_interval, paired_interval


@pytest.mark.parametrize(
    ("better", "worse", "samples", "least"),
    [(0.05, 0.1, 64, 0.93), (0.01, 0.02, 200, 0.94), (0.002, 0.01, 200, 0.97), (0.0, 0.003, 1000, 0.93)],
)
def test_coverage_of_the_interval_for_shares(better: float, worse: float, samples: int, least: float) -> None:
    """2000 splits each. In the last two cases few pairs differ: the plain normal interval covers 0.86 and 0.80."""
    rng = np.random.default_rng(1)
    draws = rng.choice([-1.0, 1.0, 0.0], p=[better, worse, 1 - better - worse], size=(2000, samples))
    intervals = np.array([paired_interval(row, ratio=True) for row in draws])
    covered = (intervals[:, 0] <= worse - better) & (worse - better <= intervals[:, 1])
    assert covered.mean() >= least
    stopped = np.array([paired_interval(row, ratio=True, z=Z99)[0] for row in draws]) > worse - better
    assert stopped.mean() <= 0.01, "a candidate exactly at the limit is hardly ever stopped early"


def test_coverage_of_the_interval_for_measures() -> None:
    draws = np.random.default_rng(2).normal(3.0, 2.0, size=(2000, 64))
    intervals = np.array([paired_interval(row, ratio=False) for row in draws])
    assert 0.93 <= ((intervals[:, 0] <= 3.0) & (intervals[:, 1] >= 3.0)).mean() <= 0.97


def test_interval_holds_its_mean_and_is_at_least_one_sample_wide_for_shares() -> None:
    none_differs = paired_interval(np.zeros(100), ratio=True)
    assert none_differs[0] < -1 / 100 < 1 / 100 < none_differs[1]
    assert paired_interval(np.zeros(100), ratio=False) == (0.0, 0.0)
    all_lost = paired_interval(np.ones(100), ratio=True)
    assert all_lost[0] < 1.0 < all_lost[1]
    with pytest.raises(ValueError, match="at least two"):
        paired_interval(np.zeros(1), ratio=True)


def test_coverage_of_the_bootstrap() -> None:
    draws = np.random.default_rng(3).normal(0.5, 1.0, size=(300, 30))
    weights = np.ones(30)
    intervals = np.array([bootstrap_interval(row, weights, float(row.mean())) for row in draws])
    assert 0.88 <= ((intervals[:, 0] <= 0.5) & (intervals[:, 1] >= 0.5)).mean() <= 0.98
