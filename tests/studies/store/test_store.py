"""What is written is read back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from search.errors import StudyError
from search.values import (
    Accuracy,
    FlippedSamples,
    Flips,
    Latency,
)
from studies.store.store import Store
from tests.support.study_rows import ENGINE, STUDY, assignment, finish, measured, plain


def test_an_unknown_study_names_close_ones(store: Store) -> None:
    with pytest.raises(StudyError, match="holds no study yet"):
        store.studies.load("demo")
    for name in ("resnet18-h200", "vit"):
        store.studies.create(STUDY.with_values(name=name))
    with pytest.raises(StudyError, match="Did you mean 'resnet18-h200'"):
        store.studies.load("resnet18-h20")
    with pytest.raises(StudyError, match="It holds 'resnet18-h200', 'vit'"):
        store.studies.load("zzz")


def test_exports_come_back_with_their_levels(store: Store, target: int) -> None:
    finish(store, target, 0, 1)
    levels = (4, None)
    numbers = [store.claims.begin(target, assignment(1), str(level) * 9, "w0", None, "export") for level in levels]
    store.claims.begin(target, assignment(1), "f" * 64, "w0", None, "export")  # it still runs
    for number, level in zip(numbers, levels, strict=True):
        store.claims.record(number, measured(assignment(1), engine=replace(ENGINE, optimization_level=level)), None)
    four, other = store.evaluations.exports(target)
    assert (four.id, four.assignment, four.level) == (numbers[0], assignment(1), 4)
    assert (four.raw_ms, four.baseline_ms, four.doubts, four.build_s, four.not_obeyed) == (1.5, 2.0, 1, 1.5, 0)
    assert (other.id, other.level) == (numbers[1], None)


def test_several_trials_share_an_evaluation(store: Store, target: int) -> None:
    evaluation_id = finish(store, target, 2, 0)
    store.trials.link(target, 5, evaluation_id)
    record = store.trials.load(target, 5)
    assert (record.id, record.trial, record.trials) == (evaluation_id, 2, (2, 5))
    assert list(store.evaluations.table(target).trial) == [2]


def test_an_unknown_trial_names_the_range(store: Store, target: int) -> None:
    with pytest.raises(StudyError, match="has no trial yet"):
        store.trials.load(target, 0)
    finish(store, target, 1, 0)
    finish(store, target, 4, 1)
    with pytest.raises(StudyError, match=r"no trial 9\. The study has trials 1 to 4"):
        store.trials.load(target, 9)
    with pytest.raises(StudyError, match="Trial 2 was interrupted"):
        store.trials.load(target, 2)


def test_measuring_again_adds_rounds(store: Store, target: int) -> None:
    one, two = finish(store, target, 0, 1), finish(store, target, 1, 2)
    again = Latency(1.75, 1.75, 0.25, None, np.array([1.75]), np.empty(0), (), {"enqueue": 0.25}, {"before": {}})
    assert store.measurements.add_round(target, {one: again}) == 1
    first, second = store.trials.load(target, 0).rounds
    assert (first.number, second.number, plain(second.latency)) == (0, 1, plain(again))
    assert plain(store.trials.load(target, 0).evaluation.latency) == plain(first.latency)
    assert store.measurements.add_round(target, {one: again, two: again}) == 2
    assert [round_.number for round_ in store.trials.load(target, 1).rounds] == [0, 2]
    assert list(store.evaluations.table(target).latency_ms) == [1.5, 1.5]


def test_doubts_are_those_of_the_latest_measurement_until_one_is_clean(store: Store, target: int) -> None:
    one, two = finish(store, target, 0, 1), finish(store, target, 1, 2)
    assert store.measurements.doubts([one, two], None) == dict.fromkeys([one, two], ("clocks moved",))
    steady = Latency(1.75, 1.75, 0.25, None, np.array([1.75]), np.empty(0), ())
    doubtful = replace(steady, warnings=("too few samples", "throttled"))
    store.measurements.add_round(target, {one: doubtful})
    assert store.measurements.doubts([one], None) == {one: ("too few samples", "throttled")}
    store.measurements.add_round(target, {one: steady})
    assert store.measurements.doubts([one, two], None) == {two: ("clocks moved",)}
    store.measurements.add_round(target, {one: doubtful})
    assert store.measurements.doubts([one], None) == {}
    assert store.measurements.doubts([], None) == {}


def test_a_baseline_away_from_its_usual_time_is_a_doubt_when_read(store: Store, target: int) -> None:
    clean = Latency(1.5, 1.5, 0.5, 2.0, np.array([1.5]), np.array([2.0]), ())
    one = finish(store, target, 0, 1, latency=clean)
    two = finish(store, target, 1, 2, latency=replace(clean, baseline_ms=4.4))
    assert store.measurements.doubts([one, two], 2.0) == {two: ("the baseline ran 120 % slower than usual",)}
    assert store.measurements.doubts([one, two], 4.4) == {one: ("the baseline ran 55 % faster than usual",)}


def test_a_final_score_can_be_replaced(store: Store, target: int) -> None:
    evaluation_id = finish(store, target, 0, 1)
    for loss in (0.5, 0.25):
        flips = Flips(2, 1, FlippedSamples(1, [7]), FlippedSamples(0, []), FlippedSamples(1, [9]))
        final = Accuracy("top1", 0.5, loss, 0.0, 0.5, 2, 2, np.array([1.0, 0.0]), flips=flips if loss < 0.5 else None)
        store.evaluations.set_final(evaluation_id, final)
    record = store.trials.load(target, 0)
    assert record.final is not None
    assert record.final.flips == flips
    assert plain(record.final) == plain(final)
    assert plain(record.evaluation.accuracy) == plain(measured(assignment(1)).accuracy)
