"""The decision on drift, on stored statistics: the level holds, what has changed is found, too little is not judged."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluators.calibration.sample_statistics import BINS, SampleStatistics
from evaluators.measure.intervals import paired_interval
from studies.inspect.drift.drift_report import loss_text
from studies.inspect.drift.shifts import (
    LEVEL,
    DriftVerdict,
    LossShift,
    chance_of,
    compare_losses,
    judge_drift,
    largest_difference,
    reject_by_holm,
)
from studies.options.limits import MetricScale

NAMES = tuple(f"t{number}" for number in range(25))


def statistics(values: np.ndarray) -> SampleStatistics:
    """Of (tensors, samples) means; least and largest lie around them."""
    clipped = (np.abs(values) > 2.5) * 0.01
    every = np.stack([values - 1, values + 1, values, clipped], axis=1).astype(np.float32)
    counts = np.stack([np.histogram(row, BINS, (-9.0, 9.0))[0] for row in values])
    return SampleStatistics(NAMES, every, np.tile([-3.0, 3.0], (len(NAMES), 1)), counts)


@pytest.fixture(scope="module")
def population() -> np.ndarray:
    """(tensors, samples), correlated as tensors of one network are."""
    rng = np.random.default_rng(5)
    shared = rng.normal(size=(1, 400))
    return np.asarray(0.7 * shared + 0.7 * rng.normal(size=(len(NAMES), 400)))


@pytest.mark.slow
def test_a_hundred_resamplings_of_the_same_data_raise_no_alarm(population: np.ndarray) -> None:
    rng = np.random.default_rng(6)
    verdicts = set()
    for _ in range(100):
        order = rng.permutation(400)
        before, now = statistics(population[:, order[:150]]), statistics(population[:, order[150:300]])
        verdicts.add(judge_drift(before, now).verdict)
    assert verdicts == {DriftVerdict.NO_DRIFT}


def test_brightness_that_doubles_is_found(population: np.ndarray) -> None:
    before, now = statistics(population[:, :150]), statistics(2 * population[:, 150:300] + 1)
    found = judge_drift(before, now)
    assert found.verdict is DriftVerdict.DRIFT
    assert found.shifts[0].drifted
    assert found.shifts[0].moved > 0.1


def test_one_tensor_that_changes_is_found_and_named(population: np.ndarray) -> None:
    fresh = population[:, 150:300].copy()
    fresh[7] += 2
    found = judge_drift(statistics(population[:, :150]), statistics(fresh))
    assert found.verdict is DriftVerdict.DRIFT
    assert {shift.tensor for shift in found.shifts if shift.drifted} == {"t7"}


def test_few_samples_are_not_judged(population: np.ndarray) -> None:
    found = judge_drift(statistics(population[:, :150]), statistics(population[:, 150:156]))
    assert found.verdict is DriftVerdict.NOT_JUDGED
    assert found.smallest > 0.5


def test_few_samples_that_are_quite_different_are_drift(population: np.ndarray) -> None:
    found = judge_drift(statistics(population[:, :150]), statistics(population[:, 150:160] + 50))
    assert found.verdict is DriftVerdict.DRIFT


def test_values_that_are_not_finite_are_drift(population: np.ndarray) -> None:
    fresh = population[:, 150:300].copy()
    fresh[3] = np.inf
    found = judge_drift(statistics(population[:, :150]), statistics(fresh))
    assert found.verdict is DriftVerdict.DRIFT
    assert next(s for s in found.shifts if s.tensor == "t3" and s.statistic == "mean").to_json()["now"] is None


def test_the_level_is_divided_over_all_comparisons() -> None:
    assert reject_by_holm([0.0004, 0.04, 0.0003], 0.001) == [True, False, True]
    assert reject_by_holm([0.0004, 0.0006, 0.0004], 0.001) == [False, False, False]
    assert reject_by_holm([], 0.001) == []


def test_the_bound_of_a_distance_is_never_below_its_chance() -> None:
    """With complete separation the chance is 2 over the number of ways to divide the samples."""
    for one, two in ((5, 5), (3, 40), (10, 10), (20, 7)):
        assert chance_of(1.0, one, two) >= 2 / math.comb(one + two, one)
    assert chance_of(0.0, 10, 10) == 1.0


def test_the_distance_is_that_of_the_cumulative_shares() -> None:
    one, two = np.array([1.0, 2, 3, 4]), np.array([3.0, 4, 5, 6])
    assert largest_difference(one, two) == 0.5
    assert largest_difference(one, one) == 0.0
    assert largest_difference(np.zeros(5), np.array([0.0, 0, 0, 0, 1])) == pytest.approx(0.2)


def loss(now: tuple[float, float, float]) -> LossShift:
    before = (0.01, 0.0, 0.02)
    return LossShift(3, before, now, compare_losses(before, now, 150), 0.9, 0.91, 1000)


def test_a_loss_that_grows_is_drift_by_itself(population: np.ndarray) -> None:
    before, now = statistics(population[:, :150]), statistics(population[:, 150:300])
    found = judge_drift(before, now, loss((0.2, 0.18, 0.22)))
    assert found.verdict is DriftVerdict.DRIFT
    assert found.loss is not None
    assert found.loss.drifted
    assert not any(shift.drifted for shift in found.shifts)


def test_a_loss_that_shrinks_is_none(population: np.ndarray) -> None:
    before, now = statistics(population[:, :150]), statistics(population[:, 150:300])
    assert judge_drift(before, now, loss((-0.2, -0.22, -0.18))).verdict is DriftVerdict.NO_DRIFT
    assert compare_losses((0.01, 0.0, 0.02), (0.01, 0.0, 0.02), 150) == 0.5
    assert compare_losses((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), 150) == 1.0
    assert compare_losses((0.0, 0.0, 0.0), (0.1, 0.1, 0.1), 150) == 0.0


def test_a_metric_that_compares_with_fp32_is_told_by_its_values() -> None:
    metric = MetricScale("sqnr", "dB", relative=True)
    shift = LossShift(3, (60.0, 58.0, 62.0), (64.0, 63.0, 66.0), 0.01, 36.0, 100.0, 1000, drifted=True)
    assert loss_text(shift, metric) == (
        "trial 3 has sqnr 36 dB [34 dB, 37 dB] on 1000 fresh samples, and had 40 dB [38 dB, 42 dB] on the study's "
        "final split: worse than before, beyond chance."
    )


def test_losses_of_few_samples_are_no_alarm() -> None:
    """The interval of three samples is often far too narrow."""
    before, now = (0.01, 0.0, 0.02), (0.2, 0.18, 0.22)
    chances = [compare_losses(before, now, units) for units in (3, 19, 20, 40, 1000)]
    assert chances[:2] == [1.0, 1.0]
    assert chances[2:] == sorted(chances[2:], reverse=True)
    assert chances[2] > 1e6 * chances[4]


def test_unchanged_losses_raise_an_alarm_as_seldom_as_promised() -> None:
    rng = np.random.default_rng(0)

    def loss_of(samples: int) -> tuple[float, float, float]:
        drawn = rng.normal(1, 1, samples)
        return float(drawn.mean()), *paired_interval(drawn, ratio=False)

    chances = np.array([compare_losses(loss_of(500), loss_of(20), 20) for _ in range(4000)])
    for level in (0.001, 0.01, 0.1):
        assert (chances <= level).mean() <= 1.5 * level + 0.0005


def test_the_level_is_a_thousandth() -> None:
    assert LEVEL == 0.001
