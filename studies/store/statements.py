"""Pieces of the store's transactions: each takes the connection of a writing transaction and commits nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Delete, Update, and_, delete, exists, func, insert, literal, or_, select, update
from sqlalchemy.exc import IntegrityError

from search.values import Accuracy, Answer, Assignment, Evaluation, Failure, Latency, LayerTime
from studies.store import records
from studies.store.database import tables

if TYPE_CHECKING:
    from search.graph.model import Group

CHUNK = 500  # values of one IN list; SQLite's oldest limit is 999
UNUSED = "unused "  # before the kind of an artifact that nothing refers to and whose file is to be removed


def select_all(table: type[tables.Base], *conditions: Any) -> Any:
    """A query for all columns of the rows that meet the conditions."""
    return select(*table.__table__.c).where(*conditions)


def lowest_trials(study_target_id: int) -> Any:
    """Subquery: evaluation id and the lowest trial that it answers, of one target."""
    t = tables.Trial
    return (
        select(t.evaluation_id, func.min(t.number).label("trial"))
        .where(t.study_target_id == study_target_id)
        .group_by(t.evaluation_id)
        .subquery()
    )


def is_free(table: Any, worker: str, lease_s: float) -> Any:
    """Of a lease or a task: its worker has not renewed it for too long, has ended, or is the one that asks."""
    ended = select(tables.Worker.name).where(tables.Worker.ended_at.is_not(None))
    return or_(table.worker == worker, table.heartbeat < tables.utc_ago(lease_s), table.worker.in_(ended))


def insert_row(connection: Connection, table: type[Any], values: Mapping[str, Any]) -> int:
    """Insert one row into a table with a generated id; that id."""
    key: Any = connection.execute(insert(table).values(**values)).inserted_primary_key
    return int(key[0])


def ensure_row(connection: Connection, table: type[Any], key: str, values: Mapping[str, Any]) -> Any:
    """Insert a row unless one with this unique key is there, also when another process inserts it meanwhile.

    Returns:
        The primary key of the row there is now.
    """
    column = table.__table__.c[key]
    query = select(next(iter(table.__table__.primary_key))).where(column == values[key])
    known = connection.scalar(query)
    if known is not None:
        return known
    try:
        with connection.begin_nested():
            connection.execute(insert(table).values(**values))
    except IntegrityError:
        pass
    return connection.execute(query).scalar_one()


def replace_rows(
    connection: Connection, table: type[Any], owner: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Put `rows` in the place of all rows that belong to `owner`."""
    columns = table.__table__.c
    connection.execute(delete(table).where(*(columns[name] == value for name, value in owner.items())))
    if rows:
        connection.execute(insert(table), [{**owner, **row} for row in rows])


def lock(connection: Connection, table: type[Any], row_id: int) -> bool:
    """Let no other transaction lock this row until the end of this one; rows that refer to it may still be added.

    Returns:
        Whether there is such a row.
    """
    return connection.scalar(select(table.id).where(table.id == row_id).with_for_update(key_share=True)) is not None


def check_room(connection: Connection, study_target_id: int, digest: str, most: int) -> None:
    """Refuse one evaluation more than a target may have; until the transaction ends no other begins one.

    Raises:
        FullStudyError: there are `most`, and none of them has this digest.
    """
    lock(connection, tables.StudyTarget, study_target_id)
    e = tables.Evaluation
    of_target = e.study_target_id == study_target_id
    there = connection.scalar(select(func.count()).where(of_target, e.role != records.EXPORT)) or 0
    if there >= most and connection.scalar(select(e.id).where(of_target, e.digest == digest)) is None:
        raise records.FullStudyError(f"there are {there} evaluations, and no more than {most} are wanted")


def is_result_of(connection: Connection, evaluation_id: int, worker: str) -> bool:
    """Whether an evaluation is finished, by this worker."""
    e = tables.Evaluation
    finished = (e.id == evaluation_id, e.status != records.RUNNING, e.worker == worker)
    return connection.scalar(select(e.id).where(*finished)) is not None


