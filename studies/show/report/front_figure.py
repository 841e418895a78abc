"""The figure of loss against latency of all evaluations, with front, picks, baselines and limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from search.values import REFERENCE
from studies.judging.findings.optimization_levels import final_level_text
from studies.judging.points import Point
from studies.judging.rounding import latency_text, score_name, shown_score_text
from studies.options.limits import LATENCY_MS, LOSS
from studies.options.quantities import format_bytes, format_elapsed_s, format_ms
from studies.show.plots import BLUE, GREY, ORANGE, RED, Figure, finite, frame, plain, widen_range
from studies.show.report.label_places import Mark, place_labels
from studies.show.report.rows import ReportData, ReportMetric

_LIGHT_BLUE = "#8fb8dc"
_STAR = {"color": BLUE, "size": 18, "symbol": "star", "line": {"color": "white", "width": 1.5}}
_MOST_TICKS = 8
_FAR = 2.5  # how many times the height of the near view all losses may take before they get a strip of their own
_NEAR_DOMAIN, _FAR_DOMAIN = [0.0, 0.72], [0.8, 1.0]
Range = tuple[float, float]


@dataclass(frozen=True)
class View:
    """What the axes show: every measured evaluation has a place.

    Attributes:
        latency: in milliseconds.
        near: losses of the front, the picks and the limit, on the metric's axis.
        far: losses beyond them, in a strip above on a scale of its own; None if one scale shows all.
    """

    latency: Range
    near: Range
    far: Range | None

    def axis_of(self, loss: float) -> str:
        """The axis that a loss is drawn on, by Plotly's name."""
        return "y2" if self.far is not None and loss > self.near[1] else "y"


def front_figure(data: ReportData) -> Figure:
    """Loss against latency of every measured evaluation, with front, picks, baselines and limits."""
    rows = [row for row in data.evaluations if row.is_measured]
    if not rows:
        return {"data": [], "layout": frame("latency (ms)", data.metric.axis_title, height=460)}
    view = view_of(data)
    disobeyed = [row for row in rows if row.mismatch]
    missed = [row for row in rows if not row.feasible and not row.mismatch]
    cross, ring = {"color": GREY, "size": 6, "symbol": "x"}, {"color": GREY, "size": 6, "symbol": "circle-open"}
    groups = [
        ("stopped early", [row for row in missed if not row.complete], ring, False),
        ("did not run as asked", disobeyed, {"color": GREY, "size": 6, "symbol": "triangle-up-open"}, False),
        ("misses a limit", [row for row in missed if row.complete], cross, False),
        ("keeps the limits", [row for row in rows if row.feasible], {"color": _LIGHT_BLUE, "size": 7}, False),
        ("rest of the front", [row for row in data.front if not row.picks], {"color": BLUE, "size": 9}, True),
        ("baselines", [row for row in rows if row.baseline], {"color": ORANGE, "size": 11, "symbol": "diamond"}, True),
        ("picks", [row for row in data.shown if row.picks], _STAR, True),
    ]
    drawn: set[int] = set()
    traces = []
    for name, some, marker, bars in reversed(groups):  # what is drawn last lies on top, and nothing is drawn twice
        rest = [row for row in some if id(row) not in drawn or name == "baselines"]
        drawn.update(id(row) for row in rest)
        traces.append([*_points(data, view, rest, name, marker, bars=bars)])
    ordered = [trace for some in reversed(traces) for trace in some]
    layout = _layout(data, view)
    layout["annotations"] = _labels(data, view)
    return {"data": [_front_line(data), *ordered], "layout": layout}


def view_of(data: ReportData) -> View:
    """Ranges of the axes. There is at least one measured evaluation.

    The near view shows the front, the picks and the limits. What loses much more, all INT8 as a rule, would press them
    into one line, so it is shown in a strip above.
    """
    rows = [row for row in data.evaluations if row.is_measured]
    xs = [row.latency_ms or 0.0 for row in rows]
    if (budget := data.limits.most(LATENCY_MS)) is not None:
        xs.append(budget)
    every = [y for row in rows if (y := data.metric.axis_value(row.loss)) is not None]
    near = [*_near_losses(data), 0.0]
    low, high = min(near), max(near)
    room = high + 0.3 * (high - low)
    baselines = [data.metric.axis_value(row.loss_low) for row in rows if row.baseline]
    top, bottom = max(every), min([low, *every, *(end for end in baselines if end is not None)])
    if high == low or top - bottom <= _FAR * (room - bottom):
        return View(_pair(widen_range(min(xs), max(xs))), _pair(widen_range(bottom, max(top, room))), None)
    far = room, top + 0.3 * (top - room)  # labels of the farthest fit too
    return View(_pair(widen_range(min(xs), max(xs))), _pair((widen_range(bottom, room)[0], room)), far)


