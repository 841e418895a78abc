"""The figure of predicted against measured values."""

from __future__ import annotations

import numpy as np

from search.forecast.forecasts import RECENT
from studies.show.plots import BLUE, GREY, Figure, frame, widen_range
from studies.trials.forecasts import Compared

_EARLIER = "#8fb8dc"


def forecast_figure(found: Compared, title: str, factor: float) -> Figure:
    """Points with their 90 % intervals around the diagonal.

    Args:
        title: of what is forecast, with its unit.
        factor: what values are multiplied by, 100 for percentage points.
    """
    layout = frame(f"measured {title}", f"predicted {title}", height=380)
    ends = _ends(found, factor)
    layout["showlegend"] = False
    layout["xaxis"]["range"] = layout["yaxis"]["range"] = ends
    return {"data": _traces(found, factor, ends), "layout": layout}


def _ends(part: Compared, factor: float) -> list[float] | None:
    """One range for both axes: that of the points, so that a few wide intervals do not press them together."""
    values = factor * np.concatenate([part.predicted, part.measured])
    return widen_range(float(values.min()), float(values.max())) if len(values) else None


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
