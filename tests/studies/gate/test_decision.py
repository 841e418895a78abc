"""The decisions of a gate: scores and times in, verdict out. No engine runs and no clock is read."""

from __future__ import annotations

import numpy as np
import pytest

from evaluators.measure.intervals import Codes, Floats
from studies.gate.check import LEVEL, GateVerdict, combine_verdicts, divide_level
from studies.gate.latency import ProcessTimes, judge_latency, measure_band
from studies.gate.loss import PairedScores, fail_loss, judge_loss

HALF = divide_level(2)


def shares(candidate: Floats, baseline: Floats, clusters: Codes | None = None) -> PairedScores:
    return PairedScores(candidate, baseline, ratio=True, higher_is_better=True, clusters=clusters)


@pytest.mark.parametrize(("lost", "won", "samples"), [(0, 10, 50), (27, 50, 300), (50, 27, 300), (3, 1, 40)])
def test_to_allow_more_never_gives_a_worse_verdict(lost: int, won: int, samples: int) -> None:
    order = [GateVerdict.FAILS, GateVerdict.NOT_JUDGED, GateVerdict.HOLDS]
    found = [judge_loss(shares(*answers(samples, lost, won)), limit, LEVEL) for limit in (0, 0.001, 0.01, 0.05, 0.3)]
    places = [order.index(check.verdict) for check in found]
    assert places == sorted(places)
    assert not any("-0 " in check.reason or "-0," in check.reason for check in found)


def test_the_reason_of_a_verdict_at_no_drop_at_all() -> None:
    worse, better = (judge_loss(shares(*answers(300, *counts)), 0.0, LEVEL) for counts in ((50, 27), (27, 50)))
    assert (worse.verdict, worse.reason) == (
        GateVerdict.FAILS,
        "the drop is at least 0.00573, more than the 0 that are allowed",
    )
    told = "the candidate is better by at least 0.00573, and a drop of 0 is allowed"
    assert (better.verdict, better.reason) == (GateVerdict.HOLDS, told)


def answers(samples: int, lost: int, won: int) -> tuple[Floats, Floats]:
    """Scores of candidate and baseline: the first `lost` samples are lost, the next `won` are won."""
    candidate, baseline = np.ones(samples), np.ones(samples)
    candidate[:lost] = 0
    baseline[lost : lost + won] = 0
    return candidate, baseline


def test_the_level_is_divided_among_the_checks() -> None:
    assert divide_level(1) == LEVEL
    assert divide_level(2) == LEVEL / 2


@pytest.mark.parametrize(
    ("lost", "won", "limit", "verdict"),
    [
        (10, 10, 0.02, GateVerdict.HOLDS),
        (10, 10, 0.002, GateVerdict.NOT_JUDGED),
        (120, 10, 0.01, GateVerdict.FAILS),
        (60, 10, 0.01, GateVerdict.FAILS),
        (8, 0, 0.0, GateVerdict.FAILS),
        (7, 0, 0.0, GateVerdict.NOT_JUDGED),
    ],
)
def test_shares_are_held_to_the_limit_by_their_bounds(lost: int, won: int, limit: float, verdict: GateVerdict) -> None:
    found = judge_loss(shares(*answers(2000, lost, won)), limit, HALF)
    assert found.verdict is verdict
    assert found.low is not None
    assert found.high is not None
    assert found.estimate == (lost - won) / 2000
    if limit:
        assert (found.low > limit) == (verdict is GateVerdict.FAILS)
        assert (found.high <= limit) == (verdict is GateVerdict.HOLDS)
    assert found.details["lost_samples"] == lost
    assert f"{2000} samples" in found.units


def test_a_lower_score_may_be_the_better_one() -> None:
    noise = np.random.default_rng(0).normal(size=400)
    worse = PairedScores(noise + 5, noise, ratio=False, higher_is_better=False)
    assert judge_loss(worse, 4.0, HALF).verdict is GateVerdict.FAILS
    better = PairedScores(noise + 5, noise, ratio=False, higher_is_better=True)
    assert judge_loss(better, 0.0, HALF).verdict is GateVerdict.HOLDS


def test_decibels_are_judged_by_the_same_bounds() -> None:
    random = np.random.default_rng(0)
    baseline = random.normal(30, 4, 500)
    candidate = baseline - 1 + random.normal(0, 0.5, 500)
    scores = PairedScores(candidate, baseline, ratio=False, higher_is_better=True)
    found = judge_loss(scores, 0.5, HALF)
    assert found.verdict is GateVerdict.FAILS
    assert judge_loss(scores, 1.5, HALF).verdict is GateVerdict.HOLDS
    smallest = judge_loss(scores, 1.0, HALF).smallest
    assert smallest is not None
    assert 1.05 < smallest < 1.25


