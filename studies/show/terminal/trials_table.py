"""All evaluations of a study as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from studies.judging.points import Point
from studies.judging.sentences.evaluations import kind_text
from studies.judging.standing import Standing
from studies.show.terminal.front_table import points_table
from studies.show.terminal.text_table import TextTable
from studies.store.records import FAILED


def sorted_points(now: Standing, by: str) -> list[Point]:
    """Every evaluation, by `trial`, `latency` or `loss`; those without one last."""
    keys = {
        "trial": now.table.trial[np.arange(len(now.table))],
        "latency": now.measures.latency_ms,
        "loss": now.table.loss,
    }
    return now.points([int(row) for row in np.argsort(keys[by], kind="stable")])


def trials_table(now: Standing, points: Sequence[Point], mixes: Mapping[int, str]) -> TextTable:
    """Evaluations as in the table of the front; of one that failed, at which stage and how is in the notes."""
    table = points_table(now, points, mixes)
    failed = [place for place, point in enumerate(points) if point.status == FAILED]
    if not failed or "notes" not in table.header:
        return table
    at, rows = table.header.index("notes"), [list(row) for row in table.rows]
    for place in failed:
        row = points[place].row
        rows[place][at] = f"failed at {now.table.stage[row]} ({kind_text(str(now.table.kind[row]))})"
    return replace(table, rows=rows)
