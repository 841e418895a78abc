"""One evaluation as an object with names: what was measured, what the limits and the final split say of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluators.measure.mean_bounds import sample_losses
from search.values import BOUND_TRIES, Accuracy, bound_level
from studies.judging.rules.verdicts import FinalBounds, Verdict, quantile
from studies.judging.sentences.final_split import final_text
from studies.judging.sentences.picks import faster_text
from studies.judging.standing import Standing, best_point, front_points, pick_points, read_standing, table_points
from studies.options.limits import Limits
from studies.store.store import Store
from tests.support.study_rows import add, evaluated, make_study, scored

POINTS = [(4.0, 0.0), (2.0, 0.02), (1.0, 0.2)]  # FP32, a mix that is good enough, and one that is not
LIMIT = Limits(max_drop=0.05)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        target = make_study(store)
        for trial, (latency_ms, loss) in enumerate(POINTS):
            codes = tuple(int(bit) for bit in f"{trial:04b}")
            add(store, target, trial, evaluated(codes, latency_ms, loss, 0.001), "baseline:fp32" if not trial else "")
        yield store


def judged(store: Store, limits: Limits = LIMIT) -> Standing:
    study = store.studies.load("s")
    return read_standing(store, study, store.targets.of_study(study.id)[0], limits)


def test_a_point_names_what_was_measured_and_what_the_limits_say(store: Store) -> None:
    point = judged(store).point(1)
    assert (point.trial, point.latency_ms, point.loss, point.speedup) == (1, 2.0, 0.02, 2.0)
    assert (point.feasible, point.on_front, point.picks) == (True, True, ("best", "fast", "knee"))
    assert (point.role, point.baseline, point.is_unrelated) == ("", "", False)
    assert (point.final.verdict, point.final.scored, point.final.loss) == (Verdict.UNCONFIRMED, False, None)


def test_fp32_loses_nothing_against_itself_on_samples_that_nobody_scored(store: Store) -> None:
    assert judged(store).point(0).final.verdict is Verdict.SURELY
    assert judged(store, Limits(latency_budget_ms=2.5)).point(0).final.verdict is Verdict.UNCONFIRMED, "it is too slow"
    value = judged(store, Limits(accuracy_limit=0.5))
    assert value.point(0).final.verdict is Verdict.UNCONFIRMED
    value.study.metric = {**value.study.metric, "relative": True}
    assert replace(value).point(0).final.verdict is Verdict.SURELY, (
        "of outputs compared with its own it has the best value"
    )


def test_lists_of_points_are_the_picks_the_front_and_what_a_table_names(store: Store) -> None:
    now = judged(store)
    assert {name: point.trial for name, point in pick_points(now).items()} == {
        "best": 1,
        "accurate": 0,
        "fast": 1,
        "knee": 1,
    }
    assert [point.trial for point in front_points(now)] == [1, 0], "fastest first"
    assert [point.baseline for point in table_points(now)] == ["", "fp32"]
    assert best_point(judged(store, Limits(latency_budget_ms=0.5))) is None


def test_a_doubtful_latency_keeps_no_budget_where_another_keeps_it_surely(store: Store) -> None:
    """At a tie band of 10 %, 2 ms may be 2.2 ms."""
    target = store.targets.of_study(store.studies.load("s").id)[0].id
    disturbed = evaluated((0, 0, 0, 2), 2.0, 0.01, 0.001)
    assert disturbed.latency is not None
    add(store, target, 3, replace(disturbed, latency=replace(disturbed.latency, warnings=("unsteady",))))
    store.targets.settle(target, latency_band=0.1)
    budgets = {budget_ms: judged(store, Limits(latency_budget_ms=budget_ms)).picks for budget_ms in (2.05, 2.1, 2.3)}
    assert {budget_ms: (picks.best, picks.accurate) for budget_ms, picks in budgets.items()} == {
        2.05: (1, 1),
        2.1: (1, 1),
        2.3: (3, 3),
    }
    alone = judged(store, Limits(latency_budget_ms=2.1, max_drop=0.015)).picks
    assert alone.best == 3, "no other keeps the limits"


def test_other_limits_judge_the_same_evaluations_anew(store: Store) -> None:
    now = judged(store)
    assert not now.point(2).feasible
    assert replace(now, limits=Limits()).point(2).feasible
    assert not now.point(2).feasible, "the first judgement stays"


def test_a_score_on_the_final_split_is_part_of_the_point(store: Store) -> None:
    store.evaluations.set_final(2, scored(0.04, 0.01))
    final = judged(store).point(1).final
    assert (final.scored, final.verdict, final.loss, final.tries) == (True, Verdict.SURELY, 0.04, 1)
    assert final.low == pytest.approx(0.03)
    assert final.high == pytest.approx(0.05)
    assert final.bound == pytest.approx(0.04 + 0.01 * 1.645 / 1.96, abs=1e-5)


def shares(lost: int, samples: int) -> Accuracy:
    """Top-1 on the final split, of which so many samples are lost and none is won back."""
    levels = [bound_level(tries) for tries in BOUND_TRIES]
    bounds = sample_losses(np.repeat([1.0, 0.0], [lost, samples - lost]), 1.0).uppers(levels)
    loss = lost / samples
    ends = loss - 0.01, loss + 0.01
    return Accuracy("top1", 0.9 - loss, loss, *ends, samples, samples, np.ones(1), loss_bounds=tuple(bounds))


@pytest.mark.parametrize(
    ("lost", "samples", "verdict", "told"),
    [
        (0, 180, Verdict.HOLDS, "0.0 %, ≤ 1.7 % (likely)"),
        (0, 298, Verdict.HOLDS, "0.0 %, ≤ 1.1 % (likely)"),
        (0, 299, Verdict.SURELY, "0.0 %, ≤ 1.0 % (kept)"),
        (3, 1000, Verdict.SURELY, "0.3 %, ≤ 0.8 % (kept)"),
        (15, 1000, Verdict.FAILS, "1.5 %, ≤ 2.4 % (missed)"),
    ],
)
def test_the_bound_that_is_judged_is_the_one_that_is_told(
    store: Store, lost: int, samples: int, verdict: Verdict, told: str
) -> None:
    store.evaluations.set_final(2, shares(lost, samples))
    now = judged(store, Limits(max_drop=0.01))
    assert now.point(1).final.verdict is verdict
    assert final_text(now, now.point(1)) == told


def test_without_a_bound_the_best_verdict_is_likely(store: Store) -> None:
    store.evaluations.set_final(2, Accuracy("top1", 0.9, 0.001, 0.0, 0.002, 60, 60, np.ones(60)))
    now = judged(store)
    assert now.point(1).final.verdict is Verdict.HOLDS
    assert final_text(now, now.point(1)) == "0.1 %, too few samples for a bound (likely)"
    assert now.point(1).final.bound is None


def test_fp32_loses_nothing_against_itself_whatever_the_samples(store: Store) -> None:
    store.evaluations.set_final(1, shares(0, 20))
    now = judged(store)
    assert (now.point(0).final.verdict, now.point(0).final.bound) == (Verdict.SURELY, 0.0)


def test_the_bound_allows_for_all_that_were_looked_at() -> None:
    bounds = FinalBounds([0.01 + 0.001 * place for place in range(len(BOUND_TRIES))], [])
    limits = Limits(max_drop=0.0125)
    margin = bounds.margin(limits, higher_is_better=True)
    assert quantile(3) <= margin < quantile(4)
    assert bounds.at(3)[0] == 0.012
    assert bounds.at(7)[0] == bounds.at(8)[0] == 0.016, "that of the next larger number"
    assert math.isnan(bounds.at(61)[0])
    assert FinalBounds().margin(limits, higher_is_better=True) == 0
    assert FinalBounds().margin(Limits(), higher_is_better=True) == math.inf


def test_a_bound_of_the_metric_itself_judges_a_limit_of_it(store: Store) -> None:
    store.evaluations.set_final(2, scored(0.04, 0.01))
    now = judged(store, Limits(accuracy_limit=0.855))
    assert now.point(1).final.verdict is Verdict.HOLDS
    assert final_text(now, now.point(1)) == "4.0 %, ≤ 4.9 %, top1 ≥ 85.1 % (likely)"
    assert judged(store, Limits(accuracy_limit=0.85)).point(1).final.verdict is Verdict.SURELY


def test_the_best_says_why_it_is_not_a_faster_one(store: Store) -> None:
    now = judged(store)
    assert faster_text(now) == ""
    narrow = judged(store, Limits(max_drop=0.01))
    assert narrow.picks.best == 0
    assert faster_text(narrow) == ""
    store.evaluations.set_final(2, shares(30, 1000))
    failed = judged(store, Limits(max_drop=0.025))
    assert failed.picks.best == 0
    told = "trial 1 is faster than the best (2.00 ms), but misses the limits on the final samples: it loses 3.0 %"
    assert faster_text(failed).startswith(told)
