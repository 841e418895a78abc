"""Confidence intervals of a loss: how often they cover it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.measure.intervals import bootstrap_interval, cluster_sums, paired_interval, student_point


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
    stopped = np.array([paired_interval(row, ratio=True, z=2.5758)[0] for row in draws]) > worse - better
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
    assert 0.92 <= ((intervals[:, 0] <= 0.5) & (intervals[:, 1] >= 0.5)).mean() <= 0.98


def draw_shares(
    rng: np.random.Generator, codes: NDArray[np.int64], worse: float, better: float, alike: float
) -> NDArray[np.float64]:
    """Losses of samples of which a share `alike` is what their whole cluster is."""
    chances = [worse, better, 1 - worse - better]
    own = rng.choice([1.0, -1.0, 0.0], p=chances, size=len(codes))
    common = rng.choice([1.0, -1.0, 0.0], p=chances, size=codes.max() + 1)[codes]
    return np.where(rng.random(len(codes)) < alike, common, own)


UNEVEN = np.repeat(np.arange(30), [5] * 15 + [35] * 15)
EVEN = np.repeat(np.arange(30), 20)


@pytest.mark.parametrize("codes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("worse", "better", "alike"), [(0.1, 0.05, 0.3), (0.1, 0.05, 0.0), (0.02, 0.01, 0.3)])
def test_coverage_of_30_clusters_for_shares(
    codes: NDArray[np.int64], worse: float, better: float, alike: float
) -> None:
    rng = np.random.default_rng(4)
    draws = [draw_shares(rng, codes, worse, better, alike) for _ in range(1000)]
    intervals = np.array([paired_interval(row, ratio=True, clusters=codes) for row in draws])
    truth = worse - better
    assert ((intervals[:, 0] <= truth) & (truth <= intervals[:, 1])).mean() >= 0.93


def test_coverage_of_30_clusters_for_measures() -> None:
    rng = np.random.default_rng(5)
    covered, without = 0, 0
    for _ in range(1000):
        row = 3.0 + rng.normal(size=30)[UNEVEN] + rng.normal(size=len(UNEVEN))
        low, high = paired_interval(row, ratio=False, clusters=UNEVEN)
        covered += low <= 3.0 <= high
        low, high = paired_interval(row, ratio=False)
        without += low <= 3.0 <= high
    assert 930 <= covered <= 980
    assert without < 700, "taken as independent, the interval is far too narrow"


def test_coverage_of_the_bootstrap_of_blocks() -> None:
    rng, codes = np.random.default_rng(6), np.repeat(np.arange(10), 3)
    covered = 0
    for _ in range(500):
        row = 0.5 + rng.normal(size=10)[codes] + 0.3 * rng.normal(size=30)
        low, high = bootstrap_interval(row, np.ones(30), float(row.mean()), clusters=codes)
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 500 <= 0.98


def test_clusters_of_one_sample_give_the_interval_of_samples() -> None:
    row = np.random.default_rng(7).choice([1.0, -1.0, 0.0], p=[0.03, 0.02, 0.95], size=2000)
    for ratio in (True, False):
        plain = paired_interval(row, ratio=ratio)
        assert paired_interval(row, ratio=ratio, clusters=np.arange(2000)) == pytest.approx(plain, rel=0.003)


def test_where_nothing_changes_a_cluster_counts_as_one_sample() -> None:
    low, high = paired_interval(np.zeros(600), ratio=True, clusters=EVEN)
    assert high == -low
    assert high == pytest.approx(student_point(1.959964, 29) / 32)  # one cluster in 30, as one sample in 30 would be
    assert paired_interval(np.zeros(600), ratio=True)[1] < high / 10


def test_any_codes_in_any_order_name_clusters() -> None:
    rng = np.random.default_rng(8)
    row, order = draw_shares(rng, EVEN, 0.05, 0.05, 0.5), rng.permutation(len(EVEN))
    expected = paired_interval(row, ratio=True, clusters=EVEN)
    assert paired_interval(row[order], ratio=True, clusters=(1000 - 7 * EVEN)[order]) == pytest.approx(expected)


def test_design_effect_lies_between_one_and_the_size_of_a_cluster() -> None:
    rng = np.random.default_rng(9)
    apart, alike = (cluster_sums(draw_shares(rng, EVEN, 0.2, 0.2, share), EVEN) for share in (0.0, 1.0))
    assert 1.0 <= apart.design_effect < 2.0
    assert alike.design_effect == pytest.approx(20.0, rel=0.01)
    assert cluster_sums(np.zeros(600), EVEN).design_effect == 20.0


def test_an_interval_needs_two_clusters() -> None:
    with pytest.raises(ValueError, match="at least two clusters"):
        paired_interval(np.zeros(10), ratio=True, clusters=np.zeros(10, np.int64))


def test_coverage_where_scores_are_shares_of_a_sample_themselves() -> None:
    """Of 32 tokens a text, of which few change: one whole text each way would be far too wide."""
    rng, true, inside, widths = np.random.default_rng(5), 0.002, 0, []
    for _ in range(400):
        worse, better = (rng.binomial(32, share, 240) for share in (0.003, 0.001))
        low, high = paired_interval((worse - better) / 32, ratio=True)
        inside += low <= true <= high
        widths.append(high - low)
    assert inside >= 0.93 * 400
    assert np.mean(widths) < 0.004


def test_an_unseen_difference_of_shares_counts_as_a_whole_sample() -> None:
    low, high = paired_interval(np.zeros(100), ratio=True)
    assert high == -low > 0.015


@pytest.mark.parametrize("batches", [2, 3, 8])
def test_the_interval_of_few_batches_covers_as_often_as_that_of_many(batches: int) -> None:
    """A rescue table may have time for two batches only. As percentiles those cover the truth half of the time."""
    draws = np.random.default_rng(5).normal(0.01, 0.02, (400, batches))
    intervals = np.array([bootstrap_interval(row, np.ones(batches), float(row.mean())) for row in draws])
    covered = np.mean((intervals[:, 0] <= 0.01) & (intervals[:, 1] >= 0.01))
    assert covered >= 0.92
