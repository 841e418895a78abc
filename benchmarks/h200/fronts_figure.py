"""The searches of real networks as SVG: front, share of the best-known hypervolume over trials, and over minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.h200.fronts import LABELS, Row, counts
from benchmarks.svg import document, legend_entry

COLOURS = {"fresh": "#0b6e4f", "study": "#5bb98c", "tpe": "#d1495b", "nsga2": "#30638e", "mixes": "#999999"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP, _ROW, _LEGEND = 380, 250, 60, 40, 70, 340, 60
_MARGIN = 0.04
_NEAR = 1.6  # the front panel reaches so many times as far as the best-known front does

Points = Sequence[tuple[float, float]]


class Panel:
    """A frame with linear axes; x and y are of the data.

    Args:
        x, y: what the axes span.
    """

    def __init__(self, left: float, top: float, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._left, self._top, self._x, self._y = left, top, x, y

    def at(self, x: float, y: float) -> tuple[float, float]:
        (x0, x1), (y0, y1) = self._x, self._y
        return self._left + _WIDTH * (x - x0) / (x1 - x0), self._top + _HEIGHT * (1 - (y - y0) / (y1 - y0))

    def holds(self, x: float, y: float) -> bool:
        return self._x[0] <= x <= self._x[1] and self._y[0] <= y <= self._y[1]

    def frame(self, title: str, x_label: str, x_format: str, y_format: str) -> str:
        bottom, right = self._top + _HEIGHT, self._left + _WIDTH
        parts = [f'<text x="{self._left}" y="{self._top - 12}" font-weight="bold">{escape(title)}</text>']
        for tick in _ticks(*self._y):
            y = self.at(self._x[0], tick)[1]
            parts.append(f'<line x1="{self._left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            text = format(tick, y_format)
            parts.append(f'<text x="{self._left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for tick in _ticks(*self._x):
            x = self.at(tick, self._y[0])[0]
            parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:{x_format}}</text>')
        middle = self._left + _WIDTH / 2
        parts.append(f'<text x="{middle}" y="{bottom + 34}" text-anchor="middle">{escape(x_label)}</text>')
        return "\n".join(parts)

    def line(self, points: Points, colour: str, width: float = 2.0, dashed: bool = False) -> str:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))
        dash = ' stroke-dasharray="5 3"' if dashed else ""
        return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>'

    def dots(self, points: Points, colour: str) -> str:
        kept = [self.at(*point) for point in points if self.holds(*point)]
        return "\n".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}" opacity="0.6"/>' for x, y in kept)


def svg(found: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Sequence[Row]], names: Mapping[str, str]) -> str:
    """A row of three panels for each network, and a legend below."""
    parts = []
    for number, (name, each) in enumerate(found.items()):
        top = _TOP + number * _ROW
        title = names.get(name, name)
        parts += [_front(each, rows[name], top, title), _over_trials(each, top), _over_minutes(each, top)]
    bottom = _TOP + len(found) * _ROW
    there = [source for source in LABELS if any(source in each["searches"] for each in found.values())]
    for place, source in enumerate(there):
        parts.append(legend_entry(_LEFT + place * 260, bottom, LABELS[source], COLOURS[source]))
    parts.append(legend_entry(_LEFT + len(there) * 260, bottom, "best known", "#000000"))
    width, height = _LEFT + 3 * _WIDTH + 2 * _GAP + 30, bottom + _LEGEND
    return document(width, height, parts)


def _front(each: Mapping[str, Any], rows: Sequence[Row], top: float, title: str) -> str:
    """Evaluations near the front; a thin grey line joins what several processes measured of the same mix."""
    best = [(ms, 100 * max(loss, 0.0)) for ms, loss, *_ in each["best"]["points"]]
    low, high = best[0][0], best[-1][0]
    reach = min(each["reference"]["ms"], low + _NEAR * max(high - low, 0.1 * low))
    panel = Panel(_LEFT, top, (low - _MARGIN * (reach - low), reach), (-0.3, 100 * each["reference"]["loss"]))
    parts = [panel.frame(f"{title}: front", "latency in ms; loss of top-1 in points upwards", ".3f", ".1f")]
    parts += [panel.line(points, "#bbbbbb", 1.0) for points in _again(rows) if all(panel.holds(*p) for p in points)]
    for source in COLOURS:
        dots = [_place(row) for row in rows if row["source"] == source and counts(row)]
        parts.append(panel.dots(dots, COLOURS[source]))
    parts.append(panel.line(_stairs(best, 100 * each["reference"]["loss"], reach), "#000000", 1.2))
    return "\n".join(parts)


def _again(rows: Sequence[Row]) -> list[Points]:
    by_mix: dict[str, dict[str, tuple[float, float]]] = {}
    for row in rows:
        if counts(row):
            by_mix.setdefault(row["a"], {}).setdefault(row["source"], _place(row))
    return [sorted(places.values()) for places in by_mix.values() if len(places) > 1]


def _place(row: Row) -> tuple[float, float]:
    return row["lat"], 100 * max(row["loss"], 0.0)


def _stairs(points: Points, worst: float, right: float) -> Points:
    corners = [(points[0][0], worst)]
    for ms, loss in points:
        corners += [(ms, corners[-1][1]), (ms, loss)]
    return [*corners, (right, corners[-1][1])]


def _over_trials(each: Mapping[str, Any], top: float) -> str:
    searches = each["searches"]
    last = max(search["evaluations"] for search in searches.values())
    curves = {source: (search["trials"], search["evaluations"]) for source, search in searches.items()}
    return _shares(curves, top, 1, last, "share of the best-known hypervolume", "evaluations")


def _over_minutes(each: Mapping[str, Any], top: float) -> str:
    curves = {
        source: ([[s / 60, share] for s, share in search["seconds"]], search["wall_s"] / 60)
        for source, search in each["searches"].items()
        if search["seconds"]
    }
    last = max((end for _, end in curves.values()), default=1.0)
    return _shares(curves, top, 2, last, "the same over time", "minutes from the start of the command")


def _shares(curves: Mapping[str, Any], top: float, column: int, last: float, title: str, x_label: str) -> str:
    least = min((share for steps, _ in curves.values() for x, share in steps if share > 0), default=0.0)
    low = max(0.0, np.floor(10 * least - 1) / 10)
    panel = Panel(_LEFT + column * (_WIDTH + _GAP), top, (0.0, last), (float(low), 1.0))
    parts = [panel.frame(title, x_label, "g", ".0%")]
    for source, (steps, end) in curves.items():
        points = [(x, share) for x, share in steps if share >= low]
        walked = [p for left, right in pairwise(points) for p in (left, (right[0], left[1]))]
        parts.append(panel.line([*walked, points[-1], (end, points[-1][1])], COLOURS[source]))
    return "\n".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    step = 10.0 ** np.floor(np.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (factor * step) <= 6)
    return [round(float(k * step), 10) for k in range(int(np.ceil(low / step - 1e-9)), int(high / step + 1e-9) + 1)]
