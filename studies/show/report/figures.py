"""The figures of a report, as Plotly's plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from search.values.precision import Precision
from studies.options.quantities import format_ms
from studies.show.plots import BLUE, Figure, colour_of, finite, frame, plain
from studies.show.report.forecast_figure import forecast_figure
from studies.show.report.front_figure import front_figure, hover_text
from studies.show.report.rows import EvaluationRow, ReportData


def figures(data: ReportData) -> dict[str, Figure]:
    """Plotly figures, as plain JSON values, of what there is data for, in the order of the page."""
    found: dict[str, Figure] = {}
    if data.beside is not None:
        found |= data.beside.figures(data.metric.axis_title, 100 if data.metric.ratio else 1)
    if any(row.measured for row in data.evaluations):
        found["front"] = front_figure(data)
    if data.hypervolume:
        found["hypervolume"] = hypervolume_figure(data)
    if data.forecasts is not None:
        found["forecasts"] = forecast_figure(data.forecasts, data.metric)
    if data.groups and any(row.trial in data.precisions for row in data.shown):
        found["precisions"] = precision_figure(data)
    if data.seconds:
        found["time"] = time_figure(data)
    if any(finite(row.spread) for row in data.evaluations):
        found["spread"] = spread_figure(data)
    return found


def hypervolume_figure(data: ReportData) -> Figure:
    """Hypervolume after each finished evaluation."""
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [trial for trial, _ in data.hypervolume],
        "y": [volume for _, volume in data.hypervolume],
        "line": {"shape": "hv", "color": BLUE, "width": 2},
        "hovertemplate": "trial %{x}: %{y:.4g}<extra></extra>",
    }
    layout = frame("trial", "hypervolume", height=260)
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": [line], "layout": layout}


def precision_figure(data: ReportData) -> Figure:
    """Groups in graph order, first on top, against evaluations on the front or picked, fastest on the left."""
    rows = [row for row in data.shown if row.trial in data.precisions]
    for row in rows:
        if len(data.precisions[row.trial]) != len(data.groups):
            raise ValueError(f"report: trial {row.trial} has precisions of other groups than the study")
    labels = labels_of(data)
    names = [f"{group.id} {_shorten(group.name)}" for group in data.groups]
    shown = [plain(name) for name in names]
    heatmap = {
        "type": "heatmap",
        "x": [f"#{row.trial}" for row in rows],
        "y": shown,
        "z": [[labels.index(data.precisions[row.trial][g]) for row in rows] for g in range(len(data.groups))],
        "text": [[_cell(data, row, g) for row in rows] for g in range(len(data.groups))],
        "hovertemplate": "%{text}<extra></extra>",
        "colorscale": _steps([colour_of(label) for label in labels]),
        "zmin": -0.5,
        "zmax": len(labels) - 0.5,
        "showscale": False,
        "xgap": 2,
        "ygap": 1,
    }
    layout = frame("front and picks, fastest first (trial)", "", height=110 + 17 * len(data.groups))
    layout["xaxis"].update(type="category", showgrid=False)
    # Every group is named, however many there are: the figure grows with them.
    layout["yaxis"].update(
        type="category", autorange="reversed", showgrid=False, automargin=True, dtick=1, tickfont={"size": 11}
    )
    return {"data": [heatmap, *_opaque_marks(data, rows, shown)], "layout": layout}


def _opaque_marks(data: ReportData, rows: Sequence[EvaluationRow], names: Sequence[str]) -> list[Figure]:
    """A question mark on every group that its engine does not show; the colour is what was asked."""
    places = [
        (f"#{row.trial}", name)
        for row in rows
        for group, name in zip(data.groups, names, strict=True)
        if group.id in data.opaque.get(row.trial, ())
    ]
    marks = {"type": "scatter", "mode": "text", "text": "?", "hoverinfo": "skip", "showlegend": False}
    return [{**marks, "x": [x for x, _ in places], "y": [y for _, y in places]}] if places else []


def time_figure(data: ReportData) -> Figure:
    """Seconds by kind of work, the most on top."""
    kinds = list(data.seconds)[::-1]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [data.seconds[kind] for kind in kinds],
        "y": [plain(kind) for kind in kinds],
        "hovertemplate": "%{y}: %{x:.1f} s<extra></extra>",
        "marker": {"color": BLUE},
    }
    layout = frame("seconds", "", height=120 + 24 * len(kinds))
    layout["margin"] = {**layout["margin"], "l": 110}
    return {"data": [bars], "layout": layout}


def spread_figure(data: ReportData) -> Figure:
    """Inter-quartile range over median of the latency samples of each evaluation."""
    rows = [row for row in data.evaluations if finite(row.spread)]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [row.trial for row in rows],
        "y": [100 * (row.spread or 0.0) for row in rows],
        "text": [hover_text(data, row) for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": BLUE, "size": 6},
    }
    layout = frame("trial", "spread (% of median)", height=260)
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": [points], "layout": layout}


def _cell(data: ReportData, row: EvaluationRow, group: int) -> str:
    g = data.groups[group]
    precision = data.precisions[row.trial][group]
    where = f"trial {row.trial}, {format_ms(row.latency_ms or 0.0)}, loss {data.metric.text(row.loss)}"
    hidden = " asked, opaque:" if g.id in data.opaque.get(row.trial, ()) else ""
    return f"<b>{plain(precision)}</b>{hidden} {plain(g.id)} {plain(g.op)}<br>{plain(g.name)}<br>{plain(where)}"


def labels_of(data: ReportData) -> list[str]:
    """Precisions on the front and in the picks: known ones from fine to coarse, then others by name."""
    used = {label for row in data.shown for label in data.precisions.get(row.trial, ())}
    known = [precision.label for precision in sorted(Precision)]
    return sorted(used, key=lambda label: (known.index(label) if label in known else len(known), label))


def _steps(colours: Sequence[str]) -> list[list[Any]]:
    """A colour scale of flat steps."""
    n = len(colours)
    return [[end / n, colour] for k, colour in enumerate(colours) for end in (k, k + 1)]


def _shorten(name: str, most: int = 44) -> str:
    return name if len(name) <= most else f"…{name[1 - most :]}"
