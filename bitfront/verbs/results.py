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
from studies.store.records import OK

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
    """What the demo left behind; `engine` is None where nothing keeps the limit."""

    finished: SearchResult
    engine: Export | None
    report: Path
    storage: str

    @property
    def missed_point(self) -> str:
        """Why the demo did not show what it is for, a mix that is better than one precision; empty if it did."""
        now = self.finished.standing
        best, mixes = now.picks.best, int(((now.table.status == OK) & (now.table.role == "")).sum())
        if best is not None and not now.table.role[best]:
            return ""
        found = "nothing keeps the limit" if best is None else f"all {now.point(best).baseline.upper()} is recommended"
        if mixes:
            return f"{found}, although {mixes} mix{'es were' if mixes > 1 else ' was'} evaluated"
        return f"no mix was evaluated, so that {found}"
