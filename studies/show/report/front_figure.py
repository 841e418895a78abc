"""Loss against latency of all evaluations of a study, with its front, its baselines and the limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studies.options.limits import LATENCY_MS, LOSS
from studies.options.quantities import format_ms
from studies.show.plots import BLUE, GREY, ORANGE, RED, Figure, finite, frame, plain, widened
from studies.show.report.rows import EvaluationRow, ReportData


def front_figure(data: ReportData) -> Figure:
    """Loss against latency of every measured evaluation, with the front, the baselines and the limits."""
    rows = [row for row in data.evaluations if row.measured]
    others = [row for row in rows if not row.on_front and not row.baseline]
    good, bad = [row for row in others if row.feasible], [row for row in others if not row.feasible]
    traces = [
        _points(data, bad, "misses a limit", {"color": GREY, "size": 5, "symbol": "x"}, bars=False),
        _points(data, good, "keeps the limits", {"color": "#8fb8dc", "size": 7}, bars=False),
        _front_line(data),
        _points(data, data.front, "front", {"color": BLUE, "size": 9}, bars=True),
        _baseline_points(data, [row for row in rows if row.baseline]),
    ]
    view = first_view(data)
    layout = frame("latency (ms)", data.metric.axis_title, height=460)
    layout["xaxis"]["range"], layout["yaxis"]["range"] = view
    layout["shapes"], layout["annotations"] = _limit_lines(data)
    return {"data": [trace for trace in traces if trace["x"]], "layout": layout}


def _points(
    data: ReportData, rows: Sequence[EvaluationRow], name: str, marker: dict[str, Any], *, bars: bool
) -> Figure:
    trace: Figure = {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name} ({len(rows)})",
        "x": [row.latency_ms for row in rows],
        "y": [data.metric.axis_value(row.loss) for row in rows],
        "text": [hover_text(data, row) for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": marker,
    }
    if bars:
        trace["error_y"] = _error_bars(data, rows)
    return trace


def _baseline_points(data: ReportData, rows: Sequence[EvaluationRow]) -> Figure:
    trace = _points(data, rows, "uniform baselines", {"color": ORANGE, "size": 10, "symbol": "diamond"}, bars=True)
    labels = [plain(row.label or row.role.partition(":")[2] or row.role) for row in rows]
    # Labels point inward, so that the frame does not cut the one of the slowest.
    slowest = max((row.latency_ms or 0.0 for row in data.evaluations if row.measured), default=0.0)
    sides = ["top left" if (row.latency_ms or 0.0) > 0.85 * slowest else "top right" for row in rows]
    texts = {
        "texttemplate": "%{customdata}",
        "customdata": labels,
        "textposition": sides,
        "textfont": {"color": ORANGE},
    }
    return {**trace, **texts, "mode": "markers+text"}


def _front_line(data: ReportData) -> Figure:
    """The staircase under the front's rows; rows that are on it only as ties are stepped over."""
    steps: list[EvaluationRow] = []
    for row in data.front:
        if not steps or (row.loss or 0.0) < (steps[-1].loss or 0.0):
            steps.append(row)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [row.latency_ms for row in steps],
        "y": [data.metric.axis_value(row.loss) for row in steps],
        "line": {"shape": "hv", "color": BLUE, "width": 1.5},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _error_bars(data: ReportData, rows: Sequence[EvaluationRow]) -> Figure:
    def reach(row: EvaluationRow, end: float | None) -> float:
        return (
            abs((data.metric.axis_value(end) or 0.0) - (data.metric.axis_value(row.loss) or 0.0))
            if finite(end)
            else 0.0
        )

    return {
        "type": "data",
        "symmetric": False,
        "array": [reach(row, row.loss_high) for row in rows],
        "arrayminus": [reach(row, row.loss_low) for row in rows],
        "thickness": 1,
        "width": 3,
    }


def _limit_lines(data: ReportData) -> tuple[list[Figure], list[Figure]]:
    """Dashed lines, with their names, at the latency budget and at the greatest loss allowed."""
    dash = {"color": RED, "width": 1.2, "dash": "dash"}
    note = {"showarrow": False, "font": {"color": RED, "size": 12}}
    shapes: list[Figure] = []
    notes: list[Figure] = []
    budget, allowed = data.limits.most(LATENCY_MS), data.limits.most(LOSS)
    drop = data.metric.axis_value(allowed)
    if budget is not None:
        shapes.append({"type": "line", "yref": "paper", "x0": budget, "x1": budget, "y0": 0, "y1": 1, "line": dash})
        corner = {"x": budget, "y": 0, "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
        notes.append({**note, **corner, "text": f"budget {format_ms(budget)}"})
    if drop is not None:
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": drop, "y1": drop, "line": dash})
        text = f"allowed loss {data.metric.text(allowed)}"
        notes.append(
            {**note, "x": 1, "xref": "paper", "y": drop, "xanchor": "right", "yanchor": "bottom", "text": text}
        )
    return shapes, notes


def first_view(data: ReportData) -> tuple[list[float] | None, list[float] | None]:
    """Axis ranges that show the front, the picks and the limits; None (all) when there is neither.

    A few ruined evaluations would otherwise press everything of interest into one line.
    """
    xs = [row.latency_ms or 0.0 for row in data.evaluations if row.measured]
    ys = [y for row in data.shown for y in (row.loss, row.loss_low, row.loss_high) if finite(y)]
    ys.append(data.limits.most(LOSS))
    if (budget := data.limits.most(LATENCY_MS)) is not None:
        xs.append(budget)
    losses = [y for y in (data.metric.axis_value(y) for y in ys) if y is not None]
    if not losses or min(losses) == max(losses):
        return (widened(min(xs), max(xs)) if xs else None), None
    low, high = min([*losses, 0.0]), max(losses)
    return widened(min(xs), max(xs)), widened(low, high + 0.6 * (high - low))


def count_outside(data: ReportData, view: tuple[list[float] | None, list[float] | None]) -> int:
    """How many measured evaluations the front figure does not show at first."""
    losses = view[1]
    if losses is None:
        return 0
    shown = (data.metric.axis_value(row.loss) or 0.0 for row in data.evaluations if row.measured)
    return sum(not losses[0] <= loss <= losses[1] for loss in shown)


def hover_text(data: ReportData, row: EvaluationRow) -> str:
    lines = [f"<b>trial {row.trial}</b> {plain(row.label)}"]
    if finite(row.latency_ms):
        lines.append(f"latency {format_ms(row.latency_ms or 0.0)}")
    if finite(row.loss):
        interval = (
            f" ({data.metric.text(row.loss_low)} … {data.metric.text(row.loss_high)})" if finite(row.loss_low) else ""
        )
        lines.append(f"loss {data.metric.text(row.loss)}{interval}")
    lines += [] if row.complete else ["accuracy stopped early"]
    lines += [f"{row.not_obeyed} groups not obeyed"] if row.not_obeyed > 0 else []
    lines += [f"{row.opaque} groups opaque"] if row.opaque > 0 else []
    lines += [plain(line) for line in row.text.splitlines()]
    return "<br>".join(lines)
