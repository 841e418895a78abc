"""One HTML file that shows a study: no network, no external files, safe with any name in it.

`ReportData` is plain and independent of the database; whoever reads the store fills it.
"""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search.errors import ArtifactError
from search.values.precision import Precision
from studies.judging.final_levels import final_level_cells, levels_of
from studies.options.config import Limits
from studies.options.quantities import format_bytes, format_metric, format_ms, format_percent
from studies.outputs import check_file
from studies.show.forecast_figure import forecast_figure
from studies.show.plots import BLUE, GREY, ORANGE, RED, Figure, colour_of, frame, plain, widened
from studies.show.report_targets import SideBySide
from studies.store.records import FinalLevel
from studies.trials.forecasts import Forecasts, error_text, ranks_text


@dataclass(frozen=True)
class Metric:
    """What the loss is measured by; values of a `ratio` are shares of one and shown as percentages."""

    name: str
    unit: str = ""
    ratio: bool = False
    higher_is_better: bool = True

    def text(self, value: float | None) -> str:
        return "–" if value is None or not math.isfinite(value) else format_metric(value, self.unit, self.ratio)


@dataclass(frozen=True)
class EvaluationRow:
    """One evaluation; None or NaN where a stage was not reached.

    Attributes:
        trial: the number that users know it by; -1 where no trial asked for it.
        loss_low, loss_high: 95 % interval of the loss.
        role: `baseline:fp32` and the like; empty for a candidate.
        spread: inter-quartile range of the latency samples over their median.
        label: short name, say `all INT8` or `12 int8, 4 fp16`.
        picked: whether it is one of the picks, which need not be on the front.
        complete: whether all samples were seen, not stopped early.
        text: further lines about it for the hover box.
        moves: layers of its engine that only change format or type, and what they take, in words.
        remarks: what is noteworthy of it: doubts about its latency, notes of the builder.
        final_levels: its newest export at each other optimization level.
    """

    trial: int
    status: str
    latency_ms: float | None = None
    value: float | None = None
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    role: str = ""
    feasible: bool = False
    on_front: bool = False
    picked: bool = False
    not_obeyed: int = 0
    opaque: int = 0
    spread: float | None = None
    label: str = ""
    complete: bool = True
    text: str = ""
    moves: str = ""
    remarks: Sequence[str] = ()
    final_levels: Sequence[FinalLevel] = ()

    @property
    def baseline(self) -> bool:
        return self.role.startswith("baseline")

    @property
    def measured(self) -> bool:
        return all(number is not None and math.isfinite(number) for number in (self.latency_ms, self.loss))


@dataclass(frozen=True)
class PickRow:
    """One pick with its score on the final split.

    Attributes:
        unrelated: whether its outputs have nothing in common with FP32's.
        final_low, final_high: 95 % interval that allows for how many were tried there.
        holds: whether the limits hold there; None when not scored, or where there are no limits.
        verdict: the same in words, say `holds surely`.
        tries: how many were looked at there until this one was taken.
        not_sure: the search alone is not sure that it keeps the accuracy limits.
        ties: what it beats by noise alone, in words.
    """

    name: str
    trial: int
    latency_ms: float
    search_loss: float
    final_value: float | None = None
    final_loss: float | None = None
    final_low: float | None = None
    final_high: float | None = None
    holds: bool | None = None
    verdict: str = "not confirmed"
    tries: int = 0
    not_sure: bool = False
    ties: str = ""
    speedup: float | None = None
    opaque: int = 0
    unrelated: bool = False


@dataclass(frozen=True)
class GroupRow:
    """One group, in the order of the graph."""

    id: str
    name: str
    op: str


@dataclass(frozen=True)
class Mismatch:
    """One group of one evaluation that runs in another precision than was asked for."""

    trial: int
    group: str
    name: str
    asked: str
    got: str
    kernel: str


