"""Reading one evaluation from its rows in all tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from evaluators.measure.latency_scale import baseline_doubt, scale_latencies
from search.values import (
    Accuracy,
    AuditRow,
    EngineSummary,
    Evaluation,
    Failure,
    FailureKind,
    Latency,
    Stage,
)
from studies.store import records
from studies.store.database import tables
from studies.store.reading.repeats import read_reference_ms
from studies.store.statements.table_rows import select_all

Row = Any


def read_evaluation(connection: Connection, evaluation_id: int) -> records.StoredEvaluation:
    e, t, s = tables.EvaluationRecord, tables.TrialRecord, tables.ScoreRecord
    row = connection.execute(select_all(e, e.id == evaluation_id)).one_or_none()
    if row is None:
        raise KeyError(evaluation_id)
    trials = connection.scalars(select(t.number).where(t.evaluation_id == evaluation_id).order_by(t.number)).all()
    scores = {r.split: _accuracy(r) for r in connection.execute(select_all(s, s.evaluation_id == evaluation_id))}
    reference_ms = None if row.baseline_ms is None else read_reference_ms(connection, row.study_target_id)
    rounds, final = _rounds(connection, evaluation_id, reference_ms), scores.get("final")
    return records.StoredEvaluation(
        **row._mapping,
        trial=trials[0] if trials else None,
        trials=tuple(trials),
        evaluation=_read_measures(row, _audit(connection, evaluation_id), rounds, scores.get("search")),
        rounds=rounds,
        final=final if final is not None and final.samples else None,
        final_failure=final_failure(row.notes),
    )


def read_stored(connection: Connection, evaluation_id: int, evaluation: Evaluation) -> records.StoredEvaluation:
    """What is stored of a result that was just stored, of which only the row and its trials are read."""
    e, t = tables.EvaluationRecord, tables.TrialRecord
    row = connection.execute(select_all(e, e.id == evaluation_id)).one()
    trials = connection.scalars(select(t.number).where(t.evaluation_id == evaluation_id).order_by(t.number)).all()
    return records.StoredEvaluation(
        **row._mapping,
        trial=trials[0] if trials else None,
        trials=tuple(trials),
        evaluation=replace(evaluation, artifact=None, profile=()),
        rounds=() if evaluation.latency is None else (records.Round(0, evaluation.latency),),
        final=None,
        final_failure="",
    )


def final_failure(notes: Sequence[str] | None) -> str:
    """Why an evaluation could not be scored on the final split; empty if nothing says so."""
    return next((note.removeprefix(records.OF_FINAL) for note in notes or () if note.startswith(records.OF_FINAL)), "")


def _read_measures(
    row: Row, audit: tuple[AuditRow, ...], rounds: Sequence[records.Round], accuracy: Accuracy | None
) -> Evaluation:
    failure = None
    if row.status == records.FAILED:
        failure = failure_of(row.stage, row.kind, row.message, row.log)
    return Evaluation(
        assignment=row.assignment,
        failure=failure,
        audit=audit,
        latency=next((r.latency for r in rounds if r.number == 0), None),
        accuracy=accuracy,
        notes=tuple(note for note in row.notes or () if not note.startswith(records.OF_FINAL)),
        engine=None if row.engine is None else EngineSummary(**row.engine),
        stage_s=row.stage_s or {},
        deaths=tuple(failure_of(**death) for death in row.deaths or ()),
        **{name: getattr(row, name) for name in ("size_bytes", "memory_bytes", "build_s", "total_s", "attempts")},
    )


def failure_of(stage: str, kind: str, message: str | None, log: str | None) -> Failure:
    return Failure(Stage(stage), FailureKind(kind), message or "", log or "")


def _audit(connection: Connection, evaluation_id: int) -> tuple[AuditRow, ...]:
    a = tables.AuditRecord
    rows = connection.execute(select_all(a, a.evaluation_id == evaluation_id).order_by(a.group))
    return tuple(audit_row(row) for row in rows)


def audit_row(row: Row) -> AuditRow:
    return AuditRow(row.group, row.asked, row.got, row.kernel, row.details or {})


def _rounds(connection: Connection, evaluation_id: int, reference_ms: float | None) -> tuple[records.Round, ...]:
    s = tables.SampleRecord
    rows = connection.execute(select_all(s, s.evaluation_id == evaluation_id).order_by(s.round)).all()
    baselines = {row.round: _floats(row.samples) for row in rows if row.role == "baseline"}
    return tuple(_round(row, baselines.get(row.round), reference_ms) for row in rows if row.role == "candidate")


def _round(row: Row, baseline: NDArray[np.float64] | None, reference_ms: float | None) -> records.Round:
    details, raw_ms = row.details or {}, _number(row.raw_ms)
    latency = Latency(
        value_ms=raw_ms,
        raw_ms=raw_ms,
        spread=_number(row.spread),
        baseline_ms=row.baseline_ms,
        samples_ms=_floats(row.samples),
        baseline_samples_ms=np.empty(0) if baseline is None else baseline,
        warnings=tuple(row.warnings or ()),
        around_ms=details.get("around_ms", {}),
        conditions=details.get("conditions", {}),
        wall_ms=row.wall_ms,
    )
    return records.Round(row.round, rescale(latency, reference_ms))


def rescale(latency: Latency, reference_ms: float | None) -> Latency:
    """A latency as it was timed, in milliseconds of the baseline's usual speed, and the doubt that this tells of it."""
    doubt = baseline_doubt(latency.baseline_ms, reference_ms)
    value_ms = float(scale_latencies(latency.raw_ms, _number(latency.baseline_ms), reference_ms))
    return replace(latency, value_ms=value_ms, warnings=(*latency.warnings, *([doubt] if doubt else [])))


def _accuracy(row: Row) -> Accuracy:
    numbers = {name: _number(getattr(row, name)) for name in ("value", "loss", "loss_low", "loss_high")}
    return Accuracy(
        metric=row.metric,
        samples=row.samples,
        total=row.total,
        scores=_floats(row.scores),
        resemblance=row.resemblance,
        flips=row.flips,
        loss_bounds=row.loss_bounds or (),
        value_bounds=row.value_bounds or (),
        **numbers,
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _floats(blob: bytes) -> NDArray[np.float64]:
    return np.frombuffer(blob, dtype="<f4").astype(np.float64)
