"""Evaluations that other limits stopped early and that may keep those of now: scored to the end, as no new ones.

A limit that is loosened brings back what was left half scored under it, and nothing else would: an assignment that was
evaluated is never evaluated again, and one that was not scored on all samples is on no front.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evaluators.process.job import Limits as EarlyLimits
from evaluators.stopwatch import time_spent
from search.values import Stage
from studies.artifacts import leftovers
from studies.judging.sentences.descriptions import outcome_text
from studies.judging.standing import Standing, standing
from studies.run import upkeep
from studies.run_clock import count_parts
from studies.store.records import RUNNING, EvaluationRecord, LostEvaluationError
from studies.trials.outcomes import asked_unless_built, digest_in, outcome

if TYPE_CHECKING:
    import optuna

    from search.values import Assignment, Evaluation
    from studies.run.work import Work
    from studies.trials.proposals import Proposals

_MOST_ASKED = 3  # another worker may have asked for the trial by now, and then none would ever be the one


class Rescoring:
    """What a worker does before it proposes anything. Each evaluation is one worker's, which holds a task for it.

    A worker that is lost over one leaves it as it was, and its task to whoever comes next.
    """

    def __init__(self, work: Work, proposals: Proposals) -> None:
        self._work = work
        self._proposals = proposals

    def run(self, now: Standing) -> Standing:
        """Score all that the limits may let stand, or wait for the workers that do; where the study stands then.

        None is begun that would not end within the time limit.

        Raises:
            EvaluatorError: evaluator processes die over it again and again.
        """
        work, said = self._work, False
        while (numbers := _numbers(now)) and work.pace.allows_evaluation(now):
            if not said:
                many = f"{len(numbers)} evaluations" if len(numbers) > 1 else "one evaluation"
                work.progress.note(f"scoring {many} to the end that earlier limits stopped")
                said = True
            work.crew.state("searching")
            if not any(self._scored(number) for number in numbers):
                work.crew.wait("waiting for other workers: scoring to the end")
            now = self._standing()
        return now

    def _scored(self, number: int) -> bool:
        """Score one unless another worker is at it; whether it is done with."""
        with self._work.crew.try_hold(f"scoring {number}") as mine:
            if not mine or number not in _numbers(self._standing()):  # another worker may just have done it
                return mine
            try:
                record = self._work.ledger.store.evaluations.load(number)
            except KeyError:  # it was deleted just now
                return True
            self._score(record)
        return True

    def _standing(self) -> Standing:
        return standing(
            self._work.ledger.store, self._work.ledger.study, self._work.ledger.target, self._work.ledger.limits
        )

    def _score(self, record: EvaluationRecord) -> None:
        """Evaluate it anew: where its engine was not kept another build need not be as fast, nor run as was asked."""
        work, assignment = self._work, record.evaluation.assignment
        trial = -1 if record.trial is None else record.trial
        with time_spent("evaluator"):
            evaluation = work.bench.keeper.evaluate(
                assignment,
                work.bench.folder / f"{record.id}.engine",
                EarlyLimits(reference_ms=work.ledger.store.measurements.reference_ms(work.ledger.target.id)),
                lambda event, value: work.progress.stage(trial, Stage(value).value) if event == "stage" else None,
            )
        count_parts(evaluation, uniform=bool(record.role))
        # First, so that Optuna is told of it some day when this process is killed in between.
        self._proposals.enqueue(record.asked or assignment)
        if not self._replaced(record, evaluation):
            return
        found = work.ledger.store.evaluations.load(record.id)
        work.progress.note(f"trial {trial}, scored to the end: {outcome_text(found, self._standing())}")
        self._tell(found)

    def _replaced(self, record: EvaluationRecord, evaluation: Evaluation) -> bool:
        """Store the result; False where another worker, which took this one for lost, was faster."""
        work = self._work
        try:
            with leftovers.kept_engine(
                work.ledger.store, work.ledger.artifacts, upkeep.engine_of(work, evaluation)
            ) as artifact:
                work.ledger.store.claims.replace_stopped(record.id, evaluation, artifact, worker=work.crew.name)
        except LostEvaluationError:
            work.progress.note(f"evaluation {record.id}: another worker has scored it to the end meanwhile")
            return False
        if record.artifact:
            leftovers.drop(work.ledger.store, work.ledger.artifacts, [record.artifact])
        return True

    def _tell(self, record: EvaluationRecord) -> None:
        """Let a further trial tell Optuna of it, the one enqueued for it: one that was told is never changed.

        Those that a killed worker left before it in line are told first, and what is no repetition is put back.
        """
        for _ in range(_MOST_ASKED):
            trial, asked = self._proposals.ask()
            mine = asked == (record.asked or record.evaluation.assignment)
            known = (
                record
                if mine
                else self._work.ledger.store.evaluations.find(self._work.ledger.target.id, digest_in(self._work, asked))
            )
            if known is None or known.status == RUNNING:
                self._proposals.put_back(trial)
                return
            self._answer(trial, asked, known)
            if mine:
                return

    def _answer(self, trial: optuna.Trial, asked: Assignment, known: EvaluationRecord) -> None:
        target = self._work.ledger.target.id
        try:
            self._work.ledger.store.trials.link(target, trial.number, known.id, asked=asked_unless_built(asked, known))
        except LostEvaluationError:  # it is gone, or another worker closed the trial
            return
        self._proposals.tell(trial, outcome(self._work, known))


def _numbers(now: Standing) -> list[int]:
    return [int(now.table.id[row]) for row in np.flatnonzero(now.regained)]
