"""Completing evaluations that earlier limits stopped early and that may keep the current limits.

A limit that is loosened brings back what was left half scored under it, and nothing else would: an assignment that was
evaluated is never evaluated again, and one that was not scored on all samples is on no front.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from search.values import Evaluation
from studies.judging.sentences.evaluations import outcome_text
from studies.judging.standing import Standing
from studies.run.claims.claim import Claim
from studies.run.engines import engine_to_keep
from studies.run.work import Work
from studies.store.records import OK, RUNNING, LostEvaluationError, StoredEvaluation
from studies.trials.open_trials import OpenTrials
from studies.trials.proposals import Proposals

_MOST_ASKED = 3  # another worker may have asked for the trial by now, and then none would ever be the one


@dataclass
class _Held:
    """An evaluation that is being completed, and the task that keeps other workers from it."""

    record: StoredEvaluation
    task: ExitStack = field(default_factory=ExitStack)


class RegainedClaims:
    """Claims of evaluations to complete. Each is one worker's, which holds a task for it.

    A worker that is lost over one leaves its row as it was, and the task to whoever comes next.
    """

    def __init__(self, work: Work, proposals: Proposals, trials: OpenTrials) -> None:
        self._work = work
        self._proposals = proposals
        self._trials = trials
        self._claimed: dict[int, _Held] = {}
        self._told = False

    def claim_next(self, now: Standing, *, searching: bool) -> Claim | None:
        """None is begun that would not end within the time limit."""
        numbers = self._left(now) if searching else []
        count = len(numbers)
        if count and not self._told:
            many, them = (f"{count} evaluations", "them") if count > 1 else ("one evaluation", "it")
            self._work.events.note(f"scoring {many} on the rest of the samples: earlier limits stopped {them} early")
        self._told = bool(count or self._claimed)
        for number in numbers:
            held = self._hold(number)
            if held is not None:
                self._claimed[number] = held
                self._work.crew.state("searching")
                return self._claim(held.record)
        return None

    def _left(self, now: Standing) -> list[int]:
        if not self._work.pace.allows_evaluation(now):
            return []
        numbers = [int(now.table.id[row]) for row in np.flatnonzero(now.judgement.regainable)]
        return [number for number in numbers if number not in self._claimed]

    def _hold(self, number: int) -> _Held | None:
        """None where another worker evaluates it, or has just completed it."""
        with ExitStack() as task:
            if not task.enter_context(self._work.crew.try_hold(f"scoring {number}")):
                return None
            try:
                record = self._work.ledger.store.evaluations.load(number)
            except KeyError:  # it was deleted just now
                return None
            accuracy = record.evaluation.accuracy
            if record.status != OK or accuracy is None or accuracy.complete:
                return None
            return _Held(record, task.pop_all())

    def _claim(self, record: StoredEvaluation) -> Claim:
        """It is evaluated again: where its engine was not kept another build need not be as fast, nor run as asked."""
        trial = -1 if record.trial is None else record.trial
        since_s = self._work.pace.passed_s
        return Claim(record.id, record.evaluation.assignment, trial, since_s, bool(record.role), stoppable=False)

    def settle(self, claim: Claim, evaluation: Evaluation) -> None:
        held = self._claimed[claim.number]
        with held.task:
            self._complete(held.record, evaluation)
        del self._claimed[claim.number]

    def _complete(self, stopped: StoredEvaluation, evaluation: Evaluation) -> None:
        # First, so that Optuna is told of it some day when this process is killed in between.
        self._proposals.enqueue(stopped.evaluation.assignment)
        ledger, worker = self._work.ledger, self._work.crew.name
        engine = engine_to_keep(evaluation, self._work.problem.config.keep_engines)
        try:
            record = ledger.complete(stopped, evaluation, engine, worker=worker)
        except LostEvaluationError:
            note = f"evaluation {stopped.id}: meanwhile another worker has scored it on all samples"
            self._work.events.note(note)
            return
        trial = -1 if stopped.trial is None else stopped.trial
        text = outcome_text(record, ledger.read_standing().metric)
        self._work.events.note(f"trial {trial}, now scored on all samples: {text}")
        self._tell_again(record)

    def _tell_again(self, record: StoredEvaluation) -> None:
        """Tell Optuna the result in the trial that was enqueued for it, because a finished trial cannot be changed.

        Those that a killed worker left before it in line are told first, and what is no repetition is put back.
        """
        for _ in range(_MOST_ASKED):
            trial, assignment = self._proposals.ask()
            mine = assignment == record.evaluation.assignment
            known = record if mine else self._work.ledger.find(assignment)
            if known is None or known.status == RUNNING:
                self._proposals.put_back(trial)
                return
            self._trials.answer(trial, known)
            if mine:
                return

    def wait(self, now: Standing) -> bool:
        if not self._left(now):
            return False
        self._work.crew.wait("waiting for other workers that score stopped evaluations on all samples")
        return True

    def give_back(self) -> None:
        """Their rows are as they were; only the tasks are let go of."""
        for held in self._claimed.values():
            held.task.close()
        self._claimed.clear()
