"""A claim, which is an evaluation that this worker has begun, the sources of claims, and what builders refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from search.values import REFERENCE, Assignment, Evaluation, FailureKind, Precision
from studies.judging.standing import Standing
from studies.run.work import Problem
from studies.store.records import StoredEvaluation
from studies.trials.ledger import Ledger


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


class Refusals:
    """What cannot be built on a target.

    Every refusal that names a group is learnt from. Only the guided sampler proposes no more mixes with what was
    learnt; those of other samplers are built as they are.

    Args:
        note: told what is proposed no more.

    Attributes:
        unbuildable: (group id, precision) that was refused and is proposed no more; none if the sampler heeds nothing.
    """

    def __init__(self, problem: Problem, ledger: Ledger, note: Callable[[str], None]) -> None:
        self._problem = problem
        self._ledger = ledger
        self._note = note
        self._heeded = problem.config.sampler_kind().guided
        self.unbuildable: frozenset[tuple[str, Precision]] = frozenset()
        self.refresh()

    def refresh(self) -> None:
        """Learn what this and other workers have learnt."""
        if self._heeded:
            self.unbuildable |= self._ledger.unbuildable()

    def learn(self, trial: int, evaluation: Evaluation) -> None:
        """Remember what the builder refused of an evaluation, as far as the group can run in a higher precision."""
        failure, assignment, space = evaluation.failure, evaluation.assignment, self._problem.space
        group = None if failure is None or failure.kind is not FailureKind.REFUSED else failure.group
        if group is None or group not in assignment:
            return
        precision = assignment[group]
        highest = precision == space.uniform(REFERENCE)[group]
        if highest or not space.size_without(self.unbuildable | {(group, precision)}):
            return
        self._ledger.mark_unbuildable(group, precision)
        if self._heeded and (group, precision) not in self.unbuildable:  # else it was proposed before that was known
            self.unbuildable |= {(group, precision)}
            name = self._problem.layer_names[group]
            self._note(
                f"trial {trial}: {name} cannot be built in {precision.label}; from now on no mix with that is proposed"
            )

    def all_built(self, done: int) -> bool:
        """Whether `done` evaluations are all that can be built."""
        size = self._problem.space.size_without(self.unbuildable)
        if done < size or not self.unbuildable:
            return done >= size
        assignments = self._ledger.store.evaluations.assignments(self._ledger.target.id).values()
        return sum(self.unbuildable.isdisjoint(assignment.items()) for assignment in assignments) >= size
