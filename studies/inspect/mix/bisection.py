"""Finding the smallest set of groups that explains the loss of a mix.

Three sorts of candidates are looked at: the groups of one kind of op, stretches of groups in the order of the graph,
and the groups that are most sensitive alone. Float in more groups is taken to undo at least as much, so the shortest
stretch from the start that undoes the loss is found by halving. Then its end is held and its start moved up, again by
halving; and the same from the other end. How many of the most sensitive groups undo it is found by halving too. That
takes about five times log₂ of the groups. What comes out was itself tried, and a stretch cannot be shortened at either
end; that no stretch elsewhere is shorter is not proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search.graph.model import Group
from search.values import Accuracy

NOTHING = "nothing"
EVERYTHING = "everything"


@dataclass(frozen=True)
class BisectionStep:
    """The mix with some groups kept in float.

    Attributes:
        name: of the groups kept, in words.
        kept: their ids, in the order of the graph.
        accuracy: of the mix then; None if it could not be scored.
        failure: why it could not; empty if it could.
        undone: whether the loss is gone.
    """

    name: str
    kept: tuple[str, ...]
    accuracy: Accuracy | None
    failure: str
    undone: bool


@dataclass(frozen=True)
class Bisection:
    """What was tried, and what explains the loss.

    Attributes:
        trials: in the order in which they were made.
        smallest: the fewest groups that undo the loss; None if there is no loss, or even float in all of them does not
            undo it.
        kind, stretch: of the kinds of ops and of the stretches that undo it, the one with the fewest groups.
    """

    trials: tuple[BisectionStep, ...]
    smallest: BisectionStep | None
    kind: BisectionStep | None = None
    stretch: BisectionStep | None = None

    @property
    def lossless(self) -> bool:
        """Whether there is nothing to explain."""
        return self.trials[0].undone


Try = Callable[[str, tuple[str, ...]], BisectionStep]


def bisect(
    lowered: Sequence[str], ranked: Sequence[str], kinds: Mapping[str, Sequence[str]], attempt: Try
) -> Bisection:
    """Find the fewest groups that explain the loss.

    Args:
        lowered: ids of the groups that could be kept in float, in the order of the graph.
        ranked: the same groups, the most sensitive first; empty if that is not known.
        kinds: name of a kind of ops → those of these groups that are of it.
        attempt: makes one trial from a name and the groups to keep in float.
    """
    return _Search(tuple(lowered), attempt).run(ranked, kinds)


def most_trials(lowered: int, kinds: int) -> int:
    """How many trials a bisection makes at most."""
    return 2 + kinds + 5 * math.ceil(math.log2(max(2, lowered)))


@dataclass
class _Search:
    lowered: tuple[str, ...]
    attempt: Try
    trials: dict[tuple[str, ...], BisectionStep] = field(default_factory=dict)

    def run(self, ranked: Sequence[str], kinds: Mapping[str, Sequence[str]]) -> Bisection:
        if self._try(NOTHING, ()).undone or not self.lowered:
            return Bisection(tuple(self.trials.values()), None)
        some = {kind: tuple(members) for kind, members in kinds.items() if 0 < len(members) < len(self.lowered)}
        of_kind = [self._try(f"all {kind}", some[kind]) for kind in sorted(some, key=lambda kind: len(some[kind]))]
        self._find_stretches()
        _least(1, len(ranked), lambda count: self._undoes_most_sensitive(ranked[:count]))
        if _fewest(self.trials.values()) is None:
            self._try(EVERYTHING, self.lowered)
        trials = tuple(self.trials.values())
        stretches = [trial for trial in trials if self._is_stretch(trial.kept)]
        return Bisection(trials, _fewest(trials), _fewest(of_kind), _fewest(stretches))

    def _is_stretch(self, kept: tuple[str, ...]) -> bool:
        start = self.lowered.index(kept[0]) if kept else 0
        return kept == self.lowered[start : start + len(kept)]

    def _find_stretches(self) -> None:
        count = len(self.lowered)
        end = _least(1, count, lambda end: self._undoes(0, end))
        start = -_least(1 - end, 0, lambda less: self._undoes(-less, end))
        if end - start <= 1:
            return
        start = -_least(1 - count, 0, lambda less: self._undoes(-less, count))
        _least(start + 1, count, lambda end: self._undoes(start, end))

    def _undoes(self, start: int, end: int) -> bool:
        kept = self.lowered[start:end]
        return self._try(kept[0] if len(kept) == 1 else f"{kept[0]} to {kept[-1]}", kept).undone

    def _undoes_most_sensitive(self, best: Sequence[str]) -> bool:
        kept = tuple(group for group in self.lowered if group in best)
        return self._try(f"the {len(kept)} most sensitive", kept).undone

    def _try(self, name: str, kept: tuple[str, ...]) -> BisectionStep:
        if kept not in self.trials:
            self.trials[kept] = self.attempt(name, kept)
        return self.trials[kept]


def _fewest(trials: Iterable[BisectionStep]) -> BisectionStep | None:
    """The trial that undoes the loss with the fewest groups in float, the earliest of several; None without one."""
    return min((trial for trial in trials if trial.undone), key=lambda trial: len(trial.kept), default=None)


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number from `low` on that holds, where those above it hold too; `high` is taken to hold."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def kinds_of(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Kind of a group's weighted op, finer than its op type → ids of the groups."""
    by_kind: dict[str, list[str]] = {}
    for group in groups:
        by_kind.setdefault(_kind(group), []).append(group.id)
    return by_kind


def _kind(group: Group) -> str:
    shape: Any = group.weight_shape
    if group.op == "Conv" and shape:
        if shape[1] == 1 and shape[0] > 1:
            return "depthwise Conv"
        return "pointwise Conv" if all(size == 1 for size in shape[2:]) else "spatial Conv"
    return group.op if shape else f"{group.op} of two activations"
