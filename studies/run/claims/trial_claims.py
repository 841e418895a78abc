"""Claims for Optuna's trials: evaluations of lost workers, and new proposals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.values import BASELINE, Assignment, Evaluation, Failure, FailureKind, Stage
from studies.judging.sentences.evaluations import death_text
from studies.judging.standing import Standing
from studies.run.claims.claim import Claim, Refusals
from studies.run.engines import engine_to_keep
from studies.run.stop import Stop
from studies.run.work import Work
from studies.store.records import (
    EXPORT,
    FullStudyError,
    KnownEvaluationError,
    LostEvaluationError,
    StoredEvaluation,
    TakenOver,
)
from studies.trials.open_trials import OpenTrials
from studies.trials.proposals import Proposals

if TYPE_CHECKING:
    import optuna

_SAME_IN_A_ROW = 3
_MOST_TAKEOVERS = 3


@dataclass(frozen=True)
class _Wanted:
    """What a trial asked for."""

    trial: optuna.Trial
    assignment: Assignment
    since_s: float


class TrialClaims:
    """Claims of Optuna's trials.

    Args:
        refusals: what cannot be built.
        trials: told what becomes of their evaluations.
        stop: how many evaluations are wanted.
    """

    def __init__(self, work: Work, proposals: Proposals, refusals: Refusals, trials: OpenTrials, stop: Stop) -> None:
        self._work = work
        self._proposals = proposals
        self._refusals = refusals
        self._trials = trials
        self._stop = stop
        self._roles = {a.digest: BASELINE + label for label, a in work.problem.space.baselines.items()}
        self._claimed: dict[int, _Wanted] = {}
        self._repeats = 0

    def enqueue_uniform(self) -> None:
        """Let every uniform assignment that has not been evaluated be proposed first: FP32, INT8, then the others.

        INT8 says most of what a search can gain, and builders that learn take long for each first build.
        """
        finest, *others = self._work.problem.space.baselines.values()
        self.enqueue_mixes((finest, *reversed(others)))

    def enqueue_mixes(self, mixes: Iterable[Assignment]) -> None:
        """Let mixes that have not been evaluated be proposed next."""
        wanted = tuple(dict.fromkeys(mixes))
        lacking = self._work.ledger.find_missing(wanted)
        if not lacking:
            return  # workers that come later need not wait for one another
        with self._work.crew.hold("baselines"):
            if not self._work.crew.alone:
                lacking = self._work.ledger.find_missing(wanted)
            self._proposals.enqueue_all(mix for mix in wanted if mix in lacking)

    # -- claiming --------------------------------------------------------------------------------------------------

    def claim_next(self, now: Standing, *, searching: bool) -> Claim | None:
        taken = self._work.crew.take_over(self._claimed) if searching else None
        if taken is not None:
            return self._go_on_with(taken)
        for _ in range(_SAME_IN_A_ROW if searching else 0):
            if self._stop.room() <= 0 or self._is_start_under_way():
                return None
            self._work.crew.state("searching")
            since_s = self._work.pace.passed_s
            trial, assignment = self._proposals.ask()
            self._refusals.refresh()
            claim = self._begin(_Wanted(trial, assignment, since_s))
            if claim is not None:
                return claim
        return None

    def _is_start_under_way(self) -> bool:
        """Whether uniform assignments are being evaluated and none is left to begin.

        Everything that is proposed builds on them, so it waits for them where several evaluations are in flight.
        """
        uniform = any(wanted.assignment.digest in self._roles for wanted in self._claimed.values())
        return uniform and not self._proposals.has_enqueued()

    def _begin(self, wanted: _Wanted) -> Claim | None:
        """A claim of a new evaluation; None if one that is there answers the trial, or no more are wanted."""
        ledger, worker, trial = self._work.ledger, self._work.crew.name, wanted.trial.number
        role = self._roles.get(wanted.assignment.digest, "")
        try:
            number = ledger.begin(wanted.assignment, worker, trial, role, most=self._stop.trials)
            return self._claim(number, wanted)
        except KnownEvaluationError:
            known = ledger.find(wanted.assignment)
        except FullStudyError:  # others began the last ones
            known = None
        if known is not None and self._trials.answer(wanted.trial, known):
            # A sampler that has converged proposes the same again and again: look around the repeated one.
            self._repeats += 1
            if self._repeats % _SAME_IN_A_ROW == 0:
                self._proposals.enqueue_neighbour(wanted.assignment)
        else:
            self._proposals.put_back(wanted.trial)
        return None

    def _claim(self, number: int, wanted: _Wanted) -> Claim:
        self._claimed[number], self._repeats = wanted, 0
        uniform = wanted.assignment.digest in self._roles
        return Claim(number, wanted.assignment, wanted.trial.number, wanted.since_s, uniform, stoppable=not uniform)

    def _go_on_with(self, taken: TakenOver) -> Claim | None:
        """Claim what another worker began, unless it was lost with too many."""
        store = self._work.ledger.store
        try:
            record = store.evaluations.load(taken.id)
        except KeyError:
            return None
        if record.role == EXPORT or record.trial is None:
            store.claims.abandon(taken.id)  # of an export that was killed: nobody waits for it
            return None
        self._work.crew.state("searching")
        self._work.events.note(f"trial {record.trial}: this worker continues it, because worker {taken.worker} is gone")
        trial = self._proposals.handle(record.trial)
        claim = self._claim(taken.id, _Wanted(trial, record.evaluation.assignment, self._work.pace.passed_s))
        if taken.takeovers > _MOST_TAKEOVERS:
            why = f"lost with its worker {taken.takeovers} times, at an unknown stage"
            failed = Evaluation(claim.assignment, Failure(Stage.LOWER, FailureKind.CRASHED, why))
            settled = self.settle(claim, failed)
            if settled is not None:
                self._work.events.evaluation(settled, self._work.ledger.read_standing(), self._stop.trials)
            return None
        return claim

    # -- settling --------------------------------------------------------------------------------------------------

    def settle(self, claim: Claim, evaluation: Evaluation) -> StoredEvaluation | None:
        wanted = self._claimed[claim.number]
        for death in evaluation.deaths:
            self._work.events.note(f"trial {claim.trial}: {death_text(death)}")
        self._refusals.learn(claim.trial, evaluation)
        record = self._record(claim, evaluation)
        del self._claimed[claim.number]
        self._work.pace.note(evaluation, self._work.pace.passed_s - wanted.since_s, uniform=claim.uniform)
        if record is not None:
            self._trials.tell(wanted.trial, record)
        return record

    def _record(self, claim: Claim, evaluation: Evaluation) -> StoredEvaluation | None:
        """The stored result; None where another worker, which took this one for lost, was faster."""
        ledger, worker = self._work.ledger, self._work.crew.name
        engine = engine_to_keep(evaluation, self._work.problem.config.keep_engines)
        try:
            record = ledger.record(claim.number, evaluation, engine, worker=worker)
        except LostEvaluationError:
            late = ledger.store.claims.note_late(claim.number, worker)
            note = late or "a late result of an evaluation that was given up was dropped"
            self._work.events.note(f"evaluation {claim.number}: {note}")
            return None
        return record.with_values(trial=claim.trial)

    # -- waiting and letting go ------------------------------------------------------------------------------------

    def wait(self, now: Standing) -> bool:
        if self._stop.room() > 0:
            return False
        self._work.crew.state("waiting")
        self._work.crew.wait("waiting for evaluations of other workers", now.measures.finished_count, self._stop.trials)
        self._trials.settle()
        return True

    def give_back(self) -> None:
        """Let go of what is this worker's in the database: cut off while it began one, it does not know its number."""
        claims, worker = self._work.ledger.store.claims, self._work.crew.name
        for running in claims.find_running(self._work.ledger.target.id, worker):
            trials = self._work.ledger.store.evaluations.load(running.id).trials
            if claims.abandon(running.id, worker):
                for number in trials:
                    self._proposals.give_up(self._proposals.handle(number))