@dataclass(frozen=True)
class FailureRow:
    """One failed evaluation."""

    trial: int
    stage: str
    kind: str
    message: str


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows.

    Attributes:
        target: the target in words, say `onnxruntime 1.31 on AMD EPYC, 1 thread, 20th percentile`.
        samples: how many calibrate, are searched on and are final, with their clusters.
        evaluations: in order of trial; failed ones included.
        precisions: trial of each front evaluation → precision label per group, in the order of `groups`;
            evaluations that no trial asked for are left out.
        opaque: trial → ids of the groups whose precision its engine does not tell, of each front evaluation.
        unbuildable: (group id, name, precision label) that the engine's builder refused on this target.
        audited: (obeyed, not obeyed, opaque) groups, summed over all audited evaluations.
        hypervolume: (trial, volume) after each finished evaluation, in order.
        forecasts: predicted against measured; None where nothing was predicted.
        environment: name → value, flat.
        notes: sentences to show first: a budget nobody met, warnings.
        beside: this target beside others of the study; None where it is shown alone.
        time_spent: seconds, share and what they were spent on, in words, the most first.
        time_text: whose time that is, in words.
        seconds: kind of work → seconds, the most first; for the figure.
    """

    study: str
    target: str
    metric: Metric
    limits: Limits = field(default_factory=Limits)
    model: str = ""
    created: str = ""
    samples: str = ""
    evaluations: Sequence[EvaluationRow] = ()
    picks: Sequence[PickRow] = ()
    groups: Sequence[GroupRow] = ()
    precisions: Mapping[int, Sequence[str]] = field(default_factory=dict)
    opaque: Mapping[int, frozenset[str]] = field(default_factory=dict)
    unbuildable: Sequence[tuple[str, str, str]] = ()
    mismatches: Sequence[Mismatch] = ()
    audited: tuple[int, int, int] = (0, 0, 0)
    failures: Sequence[FailureRow] = ()
    hypervolume: Sequence[tuple[int, float]] = ()
    forecasts: Forecasts | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    beside: SideBySide | None = None
    time_spent: Sequence[tuple[str, str, str]] = ()
    time_text: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def front(self) -> list[EvaluationRow]:
        """The evaluations on the front, fastest first."""
        return [row for row in self.shown if row.on_front]

    @property
    def shown(self) -> list[EvaluationRow]:
        """The evaluations on the front and the picks, fastest first."""
        rows = [row for row in self.evaluations if (row.on_front or row.picked) and row.measured]
        return sorted(rows, key=lambda row: (row.latency_ms or 0.0, row.loss or 0.0, row.trial))


def render(data: ReportData) -> str:
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
        swatches={label: colour_of(label) for label in _labels(data)},
        hidden=_outside(data, _view(data)),
        beyond=len(data.shown) - len(data.front),
        levels=levels_of(row.final_levels for row in data.shown),
        level_cells=final_level_cells,
        shows_moves=any(row.moves for row in data.shown),
        shows_remarks=any(row.remarks for row in data.shown),
    )


def write(data: ReportData, path: Path) -> None:
    """Write the page; `path` is either the old file or the whole new one, never a part.

    Raises:
        ConfigError: the folder is not there or cannot be written, or the path is a folder, device or pipe.
        ArtifactError: the file cannot be written.
    """
    check_file(path, "writing the report")
    text = render(data)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise ArtifactError(
            f"writing the report {path}: {error.strerror}; free the disk or name another path"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def limit_texts(data: ReportData) -> list[str]:
    """The limits in words, such as `latency ≤ 2.5 ms`."""
    limits, metric = data.limits, data.metric
    texts = []
    if limits.latency_budget_ms is not None:
        texts.append(f"latency ≤ {format_ms(limits.latency_budget_ms)}")
    if limits.max_drop is not None:
        texts.append(f"loss of {metric.name} ≤ {metric.text(limits.max_drop)}")
    if limits.accuracy_limit is not None:
        texts.append(f"{metric.name} {'≥' if metric.higher_is_better else '≤'} {metric.text(limits.accuracy_limit)}")
    if limits.max_memory_bytes is not None:
        texts.append(f"memory ≤ {format_bytes(limits.max_memory_bytes)}")
    return texts


def figures(data: ReportData) -> dict[str, Figure]:
    """Plotly figures, as plain JSON values, of what there is data for, in the order of the page."""
    found: dict[str, Figure] = {}
    if data.beside is not None:
        found |= data.beside.figures(_loss_title(data.metric), 100 if data.metric.ratio else 1)
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
    if any(_finite(row.spread) for row in data.evaluations):
        found["spread"] = spread_figure(data)
    return found


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
    view = _view(data)
    layout = frame("latency (ms)", _loss_title(data.metric), height=460)
    layout["xaxis"]["range"], layout["yaxis"]["range"] = view
    layout["shapes"], layout["annotations"] = _limit_lines(data)
    return {"data": [trace for trace in traces if trace["x"]], "layout": layout}


def _loss_title(metric: Metric) -> str:
    unit = "percentage points" if metric.ratio else metric.unit
    return f"loss of {metric.name}" + (f" ({unit})" if unit else "")


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
    labels = _labels(data)
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
    rows = [row for row in data.evaluations if _finite(row.spread)]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [row.trial for row in rows],
        "y": [100 * (row.spread or 0.0) for row in rows],
        "text": [_hover(data, row) for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": BLUE, "size": 6},
    }
    layout = frame("trial", "spread (% of median)", height=260)
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": [points], "layout": layout}


def _points(
    data: ReportData, rows: Sequence[EvaluationRow], name: str, marker: dict[str, Any], *, bars: bool
) -> Figure:
    trace: Figure = {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name} ({len(rows)})",
        "x": [row.latency_ms for row in rows],
        "y": [_axis_loss(data, row.loss) for row in rows],
        "text": [_hover(data, row) for row in rows],
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
        "y": [_axis_loss(data, row.loss) for row in steps],
        "line": {"shape": "hv", "color": BLUE, "width": 1.5},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _error_bars(data: ReportData, rows: Sequence[EvaluationRow]) -> Figure:
    def reach(row: EvaluationRow, end: float | None) -> float:
        return abs((_axis_loss(data, end) or 0.0) - (_axis_loss(data, row.loss) or 0.0)) if _finite(end) else 0.0

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
    budget, drop = data.limits.latency_budget_ms, _axis_loss(data, data.limits.max_drop)
    if budget is not None:
        shapes.append({"type": "line", "yref": "paper", "x0": budget, "x1": budget, "y0": 0, "y1": 1, "line": dash})
        corner = {"x": budget, "y": 0, "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
        notes.append({**note, **corner, "text": f"budget {format_ms(budget)}"})
    if drop is not None:
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": drop, "y1": drop, "line": dash})
        text = f"allowed loss {data.metric.text(data.limits.max_drop)}"
        notes.append(
            {**note, "x": 1, "xref": "paper", "y": drop, "xanchor": "right", "yanchor": "bottom", "text": text}
        )
    return shapes, notes


def _view(data: ReportData) -> tuple[list[float] | None, list[float] | None]:
    """Axis ranges that show the front, the picks and the limits; None (all) when there is neither.

    A few ruined evaluations would otherwise press everything of interest into one line.
    """
    xs = [row.latency_ms or 0.0 for row in data.evaluations if row.measured]
    ys = [y for row in data.shown for y in (row.loss, row.loss_low, row.loss_high) if _finite(y)]
    ys += [data.limits.max_drop] if data.limits.max_drop is not None else []
    if data.limits.latency_budget_ms is not None:
        xs.append(data.limits.latency_budget_ms)
    losses = [y for y in (_axis_loss(data, y) for y in ys) if y is not None]
    if not losses or min(losses) == max(losses):
        return (widened(min(xs), max(xs)) if xs else None), None
    low, high = min([*losses, 0.0]), max(losses)
    return widened(min(xs), max(xs)), widened(low, high + 0.6 * (high - low))


def _outside(data: ReportData, view: tuple[list[float] | None, list[float] | None]) -> int:
    """How many measured evaluations the front figure does not show at first."""
    losses = view[1]
    if losses is None:
        return 0
    shown = (_axis_loss(data, row.loss) or 0.0 for row in data.evaluations if row.measured)
    return sum(not losses[0] <= loss <= losses[1] for loss in shown)


def _hover(data: ReportData, row: EvaluationRow) -> str:
    lines = [f"<b>trial {row.trial}</b> {plain(row.label)}"]
    if _finite(row.latency_ms):
        lines.append(f"latency {format_ms(row.latency_ms or 0.0)}")
    if _finite(row.loss):
        interval = (
            f" ({data.metric.text(row.loss_low)} … {data.metric.text(row.loss_high)})" if _finite(row.loss_low) else ""
        )
        lines.append(f"loss {data.metric.text(row.loss)}{interval}")
    lines += [] if row.complete else ["accuracy stopped early"]
    lines += [f"{row.not_obeyed} groups not obeyed"] if row.not_obeyed > 0 else []
    lines += [f"{row.opaque} groups opaque"] if row.opaque > 0 else []
    lines += [plain(line) for line in row.text.splitlines()]
    return "<br>".join(lines)


def _cell(data: ReportData, row: EvaluationRow, group: int) -> str:
    g = data.groups[group]
    precision = data.precisions[row.trial][group]
    where = f"trial {row.trial}, {format_ms(row.latency_ms or 0.0)}, loss {data.metric.text(row.loss)}"
    hidden = " asked, opaque:" if g.id in data.opaque.get(row.trial, ()) else ""
    return f"<b>{plain(precision)}</b>{hidden} {plain(g.id)} {plain(g.op)}<br>{plain(g.name)}<br>{plain(where)}"


def _labels(data: ReportData) -> list[str]:
    """Precisions on the front and in the picks: known ones from fine to coarse, then others by name."""
    used = {label for row in data.shown for label in data.precisions.get(row.trial, ())}
    known = [precision.label for precision in sorted(Precision)]
    return sorted(used, key=lambda label: (known.index(label) if label in known else len(known), label))


def _steps(colours: Sequence[str]) -> list[list[Any]]:
    """A colour scale of flat steps."""
    n = len(colours)
    return [[end / n, colour] for k, colour in enumerate(colours) for end in (k, k + 1)]


def _axis_loss(data: ReportData, loss: float | None) -> float | None:
    if loss is None or not math.isfinite(loss):
        return None
    return 100 * loss if data.metric.ratio else loss


def _shorten(name: str, most: int = 44) -> str:
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _ms(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else format_ms(value)


def _percent(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else format_percent(value)
