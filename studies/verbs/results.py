"""Result types that only verbs return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from search.values import Assignment
from studies.judging.point_lists import pick_points
from studies.judging.points import Point
from studies.judging.standing import Standing

if TYPE_CHECKING:  # these import the evaluators, which reading verbs should not wait for
    from studies.export.export import Export
    from studies.run.search_result import SearchResult


@dataclass(frozen=True)
class Front:
    """Where a study stands on one target.

    Attributes:
        standing: every evaluation, judged.
        mixes: evaluation id → its mix in words.
        assignments: evaluation id → its assignment, of the same evaluations.
    """

    standing: Standing
    mixes: Mapping[int, str]
    assignments: Mapping[int, Assignment]

    @property
    def points(self) -> tuple[Point, ...]:
        """The evaluations of the front, the fastest first."""
        return tuple(self.standing.points(self.standing.measures.fastest_first(self.standing.judgement.front)))

    @property
    def picks(self) -> Mapping[str, Point]:
        """The picks by name: `best`, `accurate`, `fast`, `knee`; none of a name where nothing keeps the limits."""
        return pick_points(self.standing)


@dataclass(frozen=True)
class Demo:
    """What the demo left behind."""

    finished: SearchResult
    engine: Export
    report: Path
    storage: str
