"""The common style of all figures in the report."""

from __future__ import annotations

import html
import math
from typing import Any

from search.values.precision import Precision

Figure = dict[str, Any]

OTHER_COLOUR = "#b0a7c4"
BLUE, ORANGE, GREY, RED, INK = "#1f6fb2", "#d9730d", "#a3abb5", "#b4332a", "#1d2430"


def colour_of(label: str) -> str:
    """The colour of a precision; one for all whose label is none."""
    try:
        return Precision.parse(label).colour
    except ValueError:
        return OTHER_COLOUR


def frame(x: str, y: str, height: int) -> dict[str, Any]:
    """Frame, grid and titles of both axes; height in pixels."""
    axis = {
        "gridcolor": "#e6e9ee",
        "zeroline": False,
        "linecolor": "#c5ccd5",
        "ticks": "outside",
        "tickcolor": "#c5ccd5",
    }
    return {
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 16, "b": 62},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "hoverlabel": {"align": "left", "bgcolor": "white", "bordercolor": "#c5ccd5", "font": {"color": INK}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {**axis, "title": {"text": plain(x), "standoff": 8}},
        "yaxis": {**axis, "title": {"text": plain(y), "standoff": 8}},
    }


def widen_range(low: float, high: float) -> list[float]:
    """An axis range with some room at both ends."""
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return [low - margin, high + margin]


def plain(text: str) -> str:
    """Text that Plotly shows as it is: it reads a little HTML in every label."""
    return html.escape(text, quote=False)


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
