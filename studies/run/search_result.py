"""The result of a search, which the verbs `search`, `resume` and `worker` return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from search.values import Answer, Precision
from studies.judging.points import Point
from studies.judging.sentences.evaluations import mix_text
from studies.judging.standing import Standing, pick_points
from studies.store.records import Assignments, DeathRecord


@dataclass(frozen=True)
class Mixes(Mapping[int, str]):
    """Evaluation id → its mix in words, made when asked for: of 10,000 evaluations a front shows a handful."""

    assignments: Assignments

    def __getitem__(self, evaluation_id: int) -> str:
        return mix_text(self.assignments[evaluation_id])

    def __iter__(self) -> Iterator[int]:
        return iter(self.assignments)

    def __len__(self) -> int:
        return len(self.assignments)


@dataclass(frozen=True)
class SearchResult:
    """How a search ended.

    Attributes:
        standing: where the study stands.
        reason: why it stopped.
        mixes: evaluation id → its mix in words.
        obedience: (asked precision, answer) → groups, over every evaluation that was built.
        deaths: evaluator processes that were replaced over an evaluation.
    """

    standing: Standing
    reason: str
    mixes: Mapping[int, str]
    obedience: Mapping[tuple[Precision, Answer], int]
    deaths: tuple[DeathRecord, ...] = ()

    @property
    def picks(self) -> Mapping[str, Point]:
        """The picks by name: `best`, `accurate`, `fast`, `knee`; none of a name where nothing keeps the limits."""
        return pick_points(self.standing)
