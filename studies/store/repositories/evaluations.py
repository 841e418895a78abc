"""Stored evaluations, single or as columns of a target, and their scores on the final split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Text, cast, select

from evaluators.measure.latency_scale import scale_latencies
from search.values import BASELINE, REFERENCE, Accuracy
from studies.store import records
from studies.store.columns import Columns, DetailColumn, Details, EvaluationTable, column_of
from studies.store.database import tables
from studies.store.database.retries import retry
from studies.store.database.transactions import Repository
from studies.store.reading.evaluation_columns import (
    DETAILS,
    JUDGED,
    Arrays,
    detail_column,
    detail_rows,
    judged_columns,
    no_columns,
    renewed_columns,
    revision_of,
)
from studies.store.reading.evaluation_rows import final_failure, read_evaluation
from studies.store.reading.repeats import round_table, rounds_query, usual_baseline
from studies.store.statements import results, table_rows

Row = Any


class Evaluations(Repository):
    """What is stored of evaluations, running and failed ones too."""

    @retry
    def load(self, evaluation_id: int) -> records.StoredEvaluation:
        """Everything stored of an evaluation by its id, as `evaluations` gives it; KeyError when it is gone."""
        with self._database.begin_read("read an evaluation") as connection:
            return read_evaluation(connection, evaluation_id)

    def notes(self, evaluation_id: int) -> tuple[str, ...]:
        """What is noteworthy of an evaluation; nothing where it is gone."""
        e = tables.EvaluationRecord
        return tuple(
            note for row in self._database.rows(select(e.notes).where(e.id == evaluation_id)) for note in row[0] or ()
        )

    @retry
    def find(self, study_target_id: int, digest: str) -> records.StoredEvaluation | None:
        """Everything stored of the evaluation with this digest, running ones too; None when there is none."""
        e = tables.EvaluationRecord
        with self._database.begin_read("look an evaluation up") as connection:
            query = select(e.id).where(e.study_target_id == study_target_id, e.digest == digest)
            evaluation_id = connection.scalar(query)
            return None if evaluation_id is None else read_evaluation(connection, evaluation_id)

    def known(self, study_target_id: int, digests: Sequence[str]) -> frozenset[str]:
        """The digests among these that a target has an evaluation of, running ones too."""
        e = tables.EvaluationRecord
        of_target = select(e.digest).where(e.study_target_id == study_target_id)
        matches = (self._database.rows(of_target.where(e.digest.in_(chunk))) for chunk in table_rows.chunks(digests))
        return frozenset(row.digest for rows in matches for row in rows)

    def table(self, study_target_id: int, known: EvaluationTable | None = None) -> EvaluationTable:
        """All evaluations of one target as columns, running and failed ones too.

        Only what judging needs is read of all of them; the other columns are read when they are asked for.

        Args:
            known: the whole table as it was read before: then only what changed since is read, which is nothing where
                nothing runs and no result, no new measurement and no score was stored.
        """
        columns, again, revision = self._judged_columns(study_target_id, known)
        searched = columns["role"] != records.EXPORT
        own = np.isin(again.evaluation_id, columns["id"][searched])
        reference_ms = usual_baseline(
            columns["baseline_ms"][searched], columns["doubts"][searched], again.baseline_ms[own], again.clean[own]
        )
        latency_ms = scale_latencies(columns["raw_ms"], columns["baseline_ms"], reference_ms)
        details = Details(self._detail_rows, partial(self._detail_column, study_target_id))
        others = {name: DetailColumn(details, name, columns["id"]) for name in DETAILS}
        every: dict[str, Any] = {**columns, **others, "latency_ms": latency_ms}
        return EvaluationTable(**every, reference_ms=reference_ms, details=details, again=again, revision=revision)

    @retry
    def _judged_columns(self, study_target_id: int, known: EvaluationTable | None) -> tuple[Arrays, Columns, int]:
        with self._database.begin_read("read the evaluations") as connection:
            revision, count = revision_of(connection, study_target_id)
            if not count:
                return no_columns(), round_table([]), revision
            if known is None:
                columns = judged_columns(connection, study_target_id)
            else:
                if (revision, count) == (known.revision, len(known)) and records.RUNNING not in known.status:
                    return {name: getattr(known, name) for name in (*JUDGED, "status", "role")}, known.again, revision
                before = {name: getattr(known, name) for name in (*JUDGED, "status", "role")}
                columns = renewed_columns(connection, study_target_id, before, known.revision, count)
            return columns, round_table(connection.execute(rounds_query(study_target_id)).all()), revision

    @retry
    def _detail_rows(self, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        with self._database.begin_read("read evaluations") as connection:
            return detail_rows(connection, ids)

    @retry
    def _detail_column(self, study_target_id: int, name: str) -> tuple[Sequence[int], Sequence[Any]]:
        with self._database.begin_read("read evaluations") as connection:
            return detail_column(connection, study_target_id, name)

    def assignments(self, study_target_id: int, ids: Sequence[int] | None = None) -> records.Assignments:
        """Evaluation id → assignment for one target, or for a few of it; texts are read now, parsed when asked for."""
        e = tables.EvaluationRecord
        query = select(e.id, cast(e.assignment, Text)).where(e.study_target_id == study_target_id).order_by(e.id)
        if ids is not None:
            query = query.where(e.id.in_(list(ids)))
        return records.Assignments({row[0]: row[1] for row in self._database.rows(query)})

    def baselines(self, study_target_id: int) -> tuple[int, ...]:
        """Ids of the uniform assignments' evaluations that went well, oldest first."""
        e = tables.EvaluationRecord
        good = (e.study_target_id == study_target_id, e.status == records.OK, e.role.startswith(BASELINE))
        return tuple(int(row.id) for row in self._database.rows(select(e.id).where(*good).order_by(e.id)))

    def reference_value(self, study_target_id: int) -> float | None:
        """The metric of uniform FP32 on the search split; None before it has been evaluated."""
        e = tables.EvaluationRecord
        float_one = (e.study_target_id == study_target_id, e.status == records.OK, e.role == REFERENCE.role)
        rows = self._database.rows(select(e.metric_value).where(*float_one))
        return next((float(row.metric_value) for row in rows), None)

    def exports(self, study_target_id: int) -> tuple[tables.EvaluationRecord, ...]:
        """What exports built again on one target and went well, oldest first."""
        e = tables.EvaluationRecord
        ok = (e.study_target_id == study_target_id, e.status == records.OK, e.role == records.EXPORT)
        return tuple(e.of(row) for row in self._database.rows(table_rows.select_all(e, *ok).order_by(e.id)))

    def finals(self, study_target_id: int) -> Columns:
        """Scores on the final split of those evaluations of one target that have them or failed there, as columns."""
        s, e = tables.ScoreRecord.__table__, tables.EvaluationRecord
        names = ("evaluation_id", "value", "loss", "loss_low", "loss_high", "samples", "total", "resemblance")
        query = (
            select(*(s.c[name] for name in names), s.c.loss_bounds, s.c.value_bounds, e.notes)
            .join(e, e.id == s.c.evaluation_id)
            .where(e.study_target_id == study_target_id, s.c.split == "final")
            .order_by(s.c.evaluation_id)
        )
        rows = self._database.rows(query)
        failures = np.array([final_failure(row.notes) for row in rows], dtype=np.str_)
        return Columns(
            **_columns(names, [row[:-3] for row in rows]),
            failure=failures,
            loss_bounds=tuple(tuple(row.loss_bounds or ()) for row in rows),
            value_bounds=tuple(tuple(row.value_bounds or ()) for row in rows),
        )

    def mix_biases(self, study_target_id: int) -> tuple[tables.EvaluationRecord, ...]:
        """Evaluations of one target whose biases were corrected for their mix, or were tried to be; oldest first."""
        e = tables.EvaluationRecord
        tried = (e.study_target_id == study_target_id, e.mix_bias.is_not(None))
        return tuple(e.of(row) for row in self._database.rows(table_rows.select_all(e, *tried).order_by(e.id)))

    @retry
    def set_final(self, evaluation_id: int, accuracy: Accuracy) -> None:
        """Store the accuracy on the final split, replacing what is there of it."""
        with self._database.begin_write("store a final score") as connection:
            results.replace_final(connection, evaluation_id, accuracy)

    @retry
    def set_final_failure(self, evaluation_id: int, metric: str, message: str) -> None:
        """Store that it could not be scored on the final split, replacing what is there of it.

        Args:
            metric: name of the metric that it should have been scored by.
            message: why; not empty.
        """
        nothing = Accuracy(metric, math.nan, math.nan, math.nan, math.nan, 0, 0, np.empty(0))
        with self._database.begin_write("store a failure on the final data") as connection:
            results.replace_final(connection, evaluation_id, nothing, message)


def _columns(names: Sequence[str], rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: column_of(name, values) for name, values in zip(names, columns, strict=True)}
