"""One process that builds and measures, one candidate after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from evaluators.process.line import STAGE, WAIT
from evaluators.stopwatch import time_spent
from search.values import Stage
from studies.judging.search_events import SearchEvents
from studies.run.claims.claim import Claim
from studies.run.pipeline.pipeline import Result, Waiting, early_limits
from studies.run.work import Bench
from studies.run_clock import count_parts
from studies.trials.ledger import Ledger


class SerialPipeline:
    """Evaluates one claim at a time in the process of the bench, while this thread waits for it."""

    def __init__(self, bench: Bench, ledger: Ledger, events: SearchEvents) -> None:
        self._bench = bench
        self._ledger = ledger
        self._events = events
        self._waiting = Waiting(events)
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
        """As `Pipeline.wait_finished`: builds and measures the claim now."""
        claim, self._claim = self._claim, None
        if claim is None:
            return ()
        keeper, out = self._bench.keeper, self._bench.folder / f"{claim.number}.engine"
        tell = partial(self._tell, claim)
        with time_spent("evaluator"):
            built = keeper.build(claim.assignment, out, tell)
            limits = early_limits(self._ledger, claim)
            evaluation = keeper.measure(built, limits, tell, profile=claim.uniform)
        count_parts(evaluation, uniform=claim.uniform)
        return ((claim, evaluation),)

    def _tell(self, claim: Claim, event: str, value: Any) -> None:
        if event == STAGE:
            self._events.stage(claim.trial, Stage(value).value)
        elif event == WAIT:
            self._waiting.tell(claim.trial, value)

    def bound_builds(self, seconds: float) -> None:
        """Nothing: what is begun is finished by `wait_finished`, and nothing is under way beside that."""

    def close(self) -> None:
        """Nothing: the process of the bench is not ended by this."""
