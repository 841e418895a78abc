"""The figures of a report, as Plotly's plain JSON values."""

from __future__ import annotations

import numpy as np

from search.forecast.forecasts import RECENT
from studies.show.plots import BLUE, GREY, Figure, finite, frame, plain, widen_range
from studies.show.report.front_figure import front_figure, hover_text
from studies.show.report.rows import ReportData
from studies.trials.forecasts import Compared


def figures(data: ReportData) -> dict[str, Figure]:
    """Plotly figures by name, as plain JSON values, of what there is data for."""
    by_name: dict[str, Figure] = {}
    if data.beside is not None:
        by_name |= data.beside.figures(data.metric.axis_title, 100 if data.metric.ratio else 1)
    if any(row.is_measured for row in data.evaluations):
        by_name["front"] = front_figure(data)
    if data.hypervolume:
        by_name["hypervolume"] = hypervolume_figure(data)
    if data.forecasts is not None:
        by_name["latency-forecasts"] = forecast_figure(data.forecasts.latency, "latency (ms)", 1.0)
        by_name["loss-forecasts"] = forecast_figure(
            data.forecasts.loss, data.metric.axis_title, data.metric.axis_factor
        )
    if data.seconds:
        by_name["time"] = time_figure(data)
    if any(finite(row.spread) for row in data.evaluations):
        by_name["spread"] = spread_figure(data)
    return by_name


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
    layout["yaxis"].update(rangemode="tozero", automargin=True)
    return {"data": [line], "layout": layout}


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
    layout["yaxis"].update(automargin=True, dtick=1)
    layout["margin"] = {**layout["margin"], "l": 20}
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
    layout["yaxis"].update(rangemode="tozero", automargin=True)
    return {"data": [points], "layout": layout}


_EARLIER = "#8fb8dc"


def forecast_figure(forecasts: Compared, title: str, factor: float) -> Figure:
    """Points with their 90 % intervals around the diagonal.

    Args:
        title: of what is forecast, with its unit.
        factor: what values are multiplied by, 100 for percentage points.
    """
    layout = frame(f"measured {title}", f"predicted {title}", height=380)
    # One range for both axes: that of the points, so that a few wide intervals do not press them together.
    values = factor * np.concatenate([forecasts.predicted, forecasts.measured])
    ends = widen_range(float(values.min()), float(values.max())) if len(values) else None
    layout["showlegend"] = False
    layout["xaxis"]["range"] = layout["yaxis"]["range"] = ends
    return {"data": _traces(forecasts, factor, ends), "layout": layout}


def _traces(part: Compared, factor: float, ends: list[float] | None) -> list[Figure]:
    if ends is None:
        return []
    line = {"color": GREY, "width": 1, "dash": "dash"}
    diagonal = {"type": "scatter", "mode": "lines", "x": ends, "y": ends, "line": line, "hoverinfo": "skip"}
    return [diagonal, _points(part, factor)]


def _points(part: Compared, factor: float) -> Figure:
    reach = [factor * float(half) for half in part.reach]
    earlier = max(0, len(part) - RECENT)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [factor * float(value) for value in part.measured],
        "y": [factor * float(value) for value in part.predicted],
        "error_y": {"type": "data", "array": reach, "thickness": 1, "width": 3, "color": GREY},
        "customdata": [[int(trial), f"{half:.2g}"] for trial, half in zip(part.trial, reach, strict=True)],
        "hovertemplate": "<b>trial %{customdata[0]}</b><br>predicted %{y:.4g} ± %{customdata[1]}"
        "<br>measured %{x:.4g}<extra></extra>",
        "marker": {"color": [_EARLIER] * earlier + [BLUE] * (len(part) - earlier), "size": 7},
    }
