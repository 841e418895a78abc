"""The interface of pipelines, which carry claims through building and measuring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from evaluators.process.job import StopLimits as EarlyLimits
from search.values import Evaluation
from studies.run.claims.claim import Claim
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
