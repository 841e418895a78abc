"""Which recovery steps are kept, on a real network whose channels are uneven."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluators.data import Batch
from evaluators.recovery.auto import TOO_SLOW
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.recover import Budget
from evaluators.recovery.step import Proposal, RecoveryStep
from search.errors import EvaluatorError
from search.space.rules import KeepRule
from search.values import NOT_TRIED, Precision, Ranges, RecoveryRecord, TensorRange
from tests.support.extensions.toy_step import Balance, Break
from tests.support.recovery_case import SAMPLES, Case


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"))


class Widen(RecoveryStep):
    """Makes every range four times as wide: a worse INT8."""

    name = "widen"
    summary = "wide ranges"

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        wide = {name: TensorRange(4 * r.low, 4 * r.high) for name, r in ranges.tensors.items()}
        return Proposal(replace(ranges, tensors=wide))


class Idle(RecoveryStep):
    """Has nothing to do."""

    name = "idle"
    summary = "nothing"

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        return None


class Spy(RecoveryStep):
    """Remembers the samples that it is shown."""

    name = "spy"
    summary = "samples"

    def __init__(self) -> None:
        self.fitting: list[Batch] = []
        self.held_out: list[Batch] = []

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        self.fitting, self.held_out = list(context.fitting()), list(context.held_out())
        return None


class Hurried(RecoveryStep):
    """Ends before it found anything."""

    name = "hurried"
    summary = "nothing yet"

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        return Proposal(ranges, cut="it ran out of time after 0 of 2 layers")


def test_a_step_whose_time_ran_out_does_not_say_that_there_was_nothing_to_do(case: Case) -> None:
    _, record = case.recover([Hurried()])
    (step,) = record.steps
    assert not step.kept
    assert step.reason == "it ran out of time after 0 of 2 layers"
    assert record.cut == (step,)
    assert step.error_after is None


class Entitled(RecoveryStep):
    """Remembers how much time it has."""

    name = "entitled"
    summary = "time"
    least_share = 0.5

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        self.left_s = context.seconds_left()
        return None


class Greedy(RecoveryStep):
    """Takes all the time that there is."""

    name = "greedy"
    summary = "time"

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        while context.seconds_left() > 0:
            pass
        return None


def test_a_step_has_its_share_of_the_time_whatever_those_before_it_took(case: Case) -> None:
    entitled = Entitled()
    _, record = case.recover([Greedy(), entitled, Balance()], seconds=3.0)
    assert 0 < entitled.left_s < 1.5
    _, told, last = record.steps
    assert "there is nothing for it to do" in told.reason
    assert last.cut == "it was not tried"


def test_a_step_that_helps_is_kept_with_what_it_did(case: Case) -> None:
    ranges, record = case.recover([Widen(), Balance(), Idle()])
    assert [(step.name, step.kept) for step in record.steps] == [("widen", False), ("balance", True), ("idle", False)]
    _, balance, idle = record.steps
    assert set(ranges.recovery.factors) == {"first.w", "first.b", "second.w"}
    assert balance.error_after < balance.error_before / 4
    assert balance.loss_before is not None
    assert balance.loss_after.loss <= balance.loss_before.loss
    assert balance.notes[0].endswith("channels scaled")
    assert "nothing for it to do" in idle.reason
    assert record.steps[0].reason.startswith("the error rises to ")
    assert record.plain.samples == balance.final.samples == SAMPLES
    assert balance.final.loss < record.plain.loss


def test_exact_steps_alone_are_calibrated_on_all_samples(case: Case) -> None:
    ranges, _ = case.recover([Balance()])
    assert ranges.samples == case.ranges.samples
    plain, record = case.recover([Widen()])
    assert plain == case.ranges
    assert not record.kept_steps


def test_a_step_that_changes_the_float_model_is_refused(case: Case) -> None:
    _, record = case.recover([Break(), Balance()])
    assert "does not give the outputs of the model" in record.steps[0].reason
    assert [step.name for step in record.kept_steps] == ["balance"]
    with pytest.raises(EvaluatorError, match="recovering with --recover break: its float model"):
        case.recover([Break()], "break")


def test_steps_that_are_named_are_kept_whatever_they_do(case: Case) -> None:
    ranges, record = case.recover([Widen()], "widen")
    assert record.steps[0].kept
    assert record.steps[0].reason.startswith("as asked for; the error rises to ")
    assert ranges != case.ranges


def test_samples_that_decide_are_none_that_steps_fit_to(case: Case) -> None:
    spy = Spy()
    case.recover([spy])
    fitted, held = (
        {batch.inputs["image"][row].tobytes() for batch in taken for row in range(batch.count)}
        for taken in (spy.fitting, spy.held_out)
    )
    assert (len(fitted), len(held)) == (48, 24)
    assert not fitted & held


def test_a_network_that_needs_nothing_is_left_alone(tmp_path: Path) -> None:
    case = Case(tmp_path, uneven=False)
    ranges, record = case.recover([Balance(), Widen()])
    assert not {step.name for step in record.kept_steps} - {"balance"}
    assert record.steps[1].kept is False
    if not record.kept_steps:
        assert ranges == case.ranges


def test_garbage_among_the_samples_decides_nothing(tmp_path: Path) -> None:
    case = Case(tmp_path, garbage=SAMPLES // 10)
    _, record = case.recover([Widen(), Balance()])
    assert [step.name for step in record.kept_steps] == ["balance"]


def test_without_time_nothing_is_tried_and_few_samples_are_scored(case: Case) -> None:
    ranges, record = case.recover([Balance()], seconds=0.0)
    assert "the time for recovery was over" in record.steps[0].reason
    assert record.cut == record.steps
    assert {step.cut for step in record.steps} == {NOT_TRIED}
    assert ranges == case.ranges
    assert record.plain.samples < SAMPLES


def test_a_step_that_runs_a_slow_model_several_times_leaves_its_time_to_others(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "idle_s", lambda self, processor_s: 10.0)
    _, record = case.recover([Balance(), Widen()], seconds=60.0)
    assert "the model takes 10 s over the samples" in record.steps[0].reason
    assert "takes 0.0123 s over" in TOO_SLOW.format(0.01234)
    assert record.cut == record.steps[:1]
    assert record.steps[1].error_after is not None


def test_a_metric_that_needs_labels_leaves_errors_to_decide(tmp_path: Path) -> None:
    _, record = Case(tmp_path, metric="top1").recover([Balance()])
    assert record.steps[0].kept
    assert record.steps[0].loss_before is None
    assert "losses on calibration samples are not known" in record.notes[0]


def test_the_record_comes_back_from_json(case: Case) -> None:
    _, record = case.recover([Widen(), Balance()])
    assert RecoveryRecord.from_json(record.to_json()) == record


class Shown(RecoveryStep):
    """Remembers which groups INT8 is tried in."""

    name = "shown"
    summary = "groups"

    def __init__(self) -> None:
        self.lowered: set[str] = set()

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        self.lowered = {group for group, precision in context.assignment.items() if precision is Precision.INT8}
        return None


def test_groups_that_the_user_keeps_in_float_stay_there_when_steps_are_judged(case: Case) -> None:
    shown, ids = Shown(), {group.anchors[0]: group.id for group in case.subject.model.groups}
    case.recover([shown], keep=[KeepRule.parse("first=fp32")])
    assert shown.lowered == set(ids.values()) - {ids["first"]}
    ranges, record = case.recover([shown], keep=[KeepRule.parse(".*=fp32")])
    assert ranges == case.ranges
    assert "because of the target or of --keep" in record.notes[0]


def test_steps_see_samples_in_random_order(case: Case) -> None:
    """Data are often sorted by class, and steps look at as many of the first samples as they have time for."""
    indices = np.arange(SAMPLES)
    divided = case.subject.samples.divide()
    assert np.sort(np.concatenate(divided)).tolist() == indices.tolist()
    for some in divided:
        assert 0.3 < np.mean(np.diff(some) > 0) < 0.7
    again = case.subject.samples.divide()
    assert [some.tolist() for some in again] == [some.tolist() for some in divided]


class Stumble(RecoveryStep):
    """Has an error of its own."""

    name = "stumble"
    summary = "an error"

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        raise IndexError("beyond the end")


def test_a_step_with_an_error_of_its_own_ends_alone(case: Case) -> None:
    _, record = case.recover([Stumble(), Balance()])
    assert [step.kept for step in record.steps] == [False, True]
    assert record.steps[0].reason == "it failed: IndexError: beyond the end"
    with pytest.raises(EvaluatorError, match="recovering with --recover stumble: IndexError: beyond the end"):
        case.recover([Stumble()], "stumble")
