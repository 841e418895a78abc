"""Finding what in a study database is no value that this program writes there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, Boolean, Column, Connection, Integer, LargeBinary, and_, or_, select

from search.values import FailureKind, Precision, Stage
from studies.store.columns import FLOATS
from studies.store.database import tables
from studies.store.database.column_types import Json, Number, PrecisionId, UtcDateTime
from studies.store.reading.evaluation_columns import JUDGED


def _state(value: Any) -> None:
    if value not in ("running", "ok", "failed"):
        raise ValueError("no such status")


def _count(value: Any) -> None:
    if not 0 <= value < 2**53:
        raise ValueError("no count")


def _closing_time(value: Any) -> None:
    step = value.get(tables.CLOSING)
    if step is not None and datetime.fromisoformat(step["until"]).tzinfo is None:
        raise ValueError("the value.closing.until: expected a time with its zone")


_READERS: Mapping[str, Callable[[Any], object]] = MappingProxyType(
    {
        "bf_study.model": lambda value: value["inputs"][0][2][0],  # the batch
        "bf_study_target.details": _closing_time,
        "bf_evaluation.status": _state,
        "bf_evaluation.stage": Stage,
        "bf_evaluation.kind": FailureKind,
        **{f"bf_evaluation.{name}": _count for name in {*JUDGED} - FLOATS},
        "bf_score.samples": _count,
        "bf_score.total": _count,
        "bf_score.scores": lambda value: np.frombuffer(value, dtype="<f4"),
        "bf_sample.samples": lambda value: np.frombuffer(value, dtype="<f4"),
        "bf_cluster.codes": lambda value: np.frombuffer(value, dtype="<i4"),
    }
)
_TYPES: tuple[tuple[Any, tuple[type[Any], ...]], ...] = (
    (Boolean, (bool,)),
    (Integer | BigInteger, (int,)),
    (LargeBinary, (bytes,)),
    (UtcDateTime, (datetime,)),
    (PrecisionId, (Precision,)),
)


def find_damage(connection: Connection) -> str:
    """The first damage of a database; empty if there is none.

    Say `table bf_study, column data, row id 1: the value.clusters: expected a mapping, got []`.
    """
    columns = (column for table in tables.Base.metadata.sorted_tables for column in table.c)
    column_damages = (_damage_of(connection, column) for column in columns)
    return next(
        filter(
            None,
            chain(column_damages, _excess_samples(connection), _odd_intervals(connection), _foreign_groups(connection)),
        ),
        "",
    )


def _damage_of(connection: Connection, column: Column[Any]) -> str:
    """The first value of a column that is none: where, and why; empty if there is none."""
    try:
        for value in connection.scalars(select(column)):
            _check(value, column)
    except Exception as error:  # whatever reading it raises
        return f"table {column.table.name}, column {column.name}{_row_of(connection, column)}: {str(error)[:300]}"
    return ""


def _row_of(connection: Connection, column: Column[Any]) -> str:
    """Which row has the value that is none, by its primary key; empty if that cannot be told."""
    keys, tried = list(column.table.primary_key), ""
    try:
        for row in connection.execute(select(*keys)).all():
            known = list(zip(keys, row, strict=True))
            tried = f", row {', '.join(f'{key.name} {value}' for key, value in known)}"
            _check(connection.scalars(select(column).where(*(key == value for key, value in known))).one(), column)
    except Exception:  # or the key is what is damaged
        return tried
    return ""


def _check(value: Any, column: Column[Any]) -> None:
    """Raise where a value is none of its column."""
    if value is None and column.nullable:
        return
    if value is None:
        raise ValueError("a value is missing")
    if not _fits(value, column):
        raise ValueError(f"expected a value of its type, got {str(value)[:60]!r}, which is {type(value).__name__}")
    _READERS.get(f"{column.table.name}.{column.name}", str)(value)


def _fits(value: Any, column: Column[Any]) -> bool:
    if isinstance(column.type, Json | Number):
        return True  # it was looked at as it was read
    wanted = next((kinds for kind, kinds in _TYPES if isinstance(column.type, kind)), (str,))
    if isinstance(value, bool) and bool not in wanted:
        return False
    return isinstance(value, wanted)


def _odd_intervals(connection: Connection) -> Iterator[str]:
    """Losses whose interval lacks an end, or has its low end above the high one."""
    for record in (tables.EvaluationRecord, tables.ScoreRecord):
        low, high = record.loss_low, record.loss_high
        odd = or_(low > high, and_(record.loss.is_not(None), or_(low.is_(None), high.is_(None))))
        for ends in connection.execute(select(low, high).where(odd)):
            yield f"table {record.__tablename__}, column loss_low: an interval from {ends[0]} to {ends[1]}"


def _excess_samples(connection: Connection) -> Iterator[str]:
    """Evaluations that were scored on more samples than there are."""
    e = tables.EvaluationRecord
    for samples, total in connection.execute(select(e.samples, e.total_samples).where(e.samples > e.total_samples)):
        yield f"table bf_evaluation, column samples: {samples} of {total} samples"


def _foreign_groups(connection: Connection) -> Iterator[str]:
    """Rows that name groups which the study has not, and assignments that lack some."""
    e, t, g = tables.EvaluationRecord, tables.TargetRecord, tables.GroupRecord
    known: dict[int, set[str | None]] = {}
    for study, group in connection.execute(select(g.study_id, g.group)):
        known.setdefault(study, {None}).add(group)
    for record in (tables.ChoiceRecord, tables.SensitivityRecord, tables.AuditRecord, tables.LayerRecord):
        table = record.__table__
        query = select(t.study_id, table.c["group"]).distinct()
        if "evaluation_id" in table.c:
            query = query.join(e, e.id == table.c.evaluation_id).join(t, t.id == e.study_target_id)
        else:
            query = query.join(t, t.id == table.c.study_target_id)
        for study, group in connection.execute(query):
            if group not in known.get(study, {None}):
                yield f"table {table.name}, column group: the study has no group {group!r}"
    query = select(t.study_id, e.assignment).join(t, t.id == e.study_target_id)
    for study, assignment in connection.execute(query):
        if {None, *assignment} != known.get(study, {None}):
            yield "table bf_evaluation, column assignment: its groups are not those of the study"