def is_round(connection: Connection, round_number: int, latencies: Mapping[int, Latency]) -> bool:
    """Whether a round is of these evaluations, with these latencies."""
    s = tables.Sample
    this = (s.round == round_number, s.role == "candidate", s.evaluation_id.in_(latencies))
    found = connection.execute(select(s.evaluation_id, s.raw_ms).where(*this)).all()
    return {row[0]: row[1] for row in found} == {i: finite(latency.raw_ms) for i, latency in latencies.items()}


def changed(connection: Connection, statement: Update | Delete) -> bool:
    """Whether the statement met a row."""
    return connection.execute(statement).rowcount > 0


def link(
    connection: Connection,
    study_target_id: int,
    trial: int,
    evaluation_id: int,
    *,
    reused: bool,
    asked: Assignment | None = None,
) -> None:
    """Let an evaluation answer an Optuna trial."""
    row = {"study_target_id": study_target_id, "number": trial, "evaluation_id": evaluation_id, "reused": reused}
    codes = None if asked is None else asked.to_json()
    connection.execute(insert(tables.Trial).values(**row, asked_assignment=codes))


def measures(evaluation: Evaluation) -> dict[str, Any]:
    """The columns of `bf_evaluation` that `record` sets."""
    answers = [row.answer for row in evaluation.audit]
    return {
        "status": records.OK if evaluation.ok else records.FAILED,
        "finished_at": tables.utc_now(),
        "not_obeyed": answers.count(Answer.NOT_OBEYED),
        "opaque": answers.count(Answer.OPAQUE),
        "engine": None if evaluation.engine is None else asdict(evaluation.engine),
        "notes": list(evaluation.notes),
        "attempts": evaluation.attempts,
        "replaced": len(evaluation.deaths),
        "deaths": [_told(death) for death in evaluation.deaths] or None,
        "stage_s": dict(evaluation.stage_s) or None,
        "size_bytes": evaluation.size_bytes,
        "memory_bytes": evaluation.memory_bytes,
        "build_s": evaluation.build_s,
        "total_s": evaluation.total_s,
        **_failure(evaluation),
        **_latency(evaluation.latency),
        **_accuracy(evaluation.accuracy),
    }


def unmeasured() -> dict[str, Any]:
    """The columns of `bf_evaluation` that `measures` leaves out where a stage was not reached, or none failed."""
    failure = ("stage", "kind", "message", "log")
    latency = ("raw_ms", "baseline_ms", "spread")
    accuracy = ("metric_value", "loss", "loss_low", "loss_high", "samples", "total_samples", "resemblance")
    return {**dict.fromkeys((*failure, *latency, *accuracy)), "doubts": 0}


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
        hold_artifact(connection, engine_row(artifact, evaluation.size_bytes or 0))


def delete_result(connection: Connection, evaluation_id: int) -> None:
    """Take out what `insert_result` put in, for another one; layers stay where the new one is not profiled."""
    a, s, score = tables.Audit, tables.Sample, tables.Score
    connection.execute(delete(a).where(a.evaluation_id == evaluation_id))
    connection.execute(delete(s).where(s.evaluation_id == evaluation_id, s.round == 0))
    # One that the final split spoiled was another engine of the assignment: what comes in its place is judged anew.
    gone = or_(score.split == "search", and_(score.split == "final", score.samples == 0))
    connection.execute(delete(score).where(score.evaluation_id == evaluation_id, gone))


def insert_audit(connection: Connection, evaluation_id: int, evaluation: Evaluation) -> None:
    """One row per audited group."""
    rows = [
        {
            "evaluation_id": evaluation_id,
            "group": row.group,
            "asked": row.asked.id,
            "got": None if row.got is None else row.got.id,
            "kernel": row.kernel,
            "details": dict(row.details) or None,
        }
        for row in evaluation.audit
    ]
    if rows:
        connection.execute(insert(tables.Audit), rows)


def replace_profile(connection: Connection, evaluation_id: int, layers: Sequence[LayerTime]) -> None:
    """The layers of an engine in the order they run, instead of those there."""
    rows = [{"position": position, **vars(layer)} for position, layer in enumerate(layers)]
    replace_rows(connection, tables.Profile, {"evaluation_id": evaluation_id}, rows)


