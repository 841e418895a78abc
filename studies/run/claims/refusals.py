"""What an engine's builder refuses, learnt from failed builds."""

from __future__ import annotations

from collections.abc import Callable

from search.values import REFERENCE, Evaluation, FailureKind, Precision
from studies.run.work import Problem
from studies.trials.ledger import Ledger


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
