"""The end of trials that are open in Optuna, whose evaluation exists by now or whose worker is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from studies.crew.crew import Crew
from studies.store.records import FAILED, OK, RUNNING, LostEvaluationError, StoredEvaluation
from studies.trials.ledger import Ledger
from studies.trials.proposals import WORKER, Outcome, Proposals

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


_MOMENT_S = 10.0  # for a trial that was asked for just now to be begun, beyond a lease


class OpenTrials:
    """Tells trials and closes what is open. Asked while no trial of this worker is without its evaluation."""

    def __init__(self, ledger: Ledger, proposals: Proposals, crew: Crew) -> None:
        self._ledger = ledger
        self._proposals = proposals
        self._crew = crew
        self._seen: dict[int, float] = {}

    def tell(self, trial: optuna.Trial, record: StoredEvaluation) -> None:
        """Tell a trial what its evaluation came to, and every other trial that waited for the same one."""
        self._proposals.tell(trial, outcome(self._ledger, record))
        waiting = {number for number in record.trials if number != trial.number}
        for other in self._proposals.open_trials() if waiting else ():
            if other.number in waiting:
                self._tell_open(other, record)

    def answer(self, trial: optuna.Trial, known: StoredEvaluation) -> bool:
        """Let an evaluation that is there answer a trial, at once or when it is finished; False if it is gone."""
        store = self._ledger.store
        try:
            store.trials.link(self._ledger.target.id, trial.number, known.id)
            # Read again: whoever finishes it tells those trials that are linked to it by then.
            known = store.evaluations.load(known.id) if known.status == RUNNING else known
        except (LostEvaluationError, KeyError):  # it is gone, or another worker closed the trial
            return False
        if known.status != RUNNING:
            self._proposals.tell(trial, outcome(self._ledger, known))
        return True

    def settle(self) -> int:
        """Tell trials whose evaluation is finished, close those of lost workers; how many are left without evaluation.

        Where this worker is alone every trial without an evaluation is a lost one's.
        """
        trials, alone = self._proposals.open_trials(), self._crew.alone
        if not trials:
            return 0
        # In this order: what was asked for by now was asked by a worker that is there, unless it is lost.
        live = self._crew.others()
        links = self._ledger.store.trials.links(self._ledger.target.id, *(trial.number for trial in trials))
        loose = [trial for trial in trials if trial.number not in links]
        for trial in trials:
            number, status = links.get(trial.number, (0, ""))
            if status in (OK, FAILED):
                self._tell_open(trial, self._ledger.store.evaluations.load(number))
        lost = [trial for trial in loose if alone or self._is_lost(trial, live)]
        self._seen = {trial.number: self._seen.get(trial.number, time.monotonic()) for trial in loose}
        if not lost or not (alone or self._crew.steady):
            return len(loose)
        with self._crew.try_hold("sweep") as mine:
            for trial in lost if mine else ():
                self._close(trial)
        return len(loose) - (len(lost) if mine else 0)

    def settle_all(self) -> None:
        """At the end of a study: settle until no trial is left without an evaluation, for a little more than a lease.

        A worker that was lost just now is known to be only then.
        """
        deadline = time.monotonic() + self._crew.lease_s + _MOMENT_S
        while self.settle() and time.monotonic() < deadline:
            self._crew.wait("waiting for trials of other workers")

    def _is_lost(self, trial: FrozenTrial, live: Mapping[str, str]) -> bool:
        """By the name of who asked for it; by this worker's clock where it was lost before it could write that."""
        worker = trial.user_attrs.get(WORKER)
        if worker is not None:
            return worker not in live
        return time.monotonic() - self._seen.get(trial.number, time.monotonic()) > self._crew.lease_s

    def _close(self, trial: FrozenTrial) -> None:
        """Tell what is known of its assignment, else close it and let that be proposed again."""
        assignment = self._proposals.assignment_of(trial)
        record = None if assignment is None else self._ledger.find(assignment)
        if record is None:
            self._proposals.give_up(trial)
        else:  # what cannot be linked was abandoned just now, or closed by another worker: looked at again later
            self.answer(self._proposals.reopen(trial), record)

    def _tell_open(self, trial: FrozenTrial, record: StoredEvaluation) -> None:
        self._proposals.tell(self._proposals.reopen(trial), outcome(self._ledger, record))


_NORMAL_95 = 1.96  # standard deviations to either side that hold 95 % of a normal distribution


def outcome(ledger: Ledger, record: StoredEvaluation) -> Outcome:
    """What Optuna is told of a finished evaluation: measures, and how far they are above the limits."""
    evaluation = record.evaluation
    if record.status != OK or evaluation.latency is None or evaluation.accuracy is None:
        return Outcome(None, {})
    refused = sum(row.got is not None and row.got != row.asked for row in evaluation.audit)
    amounts = {"obeyed": float(refused)}
    latency_ms, accuracy = evaluation.latency.value_ms, evaluation.accuracy
    for limit, bound in ledger.limits.rows():
        measure = limit.measure(evaluation)
        if measure is not None:
            amounts[limit.word] = limit.sign(ledger.study.metric["higher_is_better"]) * (measure - bound)
    loss_std = (accuracy.loss_high - accuracy.loss_low) / (2 * _NORMAL_95)
    measured = (evaluation.latency.spread, loss_std, float(accuracy.complete))
    return Outcome((latency_ms, accuracy.loss), amounts, measured)