def replace_note(connection: Connection, evaluation_id: int, about: str, note: str) -> None:
    """The one note of an evaluation that begins with `about`, say `OF_PROFILE`; empty where there is nothing to say."""
    e = tables.Evaluation
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
        "warnings": list(latency.warnings),
        "details": _surroundings(latency),
        "samples": blob(latency.samples_ms),
    }
    connection.execute(insert(tables.Sample).values(**owner, **candidate))
    if latency.baseline_ms is not None:
        baseline: dict[str, Any] = {"role": "baseline", "raw_ms": finite(latency.baseline_ms)}
        baseline["samples"] = blob(latency.baseline_samples_ms)
        connection.execute(insert(tables.Sample).values(**owner, **baseline))


def insert_score(connection: Connection, evaluation_id: int, split: str, accuracy: Accuracy) -> None:
    """The accuracy on one split."""
    names = ("value", "loss", "loss_low", "loss_high", "resemblance")
    values = {name: finite(getattr(accuracy, name)) for name in names}
    values |= {"samples": accuracy.samples, "total": accuracy.total}
    row = insert(tables.Score).values(evaluation_id=evaluation_id, split=split, metric=accuracy.metric, **values)
    connection.execute(row.values(scores=blob(accuracy.scores)))


def replace_final(connection: Connection, evaluation_id: int, accuracy: Accuracy, failure: str = "") -> None:
    """The accuracy on the final split, instead of one that is there, and the note of why it has no samples."""
    s = tables.Score
    connection.execute(delete(s).where(s.evaluation_id == evaluation_id, s.split == "final"))
    insert_score(connection, evaluation_id, "final", accuracy)
    replace_note(connection, evaluation_id, records.OF_FINAL, failure)


def engine_row(digest: str, size_bytes: int) -> dict[str, Any]:
    """A row of `bf_artifact` for an engine."""
    return {"digest": digest, "kind": "engine", "key": None, "size_bytes": size_bytes}


def group_row(position: int, group: Group) -> dict[str, Any]:
    """A row of `bf_group` without its study."""
    lists = {name: list(getattr(group, name)) for name in ("nodes", "anchors", "shape", "weight_shape")}
    texts = {name: getattr(group, name) for name in ("name", "op", "block", "pinned")}
    return {"position": position, "group": group.id, **texts, **lists}


def held_artifacts(connection: Connection, condition: Any) -> set[str]:
    """Digests of the engines of those evaluations."""
    artifact = tables.Evaluation.artifact
    return set(connection.scalars(select(artifact).distinct().where(condition, artifact.is_not(None))))


def held_by_study(connection: Connection, study_id: int) -> set[str]:
    """Digests of all artifacts that a study refers to: engines, ranges, its model and data."""
    t, file = tables.StudyTarget, tables.File
    targets = select(t.id).where(t.study_id == study_id)
    held = held_artifacts(connection, tables.Evaluation.study_target_id.in_(targets))
    held |= {digest for digest in connection.scalars(select(t.ranges_digest).where(t.study_id == study_id)) if digest}
    return held | set(connection.scalars(select(file.digest).where(file.study_id == study_id)))


def hold_artifact(connection: Connection, row: Mapping[str, Any]) -> None:
    """Make an artifact known, one marked as unused too; until the transaction ends nobody else removes it."""
    if _locked_kind(connection, row).startswith(UNUSED):
        _set_kind(connection, row["digest"], row["kind"])


def mark_unused(connection: Connection, digests: Iterable[str]) -> frozenset[str]:
    """Mark those artifacts that nothing refers to any more; their digests. Rows stay until their files are gone."""
    a, unused = tables.Artifact, set[str]()
    for chunk in chunks(sorted(digests)):
        known = select(a.digest).where(a.digest.in_(chunk)).order_by(a.digest).with_for_update()
        connection.execute(known).all()
        used = _referred_to(connection, chunk)
        free = [digest for digest in chunk if digest not in used]
        marked = update(a).where(a.digest.in_(free), a.kind.not_like(f"{UNUSED}%"))
        connection.execute(marked.values(kind=literal(UNUSED) + a.kind, key=None))
        unused.update(free)
    return frozenset(unused)


