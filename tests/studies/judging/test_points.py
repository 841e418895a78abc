"""One evaluation as an object with names: what was measured, what the limits and the final split say of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from studies.judging.point_lists import best_point, front_points, pick_points, table_points
from studies.judging.rules.verdicts import Verdict
from studies.judging.standing import Standing, standing
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
    return standing(store, study, store.targets.of_study(study.id)[0], limits)


def test_a_point_names_what_was_measured_and_what_the_limits_say(store: Store) -> None:
    point = judged(store).point(1)
    assert (point.trial, point.latency_ms, point.loss, point.speedup) == (1, 2.0, 0.02, 2.0)
    assert (point.feasible, point.on_front, point.picks) == (True, True, ("best", "fast", "knee"))
    assert (point.role, point.baseline, point.unrelated) == ("", "", False)
    assert (point.final.verdict, point.final.scored, math.isnan(point.final.loss)) == (Verdict.UNCONFIRMED, False, True)


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
