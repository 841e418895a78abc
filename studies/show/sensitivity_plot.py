"""The figure of sensitivities along the network, as one HTML file without network access or external files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluators.diagnose.group_error import GroupError
from search.values import Precision
from studies.judging.findings.sensitivity_table import Sensitivities, text_of
from studies.outputs import check_file
from studies.show.html_parts import plotly_library, write_page
from studies.show.plots import GREY, RED, colour_of, plain

_PANELS = (("error", "error of the outputs"), ("sqnr_db", "SQNR, dB"), ("kl", "KL, nats"), ("overlap", "overlap"))


def check_path(path: Path) -> None:
    """Raises ConfigError where no file can be written at `path`; creates nothing."""
    check_file(path, "--plot")


def write_plot(sensitivities: Sensitivities, path: Path) -> None:
    """Write the page.

    Raises:
        ConfigError: the folder is not there or cannot be written.
        ArtifactError: the file cannot be written.
    """
    figure = sensitivity_figure(sensitivities).to_html(include_plotlyjs=False, full_html=False)
    head = f'<!doctype html><meta charset="utf-8"><script>{plotly_library()}</script>'
    write_page(head + figure, path, "the plot")


def sensitivity_figure(sensitivities: Sensitivities) -> Any:
    """A Plotly figure: error, SQNR, KL and overlap of every group in the order of the graph, red where sensitive."""
    from plotly.subplots import make_subplots

    names = [f"{group.id} {group.name}" for group in sensitivities.groups.values()]
    made = make_subplots(rows=len(_PANELS), cols=1, shared_xaxes=True, vertical_spacing=0.03)
    for precision in sorted({row.precision for row in sensitivities.rows}, reverse=True):
        rows = [row for row in sensitivities.rows if row.precision is precision]
        for panel, (field, title) in enumerate(_PANELS, 1):
            made.add_trace(_marks(sensitivities, rows, precision, field, first=panel == 1), row=panel, col=1)
            made.update_yaxes(title_text=title, row=panel, col=1)
    made.update_yaxes(type="log", row=1, col=1)
    for panel, limit in ((3, sensitivities.thresholds.max_kl), (4, sensitivities.thresholds.min_overlap)):
        made.add_hline(y=limit, line={"color": GREY, "dash": "dot"}, row=panel, col=1)
    ticks = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": [plain(name) for name in names]}
    made.update_xaxes(tickangle=60, row=len(_PANELS), col=1, **ticks)
    made.update_layout(
        title=f"Sensitivity of {plain(sensitivities.of)}: {plain(sensitivities.headline())}",
        template="plotly_white",
        height=1000,
    )
    return made


def _marks(
    sensitivities: Sensitivities, rows: Sequence[GroupError], precision: Precision, field: str, *, first: bool
) -> dict[str, Any]:
    places = {group: place for place, group in enumerate(sensitivities.groups)}
    edges = [RED if sensitivities.reasons(row) else "rgba(0,0,0,0)" for row in rows]
    symbols = ["circle" if row.samples else "circle-open" for row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": precision.label,
        "legendgroup": precision.label,
        "showlegend": first,
        "x": [places[row.group] for row in rows],
        "y": [getattr(row, field) for row in rows],
        "text": [_hover(sensitivities, row) for row in rows],
        "hoverinfo": "text",
        "marker": {
            "color": colour_of(precision.label),
            "size": 9,
            "symbol": symbols,
            "line": {"color": edges, "width": 2},
        },
    }


def _hover(sensitivities: Sensitivities, row: GroupError) -> str:
    shown = text_of(sensitivities.row(row))
    names = ("group", "node", "precision", "error", "flipped", "sqnr_db", "kl", "overlap", "saturated", "verdict")
    return "<br>".join(f"{name.replace('_', ' ')}: {plain(str(shown[name]))}" for name in names if shown[name])