def drop_artifact(connection: Connection, digest: str, remove: Callable[[str], object]) -> bool:
    """Remove an artifact's file and then its row, unless something refers to it; whether it is gone.

    Args:
        remove: deletes the file; called while nobody else can make the artifact known.
    """
    kind = _locked_kind(connection, engine_row(digest, 0))
    if _referred_to(connection, [digest]):
        if kind.startswith(UNUSED):
            _set_kind(connection, digest, kind.removeprefix(UNUSED))
        return False
    remove(digest)
    connection.execute(delete(tables.Artifact).where(tables.Artifact.digest == digest))
    return True


def unused_artifacts(connection: Connection, age_s: float) -> frozenset[str]:
    """Digests of artifacts marked as unused, and of those that nothing has referred to since they were put long ago."""
    a, t, file = tables.Artifact, tables.StudyTarget, tables.File
    held = (tables.Evaluation.artifact, t.ranges_digest, file.digest)
    alone = [~exists().where(column == a.digest) for column in held]
    lost = and_(a.key.is_(None), a.created_at < tables.utc_ago(age_s), *alone)
    return frozenset(connection.scalars(select(a.digest).where(or_(a.kind.like(f"{UNUSED}%"), lost))))


def _locked_kind(connection: Connection, row: Mapping[str, Any]) -> str:
    """The kind of an artifact whose row, inserted if need be, is locked until the transaction ends."""
    a = tables.Artifact
    locked = select(a.kind).where(a.digest == row["digest"]).with_for_update()
    while (kind := connection.scalar(locked)) is None:
        with suppress(IntegrityError), connection.begin_nested():  # another process inserts it just now
            connection.execute(insert(a).values(**row))
    return kind


def _set_kind(connection: Connection, digest: str, kind: str) -> None:
    connection.execute(update(tables.Artifact).where(tables.Artifact.digest == digest).values(kind=kind))


def _referred_to(connection: Connection, digests: Sequence[str]) -> set[str]:
    used = held_artifacts(connection, tables.Evaluation.artifact.in_(digests))
    for column in (tables.StudyTarget.ranges_digest, tables.File.digest):
        used.update(connection.scalars(select(column).where(column.in_(digests))))
    return used


def insert_study(connection: Connection, new: records.NewStudy, clusters: Mapping[str, NDArray[Any]]) -> int:
    """Add a study and the cluster of each of its scores; its id."""
    number = insert_row(connection, tables.Study, vars(new))
    for split, codes in clusters.items():
        values = {"study_id": number, "split": split, "codes": codes.astype("<i4").tobytes()}
        connection.execute(insert(tables.Cluster).values(values))
    return number


def chunks(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Pieces that fit one IN list."""
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))


def blob(values: NDArray[Any]) -> bytes:
    """Little-endian float32, the same on every machine that shares the database."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def finite(value: float | None) -> float | None:
    """None for what databases cannot hold or compare alike: NaN and infinities."""
    return float(value) if value is not None and math.isfinite(value) else None


def _failure(evaluation: Evaluation) -> dict[str, Any]:
    return {} if evaluation.failure is None else _told(evaluation.failure)


def _told(failure: Failure) -> dict[str, str]:
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
    return {**values, "samples": accuracy.samples, "total_samples": accuracy.total}


def changed_options(
    known: Mapping[str, Any], told: Mapping[str, Any], seen: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a run changes of the options that are stored.

    Between reading and writing a run checks its inputs and calibrates, while others may store what they were told. What
    it was told just as it had read it is no change and overwrites nothing. Of two totals of trials the larger stays,
    for workers that count to it are at work; of anything else the later word.
    """
    if seen is None:
        return dict(told)
    changed = {name: value for name, value in told.items() if name not in seen or value != seen[name]}
    if "trials" in changed and known.get("trials") not in (None, seen.get("trials")):
        changed["trials"] = max(changed["trials"], known["trials"])
    return changed