def _near_losses(data: ReportData) -> Iterator[float]:
    """The losses of the front and the picks with their intervals, and the one that is allowed."""
    values = [y for row in data.shown for y in (row.loss, row.loss_low, row.loss_high)]
    for value in (*values, data.limits.most(LOSS)):
        if (loss := data.metric.axis_value(value)) is not None:
            yield loss


def _pair(ends: Sequence[float]) -> Range:
    return ends[0], ends[1]


def _points(
    data: ReportData, view: View, rows: Sequence[Point], name: str, marker: dict[str, Any], *, bars: bool
) -> Iterator[Figure]:
    """A trace for each axis that some rows are on; the legend names them once."""
    named = False
    for axis in ("y", "y2"):
        some = [row for row in rows if view.axis_of(_loss(data, row)) == axis]
        if not some:
            continue
        trace: Figure = {
            "type": "scatter",
            "mode": "markers",
            "name": f"{name} ({len(rows)})",
            "legendgroup": name,
            "showlegend": not named,
            "x": [row.latency_ms for row in some],
            "y": [_loss(data, row) for row in some],
            "text": [hover_text(data, row) for row in some],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": marker,
            "yaxis": axis,
            "cliponaxis": False,
            **({"error_y": _error_bars(data, some)} if bars else {}),
        }
        named = True
        yield trace


def _loss(data: ReportData, row: Point) -> float:
    return data.metric.axis_value(row.loss) or 0.0


def _front_line(data: ReportData) -> Figure:
    """The staircase under the front's rows; rows that are on it only as ties are stepped over."""
    steps: list[Point] = []
    for row in data.front:
        if not steps or (row.loss or 0.0) < (steps[-1].loss or 0.0):
            steps.append(row)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [row.latency_ms for row in steps],
        "y": [_loss(data, row) for row in steps],
        "line": {"shape": "hv", "color": BLUE, "width": 1.5},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _error_bars(data: ReportData, rows: Sequence[Point]) -> Figure:
    def reach(row: Point, end: float | None) -> float:
        return abs((data.metric.axis_value(end) or 0.0) - _loss(data, row)) if finite(end) else 0.0

    return {
        "type": "data",
        "symmetric": False,
        "array": [reach(row, row.loss_high) for row in rows],
        "arrayminus": [reach(row, row.loss_low) for row in rows],
        "thickness": 1,
        "width": 3,
        **({} if any(row.picks or row.baseline for row in rows) else {"color": _LIGHT_BLUE}),
    }


def _layout(data: ReportData, view: View) -> Figure:
    layout = frame("latency (ms)", data.metric.axis_title, height=460)
    layout["xaxis"]["range"], layout["yaxis"]["range"] = list(view.latency), list(view.near)
    layout["shapes"] = _limit_lines(data, view)
    if view.far is not None:
        layout["yaxis"]["domain"] = _NEAR_DOMAIN
        axis = {name: value for name, value in layout["yaxis"].items() if name != "title"}
        layout["yaxis2"] = {**axis, "domain": _FAR_DOMAIN, "range": list(view.far), "anchor": "x", "nticks": 3}
    best = next((row.metric_value for row in data.evaluations if row.role == REFERENCE.role), None)
    if data.metric.relative and best is not None:
        layout["yaxis"]["title"] = {**layout["yaxis"]["title"], "text": data.metric.name}
        for name, ends in (("yaxis", view.near), ("yaxis2", view.far)):
            if ends is not None:
                layout[name] |= _value_ticks(data.metric, best, ends)
    return layout


def _value_ticks(metric: ReportMetric, best: float, ends: Range) -> Figure:
    """Some losses of an axis with the values that stand behind them."""
    step = 10 ** math.floor(math.log10(ends[1] - ends[0]))
    step = next(each for each in (step / 5, step / 2, step, 2 * step) if (ends[1] - ends[0]) / each <= _MOST_TICKS)
    losses = [step * place for place in range(math.ceil(ends[0] / step), math.floor(ends[1] / step) + 1)]
    sign = -1 if metric.higher_is_better else 1
    values = [best + sign * loss / metric.axis_factor for loss in losses]
    return {"tickvals": losses, "ticktext": [metric.text(value) for value in values]}


