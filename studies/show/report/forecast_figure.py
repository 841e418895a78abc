"""Predicted against measured as a figure: latency on the left, loss on the right."""

from __future__ import annotations

import numpy as np

from search.forecast.forecasts import RECENT
from studies.show.plots import BLUE, GREY, Figure, frame, widened
from studies.show.report.rows import Metric
from studies.trials.forecasts import Compared, Forecasts

_EARLIER = "#8fb8dc"


def forecast_figure(found: Forecasts, metric: Metric) -> Figure:
    """Points with their 90 % intervals around the diagonal; losses of a ratio in percentage points."""
    figure = frame("measured latency (ms)", "predicted latency (ms)", height=400)
    other = frame(f"measured {metric.axis_title}", f"predicted {metric.axis_title}", height=400)
    figure.update(showlegend=False, xaxis2=other["xaxis"], yaxis2=other["yaxis"])
    figure["yaxis2"]["anchor"] = "x2"
    figure["xaxis2"]["anchor"] = "y2"
    panels = [(found.latency, "", 1.0, [0.0, 0.44]), (found.loss, "2", metric.axis_factor, [0.56, 1.0])]
    traces = []
    for part, axis, factor, domain in panels:
        ends = _ends(part, factor)
        figure[f"xaxis{axis}"].update(range=ends, domain=domain)
        figure[f"yaxis{axis}"]["range"] = ends
        traces += [{**trace, "xaxis": f"x{axis}", "yaxis": f"y{axis}"} for trace in _traces(part, factor, ends)]
    return {"data": traces, "layout": figure}


def _ends(part: Compared, factor: float) -> list[float] | None:
    """One range for both axes: that of the points, so that a few wide intervals do not press them together."""
    values = factor * np.concatenate([part.predicted, part.measured])
    return widened(float(values.min()), float(values.max())) if len(values) else None


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
