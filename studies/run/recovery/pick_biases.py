"""Correcting the biases of the picks, each for its own mix, before they are confirmed.

The corrections of a study are fitted to all INT8. In a mix the groups in float feed other values to those in INT8, so
the picks, and they alone, are corrected again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, partial

from evaluators.process.job import StopLimits as EarlyLimits
from evaluators.process.results import Recovered
from evaluators.stopwatch import time_spent
from search.errors import EvaluatorError
from search.values import (
    Accuracy,
    Answer,
    Assignment,
    Correction,
    Evaluation,
    LossEstimate,
    MixBias,
    StepRecord,
)
from studies.artifacts.kept_ranges import read_mixes
from studies.judging.findings.rescue_table import mix_bias_text
from studies.judging.standing import Standing
from studies.options.limits import LATENCY_MS, LOSS
from studies.options.quantities import format_ms
from studies.run.engines import engine_to_keep
from studies.run.finalists import finalist_rows, trial_text
from studies.run.session.calibration import seconds_for
from studies.run.session.setup import adopt_ranges
from studies.run.work import Work
from studies.store.records import LostEvaluationError, StoredEvaluation

BIAS = "bias"  # the step of this name corrects all INT8
_LEAST_S = 1.0  # that correcting one mix is given


def rows_to_correct(now: Standing) -> list[int]:
    """Rows of the picks whose biases may be worth correcting.

    Where the search samples cannot tell a loss from none, and its whole interval is allowed, nothing is won back. On an
    H200 corrections took 90 to 120 s of two such searches of six minutes.
    """
    allowed, table = now.limits.most(LOSS), now.table
    return [
        row
        for row in now.picks.rows()
        if allowed is None or table.loss_low[row] > 0 or not table.loss_high[row] <= allowed
    ]


class PickBiases:
    """Corrects each pick once, and remembers in the database what came of it."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._told_left_out = False

    def note_correction_time(self) -> None:
        """Let the search know how long correcting a pick takes, for what it says of its end."""
        if self._took_s is not None:
            self._work.pace.pick_s = self._took_s

    def adopt_stored(self) -> None:
        """Let the evaluator process know what another worker corrected since this one joined."""
        if self._took_s is not None and read_mixes(self._work.ledger.store, self._work.ledger.target.id):
            self._adopt({})

    @time_spent("finalists")
    def correct(self, now: Standing) -> Standing:
        """Correct the picks that were not tried yet; where the target stands then.

        A pick gets an engine with its own corrections where these bring its outputs nearer to those of FP32 on held-out
        calibration samples by more than chance, its loss on the search samples does not grow and it is as fast. All
        else stays.

        Raises:
            EvaluatorError: the evaluator process dies again and again over an engine.
        """
        if self._took_s is None:
            return now
        while waiting := self._find_untried(now):
            seconds = self._seconds(now, len(waiting), self._took_s)
            if seconds is None:
                self._tell_left_out()
                return now
            self._correct(now, waiting[0], seconds)
            now = self._work.ledger.read_standing()
        return now

    @cached_property
    def _took_s(self) -> float | None:
        """Seconds that correcting all INT8 took, whether that was kept or not; None if it was not tried."""
        record = self._work.ledger.target.recovery
        tried = [step.seconds for step in record.steps if _was_tried(step)] if record is not None else []
        return sum(tried) if tried else None

    def _find_untried(self, now: Standing) -> list[int]:
        """Rows of the picks that run some of the groups in INT8 and were not tried yet, the best first."""
        ledger = self._work.ledger
        tried = {record.id for record in ledger.store.evaluations.mix_biases(ledger.target.id)}
        rows = [row for row in rows_to_correct(now) if int(now.table.id[row]) not in tried]
        assignments = ledger.store.evaluations.assignments(ledger.target.id, [int(now.table.id[row]) for row in rows])
        return [row for row in rows if self._is_mix(assignments[int(now.table.id[row])])]

    def _is_mix(self, assignment: Assignment) -> bool:
        """Whether groups are in INT8, and others are not that could be: else all INT8 is what was corrected."""
        choices = self._work.problem.space.choices
        offered = {g for g, some in choices.items() for c in some if c.precision.recovered and c.offered}
        narrow = {group for group, precision in assignment.items() if precision.recovered}
        return bool(narrow) and narrow != offered

    def _seconds(self, now: Standing, count: int, took_s: float) -> float | None:
        """For one of so many picks, which share what recovery may take; None if the time limit leaves too few."""
        pace = self._work.pace
        spare_s = pace.left_s - pace.evaluation_s(now) - pace.finalists_s(now, len(finalist_rows(now)))
        if spare_s < max(_LEAST_S, took_s):
            return None
        return min(spare_s, max(_LEAST_S, seconds_for(self._work.problem.config) / count))

    def _tell_left_out(self) -> None:
        if self._told_left_out:
            return
        self._told_left_out = True
        self._work.events.note(
            "the time limit leaves no time to correct biases for the recommended mixes; to resume the study corrects "
            "them"
        )

    def _correct(self, now: Standing, row: int, seconds: float) -> None:
        record = self._work.ledger.store.evaluations.load(int(now.table.id[row]))
        name = trial_text(now, row)
        self._work.events.detail(f"{name}: correcting biases for its mix")
        correction = self._fit(name, record.evaluation.assignment, seconds)
        step = correction if isinstance(correction, StepRecord) else correction.record.steps[0]
        before = _loss_of(record.evaluation.accuracy)
        try:
            if isinstance(correction, StepRecord) or not step.kept:
                bias = MixBias(step, False, step.reason, before)
                self._work.ledger.store.claims.set_mix_bias(record.id, bias)
            else:
                bias = self._try_engine(record, step, correction.ranges.recovery.means, self._most_ms(now, row))
        except LostEvaluationError:
            self._adopt({})
            self._work.events.note(f"{name}: meanwhile another worker has corrected its biases")
        else:
            self._work.events.detail(f"{name}: {mix_bias_text(bias, now.metric)}")

    def _fit(self, name: str, assignment: Assignment, seconds: float) -> Recovered | StepRecord:
        """The corrections of a mix, or the record of a step that failed: a pick is one without them too."""
        work, doing = self._work, f"correcting biases for the mix of {name}"
        line = work.bench.keeper.ask(doing, partial(work.events.step, "correcting biases"))
        try:
            return line.calibrations.correct_mix(assignment, work.problem.config.calibration, seconds)
        except EvaluatorError as error:
            return StepRecord(BIAS, exact=False, kept=False, reason=f"it failed: {error}")

    def _try_engine(
        self, record: StoredEvaluation, step: StepRecord, means: Mapping[str, Correction], most_ms: float
    ) -> MixBias:
        """Build and evaluate a pick with corrections of its own, and store it in its place where it is no worse."""
        work, ledger, assignment = self._work, self._work.ledger, record.evaluation.assignment
        before = _loss_of(record.evaluation.accuracy)
        self._adopt({assignment.digest: means})
        out = work.bench.folder / f"{record.id}.corrected.engine"
        limits = EarlyLimits(reference_ms=ledger.reference_ms())
        evaluation = work.bench.keeper.evaluate(assignment, out, limits)
        after = None if evaluation.accuracy is None else _loss_of(evaluation.accuracy)
        if reason := find_harm(record.evaluation, evaluation, most_ms):
            out.unlink(missing_ok=True)
            self._adopt({})
            bias = MixBias(step, False, reason, before, after)
            ledger.store.claims.set_mix_bias(record.id, bias)
            return bias
        bias = MixBias(step, True, step.reason, before, after)
        engine = engine_to_keep(evaluation, work.problem.config.keep_engines)
        ledger.correct(record, evaluation, engine, bias, means, worker=work.crew.name)
        return bias

    def _most_ms(self, now: Standing, row: int) -> float:
        """The latency of a pick plus its tie band, but no more than a latency budget that the pick keeps."""
        ms, budget_ms = float(now.measures.latency_ms[row]), now.limits.most(LATENCY_MS)
        most_ms = ms * (1 + now.target.band)
        return min(most_ms, budget_ms) if budget_ms is not None and ms <= budget_ms else most_ms

    def _adopt(self, added: Mapping[str, Mapping[str, Correction]]) -> None:
        """Let the evaluator process build mixes with the corrections that are stored, and these."""
        bench, ledger = self._work.bench, self._work.ledger
        mixes = {**read_mixes(ledger.store, ledger.target.id), **added}
        adopt_ranges(bench.keeper, bench.folder, ledger.ranges().with_mixes(mixes))


