"""One HTML file that shows a study: no network, no external files, safe with any name in it."""

from __future__ import annotations

import math
from pathlib import Path

from studies.judging.findings.device_table import device_cells, device_header
from studies.judging.findings.optimization_levels import final_level_cells, levels_of
from studies.judging.findings.rescue_table import HEADER
from studies.options.quantities import format_ms, format_percent
from studies.outputs import check_file
from studies.show.html_file import write_page
from studies.show.plots import colour_of
from studies.show.report.figures import figures, labels_of
from studies.show.report.front_figure import count_outside, first_view
from studies.show.report.rows import ReportData
from studies.trials.forecasts import error_text, ranks_text


def render_report(data: ReportData) -> str:
    """The whole HTML page.

    Raises:
        ValueError: a front evaluation whose precisions do not match the groups one to one.
    """
    import jinja2
    from plotly.offline import get_plotlyjs

    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters.update(ms=_ms, percent=_percent, metric=data.metric.text, ranks=ranks_text, error=error_text)
    # A closing tag inside the library would end the script; none is there today.
    library = get_plotlyjs().replace("</script", "<\\/script")
    template = environment.get_template("report.html.jinja")
    return template.render(
        data=data,
        figures=figures(data),
        plotly=library,
        limits=limit_texts(data),
        swatches={label: colour_of(label) for label in labels_of(data)},
        hidden=count_outside(data, first_view(data)),
        beyond=len(data.shown) - len(data.front),
        device_header=device_header(data.metric),
        device_rows=device_cells(data.beside.devices, data.metric) if data.beside is not None else [],
        rescue_header=HEADER,
        levels=levels_of(row.final_levels for row in data.shown),
        level_cells=final_level_cells,
        shows_moves=any(row.moves for row in data.shown),
        shows_remarks=any(row.remarks for row in data.shown),
    )


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


def _ms(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else format_ms(value)


def _percent(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else format_percent(value)
