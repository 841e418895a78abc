"""Repeated measurements as columns, and the usual latency of the baseline in all measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from evaluators.measure.latency_scale import reference_of
from studies.store import records
from studies.store.columns import Columns
from studies.store.database import tables
from studies.store.reading.evaluation_columns import number_columns, plain_rows

Row = Any  # SQLAlchemy 2.0 and 2.1 type rows and selects in ways that exclude each other
Query = Any


def rounds_query(study_target_id: int) -> Query:
    """Rows for `round_table`: every round of one target but the first ones."""
    s, e = tables.SampleRecord, tables.EvaluationRecord
    return (
        select(s.evaluation_id, s.round, s.raw_ms, s.baseline_ms, s.warnings)
        .join(e, e.id == s.evaluation_id)
        .where(e.study_target_id == study_target_id, s.round > 0, s.role == "candidate")
        .order_by(s.evaluation_id, s.round)
    )


def round_table(rows: Sequence[Row]) -> Columns:
    """The rows of `rounds_query` as columns."""
    ids, numbers, raw, baseline, warnings = zip(*rows, strict=True) if rows else [()] * 5
    clean = np.array([not each for each in warnings], dtype=bool)
    integers = [np.array(column, dtype=np.int64) for column in (ids, numbers)]
    raw_ms, baseline_ms = (np.array(column, dtype=np.float64) for column in (raw, baseline))
    return Columns(evaluation_id=integers[0], number=integers[1], raw_ms=raw_ms, baseline_ms=baseline_ms, clean=clean)


def usual_baseline(
    baseline_ms: NDArray[Any], doubts: NDArray[Any], again_ms: NDArray[Any], again_clean: NDArray[Any]
) -> float | None:
    """What the baseline usually takes, from what was measured once and what was measured again.

    Evaluations that an export made are left out: what a front says would change with every export.
    """
    return reference_of(np.concatenate([baseline_ms, again_ms]), np.concatenate([doubts == 0, again_clean]))


def read_reference_ms(connection: Connection, study_target_id: int) -> float | None:
    """What the baseline usually takes on a target; None if it has no baseline."""
    e = tables.EvaluationRecord
    searched = e.role != records.EXPORT
    known = (e.study_target_id == study_target_id, e.baseline_ms.is_not(None), searched)
    baseline_ms, doubts = number_columns(plain_rows(connection, select(e.baseline_ms, e.doubts).where(*known)), 2)
    again = round_table(connection.execute(rounds_query(study_target_id).where(searched)).all())
    return usual_baseline(baseline_ms, doubts, again.baseline_ms, again.clean)