def _was_tried(step: StepRecord) -> bool:
    """Whether it is the correction of all INT8, and what it proposed was measured."""
    return step.name == BIAS and step.error_after is not None


def _loss_of(accuracy: Accuracy | None) -> LossEstimate:
    assert accuracy is not None, "a pick was scored"
    return LossEstimate(accuracy.loss, accuracy.loss_low, accuracy.loss_high, accuracy.samples, accuracy.value)


def find_harm(before: Evaluation, after: Evaluation, most_ms: float) -> str:
    """Why a corrected engine does not take the place of the one before, in words; empty if it does.

    Args:
        most_ms: that it may take.
    """
    if after.failure is not None:
        return f"its engine failed, {after.failure.stage.value}: {after.failure.message}"
    if _count_disobeying(after) > _count_disobeying(before):
        return "more groups of its engine do not run in the requested precision"
    if after.latency is not None and after.latency.value_ms > most_ms:
        return f"its engine takes {format_ms(after.latency.value_ms)}, where {format_ms(most_ms)} would be as fast"
    old, new = _loss_of(before.accuracy).loss, _loss_of(after.accuracy).loss
    return "" if math.isfinite(new) and new <= old else "its engine's loss on the same search samples is larger"


def _count_disobeying(evaluation: Evaluation) -> int:
    return sum(row.answer is Answer.NOT_OBEYED for row in evaluation.audit)
