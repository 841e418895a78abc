"""FP32, INT8, the best so far and the last evaluation: what the display of a running search shows below its bar."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from studies.judging.details import mismatch_text
from studies.judging.points import Point
from studies.judging.rounding import (
    estimate_text,
    half_width,
    latency_text,
    least_half,
    rate_text,
    scores_text,
    speedup_text,
    value_text,
)
from studies.judging.sentences.evaluations import failure_text
from studies.judging.sentences.picks import DOUBTFUL
from studies.judging.standing import Standing, best_point
from studies.show.terminal.front_table import BASELINE_STYLE, BEST_STYLE
from studies.show.terminal.text_table import Column, TextTable
from studies.store.records import FAILED, StoredEvaluation


def progress_table(now: Standing, last: int) -> TextTable:
    """One row each, as far as they are known.

    Args:
        last: id of the evaluation that ended just now.
    """
    rows = list(_rows(now, last))
    columns = [
        Column(""),
        Column("trial", right=True),
        Column("latency", right=True),
        Column("× FP32", right=True),
        Column("samples/s", right=True, drop=1),
        Column(now.metric.name, right=True, least=8),
        Column("loss", right=True),
        Column("notes", note=True),
    ]
    shared = least_half(half_width(point.loss_low, point.loss_high) for _, point, _ in rows if point)
    cells = [
        [name, *(_cells(now, point, shared) if point else ["", "none yet", "", "", "", "", ""])]
        for name, point, _ in rows
    ]
    styles = {place: style for place, (_, _, style) in enumerate(rows)}
    return TextTable(columns, cells, key=1, styles=styles).without_empty("notes")


def _rows(now: Standing, last: int) -> Iterator[tuple[str, Point | None, str]]:
    """Name, evaluation and style of each row."""
    for precision, base in now.measures.uniform_rows:
        yield precision.label.upper(), now.point(base), BASELINE_STYLE
    yield "best", best_point(now), BEST_STYLE
    for row in np.flatnonzero(now.table.id == last):
        yield "last", now.point(int(row)), ""


def _cells(now: Standing, point: Point, shared: float) -> list[str]:
    return [
        str(point.trial),
        latency_text(point.latency_ms, now.target.band) or point.status,
        speedup_text(point.speedup, doubtful=point.speedup_doubtful),
        rate_text(point.samples_per_s),
        value_text(point.value, half_width(point.loss_low, point.loss_high) or shared, now.metric),
        estimate_text(point.loss, point.loss_low, point.loss_high, now.metric),
        _note(now, point),
    ]


def _note(now: Standing, point: Point) -> str:
    if point.status == FAILED:
        return failure_text(str(now.table.stage[point.row]), str(now.table.kind[point.row]))
    return "stopped early" if now.measures.stopped_rows[point.row] else ""


def ended_text(record: StoredEvaluation, now: Standing) -> str:
    """How an evaluation ended: `0.83 ms, 2.65 × FP32, top1 95.9 %, loss 0.08 ± 0.15 %`, or where it failed."""
    evaluation = record.evaluation
    if evaluation.failure is not None:
        return failure_text(evaluation.failure.stage.value, evaluation.failure.kind.value)
    accuracy = evaluation.accuracy
    if evaluation.latency is None or accuracy is None:
        return record.status
    parts = [latency_text(evaluation.latency.value_ms, now.target.band)]
    rows = np.flatnonzero(now.table.id == record.id)
    if len(rows) and (speedup := speedup_text(now.measures.speedup(int(rows[0])))):
        parts.append(f"latency {DOUBTFUL}" if now.is_speedup_doubtful(int(rows[0])) else f"{speedup} × FP32")
    parts.append(scores_text(accuracy.value, accuracy.loss, accuracy.loss_low, accuracy.loss_high, now.metric))
    if not accuracy.complete:
        parts.append(f"stopped after {accuracy.samples} of {accuracy.total} samples")
    if wrong := [(row.group, row.got) for row in evaluation.audit if row.got is not None and row.got != row.asked]:
        parts.append(mismatch_text(wrong))
    name = f" ({record.role.partition(':')[2].upper()} baseline)" if record.role else ""
    return f"{', '.join(parts)}{name}"
