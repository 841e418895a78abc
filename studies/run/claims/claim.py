"""A claim, which is an evaluation that this worker has begun, and the sources of claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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


class ClaimSources:
    """Begins evaluations, from the first source that has one, and settles them where they came from."""

    def __init__(self, sources: Sequence[ClaimSource]) -> None:
        self._sources = tuple(sources)
        self._source_of: dict[int, ClaimSource] = {}

    def claim_next(self, now: Standing, *, searching: bool) -> Claim | None:
        """As `ClaimSource.claim_next`."""
        for source in self._sources:
            claim = source.claim_next(now, searching=searching)
            if claim is not None:
                self._source_of[claim.number] = source
                return claim
        return None

    def settle(self, claim: Claim, evaluation: Evaluation) -> StoredEvaluation | None:
        """As `ClaimSource.settle`."""
        return self._source_of.pop(claim.number).settle(claim, evaluation)

    def wait(self, now: Standing) -> None:
        """Wait a moment for other workers, where the search cannot end before they do."""
        any(source.wait(now) for source in self._sources)

    @contextmanager
    def given_back_when_cut_off(self) -> Iterator[None]:
        """What Ctrl-C or an error cuts off leaves no row, and its assignments are proposed again."""
        try:
            yield
        except BaseException:
            for source in self._sources:
                with suppress(Exception):  # what cannot be cleaned up now, on a full disk say, the next run will
                    source.give_back()
            raise

    def give_back(self) -> None:
        """Let go of all that is begun and will not be settled: it is proposed again, should the study go on."""
        for source in self._sources:
            source.give_back()
