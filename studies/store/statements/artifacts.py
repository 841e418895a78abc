"""Statements on artifacts: the references to them, and those without references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, insert, literal, or_, select, union, update
from sqlalchemy.exc import IntegrityError

from studies.store.database import column_types, tables
from studies.store.statements import table_rows

UNUSED = "unused "  # before the kind of an artifact that nothing refers to and whose file is to be removed


def held_artifacts(connection: Connection, condition: Any) -> set[str]:
    """Digests of the engines of those evaluations."""
    artifact = tables.EvaluationRecord.artifact
    return set(connection.scalars(select(artifact).distinct().where(condition, artifact.is_not(None))))


def held_by_study(connection: Connection, study_id: int) -> set[str]:
    """Digests of all artifacts that a study refers to: engines, ranges, statistics, its model and data."""
    t, file = tables.TargetRecord, tables.FileRecord
    targets = select(t.id).where(t.study_id == study_id)
    held = held_artifacts(connection, tables.EvaluationRecord.study_target_id.in_(targets))
    for column in (t.ranges_digest, t.statistics_digest):
        held |= {digest for digest in connection.scalars(select(column).where(t.study_id == study_id)) if digest}
    return held | set(connection.scalars(select(file.digest).where(file.study_id == study_id)))


def engine_row(digest: str, size_bytes: int) -> dict[str, Any]:
    """A row of `bf_artifact` for an engine."""
    return {"digest": digest, "kind": "engine", "key": None, "size_bytes": size_bytes}


def hold_artifact(connection: Connection, row: Mapping[str, Any], *, likely_new: bool = False) -> None:
    """Make an artifact known, one marked as unused too; until the transaction ends nobody else removes it.

    Args:
        row: one that was there keeps its key and its size.
        likely_new: it is inserted without looking for it first.
    """
    if likely_new and _insert_artifact(connection, row):
        return
    kind = _lock_kind(connection, row)
    if kind.startswith(UNUSED):
        _set_kind(connection, row["digest"], row["kind"])


def move_key(connection: Connection, key: str, digest: str) -> None:
    """Let a cache key be that of one artifact alone, also where another process moves it to another one meanwhile."""
    a = tables.ArtifactRecord
    while True:
        with suppress(IntegrityError), connection.begin_nested():
            connection.execute(update(a).where(a.digest == digest).values(key=key))
            return
        connection.execute(update(a).where(a.key == key, a.digest != digest).values(key=None))


def mark_unused(connection: Connection, digests: Iterable[str]) -> frozenset[str]:
    """Mark those artifacts that nothing refers to any more; their digests. Rows stay until their files are gone."""
    a, unused = tables.ArtifactRecord, set[str]()
    for chunk in table_rows.chunks(sorted(digests)):
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
    kind = _lock_kind(connection, engine_row(digest, 0))
    if _referred_to(connection, [digest]):
        if kind.startswith(UNUSED):
            _set_kind(connection, digest, kind.removeprefix(UNUSED))
        return False
    remove(digest)
    connection.execute(delete(tables.ArtifactRecord).where(tables.ArtifactRecord.digest == digest))
    return True


def unused_artifacts(connection: Connection, age_s: float) -> frozenset[str]:
    """Digests of artifacts marked as unused, and of those that nothing has referred to since they were put long ago."""
    a, t, file = tables.ArtifactRecord, tables.TargetRecord, tables.FileRecord
    held = (tables.EvaluationRecord.artifact, t.ranges_digest, t.statistics_digest, file.digest)
    alone = [~exists().where(column == a.digest) for column in held]
    lost = and_(a.key.is_(None), a.created_at < column_types.utc_ago(age_s), *alone)
    return frozenset(connection.scalars(select(a.digest).where(or_(a.kind.like(f"{UNUSED}%"), lost))))


def _lock_kind(connection: Connection, row: Mapping[str, Any]) -> str:
    """The kind of an artifact whose row, inserted where it is not there, is locked until the transaction ends."""
    a = tables.ArtifactRecord
    locked = select(a.kind).where(a.digest == row["digest"]).with_for_update()
    while (kind := connection.scalar(locked)) is None:
        if _insert_artifact(connection, row):  # else another process inserts it just now
            return str(row["kind"])
    return kind


def _insert_artifact(connection: Connection, row: Mapping[str, Any]) -> bool:
    with suppress(IntegrityError), connection.begin_nested():
        connection.execute(insert(tables.ArtifactRecord).values(**row))
        return True
    return False


def _set_kind(connection: Connection, digest: str, kind: str) -> None:
    connection.execute(update(tables.ArtifactRecord).where(tables.ArtifactRecord.digest == digest).values(kind=kind))


def _referred_to(connection: Connection, digests: Sequence[str]) -> set[str]:
    t = tables.TargetRecord
    columns = (tables.EvaluationRecord.artifact, t.ranges_digest, t.statistics_digest, tables.FileRecord.digest)
    return set(connection.scalars(union(*(select(column).where(column.in_(digests)) for column in columns))))
