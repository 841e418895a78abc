"""What an engine's builder refuses: learn the pair it names, and where that is allowed give its group a higher
precision.
"""

from __future__ import annotations

from collections.abc import Callable

from search.values import Assignment, Evaluation, FailureKind, Precision
from studies.run.work import Problem
from studies.trials.ledger import Ledger


class Repairs:
    """What cannot be built on a target, and what is built instead.

    Every refusal that names a group is learnt from. Where repairs are allowed, proposals with what was learnt are
    repaired; else they are built as they are, and only the guided sampler makes no more of them.

    Args:
        note: told what is built no more.

    Attributes:
        unbuildable: (group id, precision) that was refused and is built no more; none if that is not heeded.
    """

    def __init__(self, problem: Problem, ledger: Ledger, note: Callable[[str], None]) -> None:
        self._problem = problem
        self._ledger = ledger
        self._note = note
        self._allowed = problem.config.repair > 0
        self._heeded = self._allowed or problem.config.sampler_kind().guided
        self.unbuildable: frozenset[tuple[str, Precision]] = frozenset()
        self.refresh()

    def refresh(self) -> None:
        """Learn what this and other workers have learnt."""
        if self._heeded:
            self.unbuildable |= self._ledger.unbuildable()

    def buildable(self, asked: Assignment) -> Assignment:
        """What is built for a proposal: itself, or, if allowed, its repair where a part is known to be refused."""
        if not self._allowed:
            return asked
        # Never None: what a group runs in when its variable is at its highest precision is never learnt.
        return self._problem.space.avoid(asked, self.unbuildable) or asked

    def learn(self, trial: int, evaluation: Evaluation, left: int) -> Assignment | None:
        """Remember what cannot be built of a refused evaluation; its repair, where there is one and some are left.

        Call it before the refusal is recorded: killed in between, the proposal is made again and repaired.
        """
        pair = _refused_pair(evaluation)
        repaired = None
        if pair is not None:
            repaired = self._problem.space.avoid(evaluation.assignment, self.unbuildable | {pair})
        if pair is None or repaired is None:
            return None
        self._ledger.mark_unbuildable(*pair)
        if self._heeded:
            self._stop_building(trial, pair, repaired, left)
        return repaired if left > 0 else None

    def all_built(self, done: int) -> bool:
        """Whether `done` evaluations are all that can be built."""
        size = self._problem.space.size_without(self.unbuildable)
        if done < size or not self.unbuildable:
            return done >= size
        assignments = self._ledger.store.evaluations.assignments(self._ledger.target.id).values()
        return sum(self.unbuildable.isdisjoint(assignment.items()) for assignment in assignments) >= size

    def _stop_building(self, trial: int, pair: tuple[str, Precision], repaired: Assignment, left: int) -> None:
        """Build the pair no more, and say so."""
        group, precision = pair
        if pair in self.unbuildable and not self._allowed:
            return  # proposed before it was known
        self.unbuildable |= {pair}
        name = next(known.name for known in self._problem.model.groups if known.id == group)
        instead = f"it gets {repaired[group].label}" if self._allowed else "no mix with that is proposed"
        again = "; trying that" if left > 0 else ""
        self._note(f"trial {trial}: {name} cannot be built in {precision.label}; from now on {instead}{again}")


def _refused_pair(evaluation: Evaluation) -> tuple[str, Precision] | None:
    failure, assignment = evaluation.failure, evaluation.assignment
    if failure is None or failure.kind is not FailureKind.REFUSED:
        return None
    group = failure.group
    return (group, assignment[group]) if group is not None and group in assignment else None
