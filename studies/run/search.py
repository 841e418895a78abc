"""Assembling a search on one target from its parts."""

from __future__ import annotations

from dataclasses import replace

from studies.judging.standing import Standing
from studies.run import loop
from studies.run.claims.claim import ClaimSources, Refusals
from studies.run.claims.regained_claims import RegainedClaims
from studies.run.claims.renewed_mixes import renewed_mixes
from studies.run.claims.trial_claims import TrialClaims
from studies.run.finish import Finish
from studies.run.guidance.sensitivity_beside import SensitivityHook
from studies.run.hooks.announcements import (
    BudgetWarning,
    ForecastNotes,
    Remaining,
    ResolutionNote,
    ShareNote,
    SlowerNote,
    UnlikeFloatNote,
)
from studies.run.hooks.hook import Hooks
from studies.run.hooks.upkeep import DriftCheck, LostTrials, Pruning, TimeKeeping
from studies.run.noise.tie_band import TieBand
from studies.run.pipeline.parallel import ParallelPipeline
from studies.run.pipeline.pipeline import Pipeline, SerialPipeline
from studies.run.stop import Stop
from studies.run.work import Work
from studies.trials.open_trials import OpenTrials
from studies.trials.proposals import Proposals


class Search:
    """One worker's part of a search; close it, however it ends."""

    def __init__(self, work: Work, proposals: Proposals) -> None:
        self._work = work
        refusals = Refusals(work.problem, work.ledger, work.events.note)
        self._trials = OpenTrials(work.ledger, proposals, work.crew)
        self._stop = Stop(work, refusals, proposals)
        proposals.guide(lambda guidance: replace(guidance, left=self._stop.left))
        self._trial_claims = TrialClaims(work, proposals, refusals, self._trials, self._stop)
        self._claims = ClaimSources([RegainedClaims(work, proposals, self._trials), self._trial_claims])
        self._pipeline = make_pipeline(work)
        self._band = TieBand(work)
        self._finish = Finish(work, proposals, self._trials, self._band)
        self._hooks = Hooks(
            [
                *([ShareNote(work)] if work.ledger.limits.of_fp32 else []),
                ResolutionNote(work.ledger, work.events),
                BudgetWarning(work, proposals),
                SlowerNote(work),
                UnlikeFloatNote(work.events),
                self._band,
                TimeKeeping(work.crew),
                LostTrials(work.crew, self._trials),
                SensitivityHook(work, proposals),
                ForecastNotes(proposals, work.events),
                DriftCheck(work),
                Pruning(work.ledger, work.crew, keep=work.problem.config.keep_engines),
                Remaining(work, self._stop, self._band),
            ],
            work.events.note,
        )

    def run(self) -> str:
        """Begin with what lost workers left, uniform assignments and mixes to renew; search; why it ended, in words.

        Raises:
            UnreachableLimitError: FP32 itself misses the accuracy limit, or the time limit is too short for anything.
        """
        self._work.crew.give_up_lost()
        self._trials.settle()
        self._trial_claims.enqueue_uniform()
        self._trial_claims.enqueue_mixes(renewed_mixes(self._work))
        self._finish.note_correction_time()
        work = self._work
        return loop.run(work.ledger, self._claims, self._pipeline, self._hooks, self._stop, work.events)

    @property
    def stopped_by(self) -> str:
        """What ended the search before it was complete, as `Stop` has it."""
        return self._stop.stopped_by

    def finish(self) -> bool:
        """Confirm the finalists, or wait for the worker that does; whether the study is done now.

        Raises:
            EvaluatorError: the evaluator process dies over it.
        """
        self._work.crew.state("finishing")
        self._hooks.close()  # processes that build stay: engines that were not kept may be built again
        return self._finish.run(complete=self._stop.is_complete(self.read_standing().measures.finished_count))

    def read_standing(self) -> Standing:
        """Where the target stands now."""
        return self._work.ledger.read_standing()

    def close(self) -> None:
        """End what runs beside the search."""
        self._hooks.close()
        self._pipeline.close()


def make_pipeline(work: Work) -> Pipeline:
    """With processes that only build, where there are some."""
    parts = work.bench, work.ledger, work.events
    return ParallelPipeline(*parts) if work.bench.builders else SerialPipeline(*parts)
