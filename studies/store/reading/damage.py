"""Finding what in a study database is no value that this program writes there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from sqlalchemy import JSON, BigInteger, Boolean, Column, Connection, Double, Integer, LargeBinary, Table, select

from search.values import (
    EngineSummary,
    FailureKind,
    Precision,
    Stage,
)
from studies.options.config import SearchConfig
from studies.options.limits import MetricScale
from studies.store.database import tables
from studies.store.database.column_types import JsonList, JsonValue, PrecisionId, UtcDateTime
from studies.store.database.transactions import Database


def _deaths(value: Any) -> None:
    for death in value:
        Stage(death["stage"]), FailureKind(death["kind"])


def _texts(value: Any) -> None:
    if not all(isinstance(each, str) for each in value):
        raise ValueError("no list of texts")


def _whole_numbers(value: Any) -> None:
    if not all(isinstance(each, int) for each in value):
        raise ValueError("no list of whole numbers")


def _state(value: Any) -> None:
    if value not in ("running", "ok", "failed"):
        raise ValueError("no such status")


def _count(value: Any) -> None:
    if not 0 <= value < 2**53:
        raise ValueError("no count")


def _numbers(value: Any) -> None:
    if not all(each is None or isinstance(each, int | float) for each in value):
        raise ValueError("no list of numbers")


def _finite(value: Any) -> None:
    if not math.isfinite(value):
        raise ValueError("no finite number")


def _time(value: Any) -> None:
    if not 0 < value < math.inf:
        raise ValueError("no time above zero")


_READERS: Mapping[str, Callable[[Any], object]] = MappingProxyType(
    {
        "bf_study.config": SearchConfig.from_json,
        "bf_study.metric": MetricScale.of,
        "bf_group.nodes": _texts,
        "bf_group.anchors": _texts,
        "bf_group.shape": _whole_numbers,
        "bf_group.weight_shape": _whole_numbers,
        "bf_evaluation.status": _state,
        "bf_evaluation.stage": Stage,
        "bf_evaluation.kind": FailureKind,
        "bf_evaluation.engine": lambda value: EngineSummary(**value),
        "bf_evaluation.notes": _texts,
        "bf_evaluation.deaths": _deaths,
        **{f"bf_evaluation.{name}": _time for name in ("raw_ms", "baseline_ms")},
        **{f"bf_evaluation.{name}": _finite for name in ("loss", "loss_low", "loss_high", "metric_value", "spread")},
        **{f"bf_sample.{name}": _time for name in ("raw_ms", "baseline_ms", "wall_ms")},
        **{f"bf_repeat.{name}": _time for name in ("raw_ms", "baseline_ms")},
        **{f"bf_score.{name}": _finite for name in ("loss", "loss_low", "loss_high", "value")},
        "bf_evaluation.samples": _count,
        "bf_evaluation.total_samples": _count,
        **{f"bf_score.{name}": _numbers for name in ("loss_bounds", "value_bounds")},
        "bf_score.samples": _count,
        "bf_score.total": _count,
        "bf_score.scores": lambda value: np.frombuffer(value, dtype="<f4"),
        "bf_sample.warnings": _texts,
        "bf_sample.samples": lambda value: np.frombuffer(value, dtype="<f4"),
        "bf_cluster.codes": lambda value: np.frombuffer(value, dtype="<i4"),
    }
)
_TYPES: tuple[tuple[Any, tuple[type[Any], ...]], ...] = (
    (Boolean, (bool,)),
    (Integer | BigInteger, (int,)),
    (Double, (int, float)),
    (LargeBinary, (bytes,)),
    (UtcDateTime, (datetime,)),
    (JSON, (dict,)),
    (JsonList, (tuple,)),
    (PrecisionId, (Precision,)),
)


def find_damage(database: Database) -> str:
    """The first damage of a database, `table bf_evaluation, column assignment: …`; empty if there is none."""
    with database.begin_read("look for damage") as connection:
        for table in tables.Base.metadata.sorted_tables:
            for column in table.c:
                why = _damage_of(connection, table, column)
                if why:
                    return f"table {table.name}, column {column.name}: {why}"
        return next(chain(_excess_samples(connection), _foreign_groups(connection)), "")


def _damage_of(connection: Connection, table: Table, column: Column[Any]) -> str:
    """Why a value of a column is none; empty if all are."""
    reader = _READERS.get(f"{table.name}.{column.name}")
    try:
        for value in connection.scalars(select(column)):
            if value is None:
                if not column.nullable:
                    return "a value is missing"
                continue
            if not _fits(value, column):
                return f"{type(value).__name__} is no value of it"
            if reader is not None:
                reader(value)
    except Exception as error:  # whatever reading it raises
        return f"a value cannot be read ({type(error).__name__}: {str(error)[:200]})"
    return ""


def _fits(value: Any, column: Column[Any]) -> bool:
    if isinstance(column.type, JsonValue):
        return isinstance(value, column.type.kind)
    wanted = next((kinds for kind, kinds in _TYPES if isinstance(column.type, kind)), (str,))
    if isinstance(value, bool) and bool not in wanted:
        return False
    if isinstance(value, float) and math.isnan(value):
        return False
    return isinstance(value, wanted)


def _excess_samples(connection: Connection) -> Iterator[str]:
    """Evaluations that were scored on more samples than there are."""
    e = tables.EvaluationRecord
    for samples, total in connection.execute(select(e.samples, e.total_samples).where(e.samples > e.total_samples)):
        yield f"table bf_evaluation, column samples: {samples} of {total} samples"


def _foreign_groups(connection: Connection) -> Iterator[str]:
    """Assignments that name groups which the study has not, or lack some."""
    e, t, g = tables.EvaluationRecord, tables.TargetRecord, tables.GroupRecord
    known: dict[int, set[str]] = {}
    for study, group in connection.execute(select(g.study_id, g.group)):
        known.setdefault(study, set()).add(group)
    query = select(t.study_id, e.assignment).join(t, t.id == e.study_target_id)
    for study, assignment in connection.execute(query):
        if set(assignment) != known.get(study, set()):
            yield "table bf_evaluation, column assignment: its groups are not those of the study"