def _limit_lines(data: ReportData, view: View) -> list[Figure]:
    """Lines at the latency budget and at the greatest loss allowed; the legend names them."""
    lines: list[Figure] = []
    budget, allowed = data.limits.most(LATENCY_MS), data.limits.most(LOSS)
    drop = data.metric.axis_value(allowed)
    if budget is not None:
        line = {"color": RED, "width": 1.5, "dash": "dash"}
        at = {"yref": "paper", "x0": budget, "x1": budget, "y0": 0, "y1": 1}
        lines.append({"type": "line", **at, "line": line, "name": f"budget {format_ms(budget)}", "showlegend": True})
    if drop is not None:
        line = {"color": RED, "width": 1.5, "dash": "dot"}
        at = {"xref": "paper", "x0": 0, "x1": 1, "yref": view.axis_of(drop), "y0": drop, "y1": drop}
        name = f"allowed loss {data.metric.text(allowed)}"
        lines.append({"type": "line", **at, "line": line, "name": name, "showlegend": True})
    return lines


def _labels(data: ReportData, view: View) -> list[Figure]:
    """Numbers of the picks and names of the baselines, where they cover no marker and no other label."""
    shown = {row.trial: row for row in data.shown}
    picks = [(shown[pick.trial], str(pick.number), BLUE) for pick in data.numbered_picks if pick.trial in shown]
    bases = [row for row in data.evaluations if row.is_measured and row.baseline]
    named = [*picks, *((row, row.baseline.upper(), ORANGE) for row in bases)]
    marks = [Mark(text, *_place(view, row.latency_ms or 0.0, _loss(data, row))) for row, text, _ in named]
    return [
        {
            "x": row.latency_ms,
            "y": _loss(data, row),
            "yref": view.axis_of(_loss(data, row)),
            "text": f"<b>{plain(text)}</b>",
            "font": {"color": colour, "size": 14},
            "ax": offset[0],
            "ay": offset[1],
            "showarrow": True,
            "arrowhead": 0,
            "arrowwidth": 1,
            "arrowcolor": colour,
            "standoff": 6,
        }
        for (row, text, colour), offset in zip(named, place_labels(marks), strict=True)
    ]


def _place(view: View, latency_ms: float, loss: float) -> tuple[float, float]:
    """Where a point lies in the figure: shares of its width and height, from the upper left."""
    left, right = view.latency
    axis = view.axis_of(loss)
    ends = view.far if axis == "y2" and view.far is not None else view.near
    domain = [0.0, 1.0] if view.far is None else _FAR_DOMAIN if axis == "y2" else _NEAR_DOMAIN
    height = domain[0] + (domain[1] - domain[0]) * (loss - ends[0]) / (ends[1] - ends[0])
    return (latency_ms - left) / (right - left), 1 - height


def hover_text(data: ReportData, row: Point) -> str:
    lines = [f"<b>trial {row.trial}</b> {plain(row.mix)}"]
    if finite(row.latency_ms):
        lines.append(f"latency {latency_text(row.latency_ms)}")
    if finite(row.loss):
        lines.append(f"{score_name(data.metric)} {shown_score_text(row.loss_interval, data.metric)}")
    lines += [] if row.complete else ["accuracy stopped early"]
    lines += [plain(row.mismatch)] if row.mismatch else []
    lines += [f"{row.opaque} groups opaque"] if row.opaque > 0 else []
    lines += [plain(line) for line in _facts(row)]
    return "<br>".join(lines)


def _facts(point: Point) -> Iterator[str]:
    if point.build_s is not None:
        yield f"built in {format_elapsed_s(point.build_s)}"
    if point.size_bytes is not None:
        yield f"size {format_bytes(point.size_bytes)}"
    if point.memory_bytes is not None:
        yield f"memory {format_bytes(point.memory_bytes)}"
    if point.moves is not None:
        yield f"moves {point.moves}"
    yield from (final_level_text(each) for each in point.final_levels)
    if point.final.failure:
        yield "fails on the final data"
