"""One process that builds and measures, one candidate after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluators.stopwatch import time_spent
from search.values import Evaluation, Stage
from studies.run.claims.claim import Claim
from studies.run.pipeline.pipeline import Result, early_limits
from studies.run.work import Work
from studies.run_clock import count_parts


class SerialPipeline:
    """Evaluates one claim at a time in the process of the bench, while this thread waits for it."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._claim: Claim | None = None

    @property
    def free(self) -> bool:
        return self._claim is None

    @property
    def busy(self) -> bool:
        return self._claim is not None

    def start(self, claim: Claim) -> None:
        self._claim = claim

    def wait_finished(self) -> Sequence[Result]:
        claim, self._claim = self._claim, None
        return () if claim is None else ((claim, self.evaluate(claim)),)

    def evaluate(self, claim: Claim) -> Evaluation:
        """Build and measure a claim now."""
        bench, events = self._work.bench, self._work.events

        def tell(event: str, value: Any) -> None:
            if event == "stage":
                events.stage(claim.trial, Stage(value).value)

        out, limits = bench.folder / f"{claim.number}.engine", early_limits(self._work.ledger, claim)
        with time_spent("evaluator"):
            evaluation = bench.keeper.evaluate(claim.assignment, out, limits, tell, profile=claim.uniform)
        count_parts(evaluation, uniform=claim.uniform)
        return evaluation

    def close(self) -> None:
        """Nothing: the process of the bench is not ended by this."""
