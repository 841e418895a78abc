"""All evaluations of a study as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from studies.judging.points import Point
from studies.judging.sentences.evaluations import failure_text
from studies.judging.standing import Standing
from studies.show.terminal.front_table import point_notes, points_table
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
    return points_table(now, points, mixes, _trial_notes)


def _trial_notes(now: Standing, point: Point) -> Iterator[str]:
    if point.status == FAILED:
        yield failure_text(str(now.table.stage[point.row]), str(now.table.kind[point.row]))
    else:
        yield from point_notes(now, point)
