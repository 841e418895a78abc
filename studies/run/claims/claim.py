"""A claim, which is an evaluation that this worker has begun, and the interface of its sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from search.values import Assignment, Evaluation
from studies.judging.standing import Standing
from studies.store.records import StoredEvaluation


@dataclass(frozen=True)
class Claim:
    """What is to be evaluated.

    Attributes:
        number: of the evaluation in the store.
        assignment: that is built.
        trial: number of the Optuna trial that it answers, for people.
        since_s: when it was asked for, in seconds since the run began.
        uniform: whether it is one of the uniform assignments, which all others are held against: it is measured with
            more care.
        stoppable: whether limits may stop it early.
    """

    number: int
    assignment: Assignment
    trial: int
    since_s: float
    uniform: bool = False
    stoppable: bool = True


class ClaimSource(Protocol):
    """Where claims come from, and what becomes of their results."""

    def claim_next(self, now: Standing, *, searching: bool) -> Claim | None:
        """Begin the next evaluation; None if there is nothing to begin now.

        Args:
            searching: whether new evaluations are wanted; otherwise only what is owed to those that were begun.
        """

    def settle(self, claim: Claim, evaluation: Evaluation) -> StoredEvaluation | None:
        """Record the result of a claim and tell Optuna; the new evaluation, None if it is none."""

    def wait(self, now: Standing) -> bool:
        """Wait a moment for what other workers are at, where the search cannot end before; whether it was waited."""

    def give_back(self) -> None:
        """Let go of all claims that are not settled, so that they are begun again some day."""
