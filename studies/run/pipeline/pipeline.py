"""The interface of pipelines, which carry claims through building and measuring, and that of one process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from evaluators.process.job import StopLimits as EarlyLimits
from evaluators.process.line import STAGE, WAIT
from evaluators.stopwatch import time_spent
from search.values import Evaluation, Stage
from studies.judging.search_events import SearchEvents
from studies.options.quantities import format_duration_s
from studies.run.claims.claim import Claim
from studies.run.work import Bench
from studies.run_clock import count_parts
from studies.trials.ledger import Ledger

Result = tuple[Claim, Evaluation]


class Pipeline(Protocol):
    """Evaluates claims. Its methods are called in the thread that runs the search."""

    @property
    def free(self) -> bool:
        """Whether another claim may be started."""

    @property
    def busy(self) -> bool:
        """Whether claims were started whose results `wait_finished` has not given yet."""

    def start(self, claim: Claim) -> None:
        """Begin to evaluate a claim."""

    def wait_finished(self) -> Sequence[Result]:
        """Wait until claims are evaluated, at once where none is; none if nothing was started.

        Raises:
            MetricError, ArtifactError, InputError: what no other candidate would survive either.
            EvaluatorError: evaluator processes die again and again before they get anywhere.
        """

    def bound_builds(self, seconds: float) -> None:
        """Let builds go on for so long at most; `wait_finished` gives nothing of those that are cut off then."""

    def close(self) -> None:
        """End what is under way; again changes nothing."""


def early_limits(ledger: Ledger, claim: Claim) -> EarlyLimits:
    """The limits that may stop the evaluation of a claim early, by what is known now."""
    reference_ms = ledger.reference_ms()
    if not claim.stoppable:
        return EarlyLimits(reference_ms=reference_ms)
    return EarlyLimits(**ledger.limits.early(ledger.target.band), reference_ms=reference_ms)


_AGAIN_S = 60.0  # of further waiting that are worth a line


class Waiting:
    """The waits of one search. Two searches take turns on a device, so that each waits before every measurement.

    The first wait for a process is told with a line, and how long it took with another one. Of later waits for the same
    process only the sum is told, now and then; a display shows each of them while it lasts.
    """

    def __init__(self, events: SearchEvents) -> None:
        self._events = events
        self._for = ""
        self._told: set[str] = set()
        self._since = 0.0
        self._sum_s = self._told_s = 0.0

    def tell(self, trial: int, holder: str) -> None:
        """A trial waits for a process, as `process 4711, which measures on cpu`; with no process its turn has come."""
        if not holder:
            self._end()
            self._events.stage(trial, Stage.LATENCY.value)
            return
        self._for, self._since = holder, time.monotonic()
        if holder in self._told:
            self._events.stage(trial, f"waiting for {holder}")
        else:
            self._events.step(f"trial {trial}: waiting for {holder}", 1, 1)

    def _end(self) -> None:
        took_s = time.monotonic() - self._since if self._for else 0.0
        self._sum_s += took_s
        first = self._for not in self._told
        self._told.add(self._for)
        if first and took_s >= 1:
            self._events.note(f"waited {format_duration_s(round(took_s))} for {self._for}")
            self._told_s = self._sum_s
        elif self._sum_s >= self._told_s + _AGAIN_S:
            self._events.note(f"waited {format_duration_s(round(self._sum_s))} so far for others on this device")
            self._told_s = self._sum_s
        self._for = ""


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
