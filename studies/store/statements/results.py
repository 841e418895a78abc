"""Statements on the result of an evaluation, in all tables that hold a part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, and_, case, delete, func, insert, or_, select, update

from search.values import Accuracy, Answer, Evaluation, Failure, Latency, LayerTime
from studies.store import records
from studies.store.database import column_types, tables
from studies.store.statements import artifacts, table_rows


def lowest_trials(study_target_id: int) -> Any:
    """Subquery: evaluation id and the lowest trial that it answers, of one target."""
    t = tables.TrialRecord
    return (
        select(t.evaluation_id, func.min(t.number).label("trial"))
        .where(t.study_target_id == study_target_id)
        .group_by(t.evaluation_id)
        .subquery()
    )


def has_room(connection: Connection, study_target_id: int, digest: str, most: int) -> bool:
    """Whether a target has no evaluation with this digest yet; until the transaction ends no other begins one.

    Raises:
        FullStudyError: there are `most`, and none of them has this digest.
    """
    table_rows.lock(connection, tables.TargetRecord, study_target_id)
    e = tables.EvaluationRecord
    searched, same = (func.count(case((condition, 1))) for condition in (e.role != records.EXPORT, e.digest == digest))
    there, known = connection.execute(select(searched, same).where(e.study_target_id == study_target_id)).one()
    if there >= most and not known:
        raise records.FullStudyError(f"there are {there} evaluations, and no more than {most} are wanted")
    return not known


def is_result_of(connection: Connection, evaluation_id: int, worker: str) -> bool:
    """Whether an evaluation is finished, by this worker."""
    e = tables.EvaluationRecord
    finished = (e.id == evaluation_id, e.status != records.RUNNING, e.worker == worker)
    return connection.scalar(select(e.id).where(*finished)) is not None


def is_round(connection: Connection, round_number: int, latencies: Mapping[int, Latency]) -> bool:
    """Whether a round is of these evaluations, with these latencies."""
    s = tables.SampleRecord
    this = (s.round == round_number, s.role == "candidate", s.evaluation_id.in_(latencies))
    rows = connection.execute(select(s.evaluation_id, s.raw_ms).where(*this)).all()
    return {row[0]: row[1] for row in rows} == {i: finite(latency.raw_ms) for i, latency in latencies.items()}


def link(
    connection: Connection,
    study_target_id: int,
    trial: int,
    evaluation_id: int,
    *,
    reused: bool,
) -> None:
    """Let an evaluation answer an Optuna trial."""
    row = {"study_target_id": study_target_id, "number": trial, "evaluation_id": evaluation_id, "reused": reused}
    connection.execute(insert(tables.TrialRecord).values(**row))


def measures(evaluation: Evaluation) -> dict[str, Any]:
    """The columns of `bf_evaluation` that `record` sets."""
    answers = [row.answer for row in evaluation.audit]
    return {
        "status": records.OK if evaluation.ok else records.FAILED,
        "finished_at": column_types.utc_now(),
        "not_obeyed": answers.count(Answer.NOT_OBEYED),
        "opaque": answers.count(Answer.OPAQUE),
        "engine": None if evaluation.engine is None else asdict(evaluation.engine),
        "notes": evaluation.notes,
        "attempts": evaluation.attempts,
        "replaced": len(evaluation.deaths),
        "deaths": [_failure_columns(death) for death in evaluation.deaths] or None,
        "stage_s": dict(evaluation.stage_s) or None,
        "size_bytes": evaluation.size_bytes,
        "memory_bytes": evaluation.memory_bytes,
        "build_s": evaluation.build_s,
        "total_s": evaluation.total_s,
        **({} if evaluation.failure is None else _failure_columns(evaluation.failure)),
        **_latency(evaluation.latency),
        **_accuracy(evaluation.accuracy),
    }


def empty_measures() -> dict[str, Any]:
    """The columns of `bf_evaluation` that `measures` leaves out where a stage was not reached, or none failed."""
    failure = ("stage", "kind", "message", "log")
    latency = ("raw_ms", "baseline_ms", "spread")
    accuracy = (
        "metric_value",
        "loss",
        "loss_low",
        "loss_high",
        "loss_upper",
        "samples",
        "total_samples",
        "resemblance",
    )
    return {**dict.fromkeys((*failure, *latency, *accuracy)), "doubts": 0}


def raise_revision(connection: Connection, evaluation_id: int) -> None:
    """Mark an evaluation as the one of its target that changed last; call it at the end of the transaction.

    The row of the target stays locked until the transaction ends. So transactions that raise its revision end in the
    order of the numbers: who sees one sees all lower ones too.
    """
    e, t = tables.EvaluationRecord, tables.TargetRecord
    of_evaluation = select(e.study_target_id).where(e.id == evaluation_id).scalar_subquery()
    connection.execute(update(t).where(t.id == of_evaluation).values(revision=t.revision + 1))
    raised = select(t.revision).where(t.id == e.study_target_id).scalar_subquery()
    connection.execute(update(e).where(e.id == evaluation_id).values(revision=raised))


def insert_result(connection: Connection, evaluation_id: int, evaluation: Evaluation, artifact: str | None) -> None:
    """What other tables hold of a result: audit, profile, samples of round 0, search scores, its engine."""
    insert_audit(connection, evaluation_id, evaluation)
    if evaluation.profile:
        replace_profile(connection, evaluation_id, evaluation.profile)
    if evaluation.latency is not None:
        insert_samples(connection, evaluation_id, 0, evaluation.latency)
    if evaluation.accuracy is not None:
        insert_score(connection, evaluation_id, "search", evaluation.accuracy)
    if artifact is not None:
        artifacts.hold_artifact(connection, artifacts.engine_row(artifact, evaluation.size_bytes or 0))


def delete_result(connection: Connection, evaluation_id: int) -> None:
    """Take out what `insert_result` put in, for another one; layers stay where the new one is not profiled."""
    a, s, score = tables.AuditRecord, tables.SampleRecord, tables.ScoreRecord
    connection.execute(delete(a).where(a.evaluation_id == evaluation_id))
    connection.execute(delete(s).where(s.evaluation_id == evaluation_id, s.round == 0))
    # One that the final split spoiled was another engine of the assignment: what comes in its place is judged anew.
    gone = or_(score.split == "search", and_(score.split == "final", score.samples == 0))
    connection.execute(delete(score).where(score.evaluation_id == evaluation_id, gone))


def delete_confirmation(connection: Connection, evaluation_id: int) -> None:
    """Take out what was measured again of an engine, and its score on the final split, for another engine."""
    s, score = tables.SampleRecord, tables.ScoreRecord
    connection.execute(delete(s).where(s.evaluation_id == evaluation_id, s.round > 0))
    connection.execute(delete(score).where(score.evaluation_id == evaluation_id, score.split == "final"))


def insert_audit(connection: Connection, evaluation_id: int, evaluation: Evaluation) -> None:
    """One row per audited group."""
    rows = [
        {
            "evaluation_id": evaluation_id,
            "group": row.group,
            "asked": row.asked,
            "got": row.got,
            "kernel": row.kernel,
            "details": dict(row.details) or None,
        }
        for row in evaluation.audit
    ]
    if rows:
        connection.execute(insert(tables.AuditRecord), rows)


def replace_profile(connection: Connection, evaluation_id: int, layers: Sequence[LayerTime]) -> None:
    """The layers of an engine in the order they run, instead of those there."""
    rows = [{"position": position, **vars(layer)} for position, layer in enumerate(layers)]
    table_rows.replace_rows(connection, tables.LayerRecord, {"evaluation_id": evaluation_id}, rows)


def replace_note(connection: Connection, evaluation_id: int, about: str, note: str) -> None:
    """The one note of an evaluation that begins with `about`, say `OF_PROFILE`; empty where there is nothing to say."""
    e = tables.EvaluationRecord
    before = list(connection.scalar(select(e.notes).where(e.id == evaluation_id)) or [])
    notes = [kept for kept in before if not kept.startswith(about)]
    notes += [about + note] if note else []
    if notes != before:
        connection.execute(update(e).where(e.id == evaluation_id).values(notes=notes))


def insert_samples(connection: Connection, evaluation_id: int, round_number: int, latency: Latency) -> None:
    """The samples of a candidate and, where one was measured, of the baseline in between."""
    owner = {"evaluation_id": evaluation_id, "round": round_number}
    candidate: dict[str, Any] = {
        "role": "candidate",
        "raw_ms": finite(latency.raw_ms),
        "baseline_ms": finite(latency.baseline_ms),
        "spread": finite(latency.spread),
        "wall_ms": finite(latency.wall_ms),
        "warnings": list(latency.warnings),
        "details": _surroundings(latency),
        "samples": blob(latency.samples_ms),
    }
    connection.execute(insert(tables.SampleRecord).values(**owner, **candidate))
    if latency.baseline_ms is not None:
        baseline: dict[str, Any] = {"role": "baseline", "raw_ms": finite(latency.baseline_ms)}
        baseline["samples"] = blob(latency.baseline_samples_ms)
        connection.execute(insert(tables.SampleRecord).values(**owner, **baseline))


def insert_score(connection: Connection, evaluation_id: int, split: str, accuracy: Accuracy) -> None:
    """The accuracy on one split."""
    names = ("value", "loss", "loss_low", "loss_high", "resemblance")
    values: dict[str, Any] = {name: finite(getattr(accuracy, name)) for name in names}
    values |= {"samples": accuracy.samples, "total": accuracy.total}
    values |= {"loss_bounds": list(accuracy.loss_bounds) or None, "value_bounds": list(accuracy.value_bounds) or None}
    values["flips"] = accuracy.flips
    row = insert(tables.ScoreRecord).values(evaluation_id=evaluation_id, split=split, metric=accuracy.metric, **values)
    connection.execute(row.values(scores=blob(accuracy.scores)))


def replace_final(connection: Connection, evaluation_id: int, accuracy: Accuracy, failure: str = "") -> None:
    """The accuracy on the final split, instead of one that is there, and the note of why it has no samples."""
    s = tables.ScoreRecord
    connection.execute(delete(s).where(s.evaluation_id == evaluation_id, s.split == "final"))
    insert_score(connection, evaluation_id, "final", accuracy)
    replace_note(connection, evaluation_id, records.OF_FINAL, failure)
    raise_revision(connection, evaluation_id)


def blob(values: NDArray[Any]) -> bytes:
    """Little-endian float32, the same on every machine that shares the database."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def finite(value: float | None) -> float | None:
    """None for what databases cannot hold or compare alike, or nobody can reckon with: NaN, infinities, 1e300."""
    return float(value) if value is not None and abs(value) <= column_types.LARGEST else None


