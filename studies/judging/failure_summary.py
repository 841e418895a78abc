"""A summary of the failures of a target, if all evaluations failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from studies.store.columns import EvaluationTable
from studies.store.records import FAILED, RUNNING
from studies.store.store import Store

_LONGEST = 300


@dataclass(frozen=True)
class FailureSummary:
    """What the evaluations of a target failed with, where all that are finished did.

    Attributes:
        evaluations: how many.
        stage, kind: what most of them failed at and how.
        count: of those.
        message: of the first of those; its first line.
        trial: that one's number; -1 where it answers none.
    """

    evaluations: int
    stage: str
    kind: str
    count: int
    message: str
    trial: int


def summarize_failures(store: Store, table: EvaluationTable) -> FailureSummary | None:
    """What went wrong where nothing went right; None if any evaluation came through or none is finished."""
    failed = np.flatnonzero(table.status == FAILED)
    if not len(failed) or bool(np.isin(table.status, (FAILED, RUNNING), invert=True).any()):
        return None
    way, count = count_failures(table).most_common(1)[0]
    first = next(int(row) for row in failed if (table.stage[row], table.kind[row]) == way)
    failure = store.evaluations.load(int(table.id[first])).evaluation.failure
    lines = failure.message.strip().splitlines() if failure is not None else []
    message = lines[0][:_LONGEST] if lines else "no message"
    return FailureSummary(len(failed), *way, count, message, int(table.trial[first]))


def count_failures(table: EvaluationTable) -> Counter[tuple[str, str]]:
    """(stage, kind) → how many evaluations failed so."""
    failed = table.status == FAILED
    return Counter((str(stage), str(kind)) for stage, kind in zip(table.stage[failed], table.kind[failed], strict=True))