def test_samples_of_a_cluster_count_as_one_where_they_change_together() -> None:
    candidate, baseline = answers(2000, 60, 10)
    apart = shares(candidate, baseline)
    together = shares(candidate, baseline, clusters=np.arange(2000) // 20)
    assert judge_loss(apart, 0.01, HALF).verdict is GateVerdict.FAILS
    found = judge_loss(together, 0.01, HALF)
    assert found.verdict is GateVerdict.NOT_JUDGED
    assert found.units == "100 clusters"


def test_too_few_scores_of_another_kind_are_not_judged() -> None:
    scores = PairedScores(np.zeros(12), np.ones(12), ratio=False, higher_is_better=True)
    found = judge_loss(scores, 0.1, HALF)
    assert found.verdict is GateVerdict.NOT_JUDGED
    assert "at least 300 are needed" in found.reason


def test_a_metric_that_gathers_is_judged_over_its_batches() -> None:
    random = np.random.default_rng(0)
    baseline = random.uniform(0.6, 0.8, 60)
    scores = PairedScores(
        baseline - 0.05 + random.normal(0, 0.01, 60),
        baseline,
        ratio=True,
        higher_is_better=True,
        counts=np.full(60, 16),
        whole_drop=0.06,
    )
    found = judge_loss(scores, 0.02, HALF)
    assert found.verdict is GateVerdict.FAILS
    assert found.estimate == pytest.approx(0.06)
    assert found.units == "60 batches"


def test_a_candidate_that_cannot_be_scored_fails() -> None:
    assert fail_loss(0.01, HALF, "outputs hold NaN").verdict is GateVerdict.FAILS


# Latency ------------------------------------------------------------------------------------------------------------


def processes(slowdown: float, spread: float = 0.002, count: int = 6, seed: int = 0) -> list[ProcessTimes]:
    """Times of processes that differ by half from each other, and of equal engines in them by `spread`."""
    random = np.random.default_rng(seed)
    level = random.uniform(1, 1.5, count)
    noise = 1 + spread * random.standard_normal((count, 3))
    return [
        ProcessTimes(now * (1 + slowdown) * one, now * two, now * three)
        for now, (one, two, three) in zip(level, noise, strict=True)
    ]


@pytest.mark.parametrize(
    ("slowdown", "limit", "verdict"),
    [
        (0.03, 0.01, GateVerdict.FAILS),
        (0.03, 0.015, GateVerdict.FAILS),
        (0.03, 0.03, GateVerdict.NOT_JUDGED),
        (0.0, 0.03, GateVerdict.HOLDS),
        (-0.2, 0.01, GateVerdict.HOLDS),
        (0.0, 0.005, GateVerdict.NOT_JUDGED),
    ],
)
def test_latency_is_held_to_the_limit_beyond_the_tie_band(slowdown: float, limit: float, verdict: GateVerdict) -> None:
    found = judge_latency(processes(slowdown), limit, HALF)
    assert found.verdict is verdict
    assert found.details["tie_band"] == 0.01
    assert found.estimate == pytest.approx(slowdown, abs=0.005)


def test_three_percent_are_caught_with_a_band_of_one_percent_in_nine_of_ten_cases() -> None:
    found = [judge_latency(processes(0.03, seed=seed), 0.01, HALF).verdict for seed in range(200)]
    assert np.mean([verdict is GateVerdict.FAILS for verdict in found]) >= 0.9


def test_equal_engines_do_not_fail_and_slower_ones_do_not_hold() -> None:
    equal = [judge_latency(processes(0.0, 0.01, seed=seed), 0.0, LEVEL).verdict for seed in range(200)]
    assert GateVerdict.FAILS not in equal
    slower = [judge_latency(processes(0.1, 0.01, seed=seed), 0.1, LEVEL).verdict for seed in range(200)]
    assert GateVerdict.HOLDS not in slower


def test_a_busy_machine_is_no_verdict() -> None:
    found = judge_latency(processes(0.03, spread=0.1), 0.01, HALF)
    assert found.verdict is GateVerdict.NOT_JUDGED
    assert found.details["tie_band"] > 0.01


def test_copies_that_differ_always_alike_widen_the_band() -> None:
    times = [ProcessTimes(1.0, 1.0, 1.04)] * 6
    assert measure_band(times) == pytest.approx(0.04)


def test_the_band_of_a_study_counts_where_it_is_wider() -> None:
    assert judge_latency(processes(0.03), 0.01, HALF, known_band=0.025).verdict is GateVerdict.NOT_JUDGED


def test_times_that_the_clock_cannot_tell_from_nothing_are_not_judged() -> None:
    found = judge_latency([ProcessTimes(0.0, 0.001, 0.001)] * 3, 0.1, HALF)
    assert found.verdict is GateVerdict.NOT_JUDGED


def test_two_processes_are_too_few() -> None:
    with pytest.raises(ValueError, match="at least 3 processes"):
        judge_latency(processes(0.0, count=2), 0.1, HALF)


# Both ---------------------------------------------------------------------------------------------------------------


def test_one_failure_fails_the_gate_and_one_doubt_leaves_it_open() -> None:
    holds = judge_latency(processes(0.0), 0.03, HALF)
    open_one = judge_latency(processes(0.0), 0.005, HALF)
    fails = judge_latency(processes(0.2), 0.03, HALF)
    assert combine_verdicts([holds, holds]) is GateVerdict.HOLDS
    assert combine_verdicts([holds, open_one]) is GateVerdict.NOT_JUDGED
    assert combine_verdicts([open_one, fails]) is GateVerdict.FAILS


@pytest.mark.slow
def test_false_alarms_of_both_checks_stay_within_the_level() -> None:
    """Two equal engines, and no worsening allowed: the worst case for an alarm."""
    random = np.random.default_rng(3)
    alarms = 0
    for seed in range(100):
        lost, won, _ = random.multinomial(800, [0.03, 0.03, 0.94])
        loss = judge_loss(shares(*answers(800, int(lost), int(won))), 0.0, HALF)
        latency = judge_latency(processes(0.0, 0.02, seed=seed), 0.0, HALF)
        alarms += combine_verdicts([loss, latency]) is GateVerdict.FAILS
    assert alarms <= 0.05 * 100
