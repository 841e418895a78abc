"""Rendering the report as one HTML file without network or external files, safe with any names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from studies.judging.findings.device_table import device_cells, device_header
from studies.judging.findings.optimization_levels import final_level_cells, levels_of
from studies.judging.findings.rescue_table import seconds_text, won_back_text
from studies.judging.rounding import half_width, latency_text, rate_text, score_name, shown_score_text, value_text
from studies.options.quantities import format_percent
from studies.outputs import check_file
from studies.show.html_parts import plotly_library, write_page
from studies.show.plots import BLUE, ORANGE, RED, colour_of
from studies.show.report.figures import figures
from studies.show.report.front_figure import view_of
from studies.show.report.layers import labels_of, precision_map
from studies.show.report.rows import ReportData
from studies.trials.forecasts import error_text, ranks_text

_NUMBERS_OF_LAYERS = {
    "error": "error",
    "flipped": "classes flipped",
    "sqnr_db": "SQNR",
    "mse": "MSE",
    "kl": "KL",
    "weight_kl": "KL of weights",
    "overlap": "overlap",
    "saturated": "saturated",
    "tails": "beyond 4 σ",
    "peak": "farthest",
    "channel_ratio": "widest channel ÷ median",
}
_MOST_LAYERS = 300  # rows: with all of a thousand layers the table would be most of the file


def render_report(data: ReportData) -> str:
    """The whole HTML page.

    Raises:
        ValueError: a front evaluation whose precisions do not match the groups one to one.
    """
    import jinja2

    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    scale = data.metric
    environment.filters["breakable"] = _breakable
    environment.filters.update(
        ms=partial(latency_text, missing="–"),
        rate=partial(rate_text, missing="–"),
        percent=_percent_text,
        metric=scale.text,
        ranks=ranks_text,
        error=error_text,
        won_back=partial(won_back_text, missing="–"),
        numbers=_numbers_text,
        seconds=partial(seconds_text, missing="–"),
    )
    template = environment.get_template("report.html.jinja")
    return template.render(
        data=data,
        figures=figures(data),
        plotly=plotly_library(),
        inks={BLUE: "--accent", RED: "--red", ORANGE: "--warn"},
        limits=limit_texts(data),
        map=precision_map(data),
        most_layers=_MOST_LAYERS,
        swatches={label: colour_of(label) for label in labels_of(data)},
        final_value=lambda final: value_text(final.value, half_width(final.low, final.high), scale, missing="–"),
        beyond=len(data.shown) - len(data.front),
        device_header=device_header(data.metric),
        device_rows=device_cells(data.beside.devices, data.metric) if data.beside is not None else [],
        strip=any(row.is_measured for row in data.evaluations) and view_of(data).far is not None,
        score_name=score_name(scale),
        score_text=lambda estimate: shown_score_text(estimate, scale, missing="–"),
        levels=levels_of(row.final_levels for row in data.shown),
        level_cells=final_level_cells,
        shows_moves=any(data.moves.values()),
    )


def _numbers_text(row: Mapping[str, Any]) -> str:
    """All that was measured of a layer: `error 0.0963, SQNR 5.8 dB, …`."""
    return ", ".join(f"{head} {row[name]}" for name, head in _NUMBERS_OF_LAYERS.items() if row[name] != "")


def _breakable(name: str) -> Markup:
    """A node's name, which may be broken behind each of its slashes."""
    return Markup("/<wbr>").join(name.split("/"))


def write_report(data: ReportData, path: Path) -> None:
    """Write the page; `path` is either the old file or the whole new one, never a part.

    Raises:
        ConfigError: the folder is not there or cannot be written, or the path is a folder, device or pipe.
        ArtifactError: the file cannot be written.
    """
    check_file(path, "writing the report")  # before the work
    write_page(render_report(data), path, "the report")


def limit_texts(data: ReportData) -> list[str]:
    """The limits in words, such as `latency ≤ 2.5 ms`."""
    return [limit.text(bound, data.metric) for limit, bound in data.limits.rows()]


def _percent_text(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else format_percent(value)
