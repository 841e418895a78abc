"""Optuna's trials that wait for a word: their evaluation is there by now, or whoever asked for them is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from studies.run.repair import Repairs
from studies.store.records import FAILED, OK, EvaluationRecord, LostEvaluationError
from studies.trials.outcomes import asked_unless_built, digest_in, outcome
from studies.trials.proposals import WORKER, Proposals

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from studies.run.work import Work

_MOMENT_S = 10.0  # for a trial that was asked for just now to be begun, beyond a lease


class OpenTrials:
    """Closes what is open. Asked between this worker's own trials, so that none of its own is under way."""

    def __init__(self, work: Work, proposals: Proposals, repairs: Repairs) -> None:
        self._work = work
        self._proposals = proposals
        self._repairs = repairs
        self._seen: dict[int, float] = {}

    def settle(self, *, alone: bool = False) -> int:
        """Tell trials whose evaluation is finished, close those of lost workers; how many are left without evaluation.

        Args:
            alone: no other worker lives, so that every trial without an evaluation is a lost one's.
        """
        trials = self._proposals.open_trials()
        if not trials:
            return 0
        # In this order: what was asked for by now was asked by a worker that is there, unless it is lost.
        live = self._work.crew.others()
        links = self._work.ledger.store.trials.links(self._work.ledger.target.id, *(trial.number for trial in trials))
        loose = [trial for trial in trials if trial.number not in links]
        for trial in trials:
            number, status = links.get(trial.number, (0, ""))
            if status in (OK, FAILED):
                self._tell(trial, self._work.ledger.store.evaluations.load(number))
        lost = [trial for trial in loose if alone or self._is_lost(trial, live)]
        self._seen = {trial.number: self._seen.get(trial.number, time.monotonic()) for trial in loose}
        if not lost or not (alone or self._work.crew.steady):
            return len(loose)
        with self._work.crew.try_hold("sweep") as mine:
            for trial in lost if mine else ():
                self._close(trial)
        return len(loose) - (len(lost) if mine else 0)

    def settle_all(self) -> None:
        """At the end of a study: settle until no trial is left without an evaluation, for a little more than a lease.

        A worker that was lost just now is known to be only then.
        """
        deadline = time.monotonic() + self._work.crew.lease_s + _MOMENT_S
        while self.settle() and time.monotonic() < deadline:
            self._work.crew.wait("waiting for trials of other workers")

    def tell_others(self, record: EvaluationRecord, told: int) -> None:
        """Tell the trials that waited for an evaluation besides the one whose it is."""
        waiting = {number for number in record.trials if number != told}
        for trial in self._proposals.open_trials() if waiting else ():
            if trial.number in waiting:
                self._tell(trial, record)

    def _is_lost(self, trial: FrozenTrial, live: Mapping[str, str]) -> bool:
        """By the name of who asked for it; by this worker's clock where it was lost before it could write that."""
        worker = trial.user_attrs.get(WORKER)
        if worker is not None:
            return worker not in live
        return time.monotonic() - self._seen.get(trial.number, time.monotonic()) > self._work.crew.lease_s

    def _close(self, trial: FrozenTrial) -> None:
        """Tell what is known of its assignment, else close it and let that be proposed again."""
        asked, store, target = self._proposals.asked_by(trial), self._work.ledger.store, self._work.ledger.target.id
        built = None if asked is None else self._repairs.buildable(asked)
        record = None if built is None else store.evaluations.find(target, digest_in(self._work, built))
        if asked is None or record is None:
            self._proposals.give_up(trial)
            return
        try:
            store.trials.link(target, trial.number, record.id, asked=asked_unless_built(asked, record))
        except LostEvaluationError:  # it was abandoned just now, or another worker closes the trial: look again later
            return
        if record.status in (OK, FAILED):
            self._tell(trial, record)

    def _tell(self, trial: FrozenTrial, record: EvaluationRecord) -> None:
        self._proposals.tell(self._proposals.reopened(trial), outcome(self._work, record))
