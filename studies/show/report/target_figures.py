"""Tables and figures that compare several targets of one study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from search.forecast.quality import rank_correlation
from search.values import REFERENCE, Assignment
from studies.judging.findings.device_table import DeviceRow, device_row
from studies.judging.points import Point
from studies.judging.sentences.evaluations import mix_text
from studies.judging.standing import Standing
from studies.options.quantities import format_ms
from studies.show.plots import BLUE, GREY, ORANGE, RED, Figure, frame, plain
from studies.store import target_names
from studies.store.store import Store

_COLOURS = (BLUE, ORANGE, "#2b7a4b", RED, "#6b4fa0", GREY)
_MOST_ROWS = 40


@dataclass(frozen=True)
class TargetColumn:
    """One target: its number in the study, its name, and what was measured on it, by digest of the assignment."""

    number: int
    name: str
    evaluations: int
    points: dict[str, Point]

    @property
    def front(self) -> list[Point]:
        """Fastest first."""
        return sorted(
            (point for point in self.points.values() if point.on_front), key=lambda point: point.latency_ms or 0.0
        )

    @property
    def fp32_ms(self) -> float | None:
        return next((point.latency_ms for point in self.points.values() if point.role == REFERENCE.role), None)


@dataclass(frozen=True)
class Pair:
    """How alike two targets order the assignments that were measured on both; NaN for fewer than three."""

    first: str
    second: str
    shared: int
    rank_correlation: float


@dataclass(frozen=True)
class SharedRow:
    """An assignment that was measured on every target shown; trials and latencies in the order of the targets."""

    mix: str
    trials: tuple[int, ...]
    latencies_ms: tuple[float, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class SideBySide:
    """Targets beside each other.

    Attributes:
        shared: assignments measured on all, on the front of one of them, picked there or uniform; the fastest on the
            first target first.
        shared_count: of all assignments measured on all.
        devices: the cross-device table, a row for each target.
    """

    columns: tuple[TargetColumn, ...]
    pairs: tuple[Pair, ...]
    shared: tuple[SharedRow, ...]
    shared_count: int
    devices: tuple[DeviceRow, ...] = ()

    def figures(self, loss_title: str, scale: float) -> dict[str, Figure]:
        """The fronts in one figure, and latencies on the second target against those on the first.

        Args:
            scale: what losses are multiplied by, 100 for percentage points.
        """
        by_name = {"targets": self._fronts(loss_title, scale)}
        if self.pairs and self.pairs[0].shared:
            by_name["latencies"] = self._against()
        return by_name

    def _fronts(self, loss_title: str, scale: float) -> Figure:
        traces = [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(column.name),
                "x": [point.latency_ms for point in column.front],
                "y": [scale * (point.loss or 0.0) for point in column.front],
                "text": [f"trial {point.trial}: {format_ms(point.latency_ms or 0.0)}" for point in column.front],
                "hovertemplate": "%{text}<extra></extra>",
                "line": {"shape": "hv", "width": 1.5, "color": _colour(place)},
                "marker": {"size": 8, "color": _colour(place)},
            }
            for place, column in enumerate(self.columns)
        ]
        layout = frame("latency (ms)", loss_title, height=380)
        layout["xaxis"]["type"] = "log"
        return {"data": traces, "layout": layout}

    def _against(self) -> Figure:
        first, second = self.columns[:2]
        both = [digest for digest in first.points if digest in second.points]
        points = {
            "type": "scatter",
            "mode": "markers",
            "x": [first.points[digest].latency_ms for digest in both],
            "y": [second.points[digest].latency_ms for digest in both],
            "text": [f"trial {first.points[d].trial} and trial {second.points[d].trial}" for d in both],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"size": 7, "color": BLUE},
        }
        layout = frame(f"latency (ms), {first.name}", f"latency (ms), {second.name}", height=360)
        return {"data": [points], "layout": layout}


def side_by_side(store: Store, standings: Sequence[Standing]) -> SideBySide:
    """What was measured on several targets of one study.

    Args:
        standings: of each target, judged by its limits; at least two.
    """
    records = store.targets.of_study(standings[0].study.id)
    named = dict(zip([r.id for r in records], target_names.names([r.target for r in records]), strict=True))
    places = {record.id: place for place, record in enumerate(records, 1)}
    known = {now.target.id: store.evaluations.assignments(now.target.id) for now in standings}
    assignments = {assignment.digest: assignment for of_target in known.values() for assignment in of_target.values()}
    columns = tuple(
        TargetColumn(
            places[now.target.id],
            named[now.target.id],
            int(np.isin(now.table.status, ("ok", "failed")).sum()),
            _points(now, known[now.target.id]),
        )
        for now in standings
    )
    devices = tuple(
        device_row(now, column.number, column.name, known[now.target.id])
        for now, column in zip(standings, columns, strict=True)
    )
    everywhere = [d for d in columns[0].points if all(d in column.points for column in columns[1:])]
    rows = [_shared_row(columns, digest, assignments[digest]) for digest in everywhere if _shown(columns, digest)]
    rows.sort(key=lambda row: row.latencies_ms[0])
    pairs = tuple(_pair(one, two) for one, two in combinations(columns, 2))
    return SideBySide(columns, pairs, tuple(rows[:_MOST_ROWS]), len(everywhere), devices)


def _points(now: Standing, assignments: Mapping[int, Assignment]) -> dict[str, Point]:
    """Complete evaluations, by digest of their assignment."""
    points = now.points(np.flatnonzero(now.measures.complete).tolist())
    return {assignments[point.id].digest: point for point in points}


def _shown(columns: Sequence[TargetColumn], digest: str) -> bool:
    points = [column.points[digest] for column in columns]
    return any(point.on_front or point.picks or point.role for point in points)


def _shared_row(columns: Sequence[TargetColumn], digest: str, assignment: Assignment) -> SharedRow:
    points = [column.points[digest] for column in columns]
    values: Any = zip(*((point.trial, point.latency_ms, point.loss) for point in points), strict=True)
    return SharedRow(mix_text(assignment), *values)


def _pair(one: TargetColumn, two: TargetColumn) -> Pair:
    both = [digest for digest in one.points if digest in two.points]
    columns = [np.array([column.points[digest].latency_ms for digest in both]) for column in (one, two)]
    return Pair(one.name, two.name, len(both), rank_correlation(*columns))


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]