def _failure_columns(failure: Failure) -> dict[str, str]:
    # PostgreSQL takes no NUL in text, and a crashing process may have printed some.
    texts = {"message": failure.message.replace("\0", "�"), "log": failure.log.replace("\0", "�")}
    return {"stage": failure.stage.value, "kind": failure.kind.value, **texts}


def _latency(latency: Latency | None) -> dict[str, Any]:
    if latency is None:
        return {}
    values: dict[str, Any] = {name: finite(getattr(latency, name)) for name in ("raw_ms", "baseline_ms", "spread")}
    return {**values, "doubts": len(latency.warnings)}


def _surroundings(latency: Latency) -> dict[str, Any] | None:
    around = {name: value for name, value in latency.around_ms.items() if math.isfinite(value)}
    return {"around_ms": around, "conditions": dict(latency.conditions)} if around or latency.conditions else None


def _accuracy(accuracy: Accuracy | None) -> dict[str, Any]:
    if accuracy is None:
        return {}
    same = ("loss", "loss_low", "loss_high", "resemblance")
    names = {"metric_value": "value", **{name: name for name in same}}
    values: dict[str, Any] = {column: finite(getattr(accuracy, name)) for column, name in names.items()}
    values["loss_upper"] = next(iter(accuracy.loss_bounds), None)
    return {**values, "samples": accuracy.samples, "total_samples": accuracy.total}
