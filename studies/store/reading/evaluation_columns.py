"""Reading the columns of evaluations as plain numbers, because a study may have a hundred thousand of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, and_, case, func, select, union_all

from studies.store import records
from studies.store.columns import FLOATS
from studies.store.database import tables
from studies.store.database.column_types import LARGEST, LONGEST_MS, SHORTEST_MS
from studies.store.database.connections import PLAIN
from studies.store.statements.table_rows import chunks

Query = Any  # SQLAlchemy 2.0 and 2.1 type selects in ways that exclude each other
Arrays = dict[str, NDArray[Any]]

# What judging needs of every evaluation.
JUDGED = (
    *("id", "raw_ms", "baseline_ms", "doubts", "metric_value", "loss", "loss_low", "loss_high", "loss_upper"),
    *("samples", "total_samples", "resemblance", "size_bytes", "memory_bytes", "not_obeyed"),
)
# What is told of a few.
DETAILS = (
    *("trial", "digest", "stage", "kind", "artifact", "spread", "build_s", "total_s"),
    *("attempts", "opaque", "moves"),
)
_STATES = (records.OK, records.FAILED, records.RUNNING)
_ROLES = ("", records.EXPORT)  # baselines have a role of their own each


def plain_rows(connection: Connection, query: Query) -> Sequence[tuple[Any, ...]]:
    """The rows of a query as the driver gives them: for numbers and texts that the database returns as they are."""
    result = connection.execute(query, execution_options={PLAIN: True})
    rows: Sequence[tuple[Any, ...]] = result.cursor.fetchall()
    result.close()
    return rows


def number_columns(rows: Sequence[tuple[Any, ...]], width: int) -> NDArray[np.float64]:
    """(width, n) float64: the columns of rows that hold numbers alone; NaN for NULL."""
    return np.ascontiguousarray(np.array(rows, dtype=np.float64).reshape(-1, width).T)


def judged_columns(connection: Connection, study_target_id: int, *conditions: Any) -> Arrays:
    """The columns of JUDGED, `status` and `role`, of those evaluations of one target, in order of id."""
    e = tables.EvaluationRecord
    names = (*JUDGED, "code")
    query = select(*(e.__table__.c[name] for name in JUDGED), _code())
    query = query.where(e.study_target_id == study_target_id, *conditions)
    numbers = number_columns(plain_rows(connection, query), len(names))
    order = np.argsort(numbers[0], kind="stable")  # quicker here than in the database
    columns = {name: _set_type(name, column[order]) for name, column in zip(names, numbers, strict=True)}
    _check_measures(dict(zip(names, numbers, strict=True)))
    code = columns.pop("code")
    columns["status"] = np.array(_STATES, dtype=np.str_)[code % len(_STATES)]
    columns["role"] = _roles(connection, study_target_id, columns["id"], code // len(_STATES))
    return columns


def no_columns() -> Arrays:
    """The columns of `judged_columns` where there is no evaluation."""
    texts = {name: np.empty(0, dtype=np.str_) for name in ("status", "role")}
    return {name: _set_type(name, np.empty(0)) for name in JUDGED} | texts


def _check_measures(columns: Arrays) -> None:
    """Raise where a measure is none that can be: it would be judged as if it were."""
    below = [name for name, column in columns.items() if name not in FLOATS and np.any(column < 0)]
    times = np.array([columns["raw_ms"], columns["baseline_ms"]])
    endless = [name for name, column in columns.items() if np.any(np.abs(column) > LARGEST)]
    if below or endless or np.any((times < SHORTEST_MS) | (times > LONGEST_MS)):
        raise ValueError(f"{', '.join([*below, *endless])}: expected finite measures, and none below zero")
    if np.any(np.isfinite(columns["loss"]) & np.isnan(columns["loss_high"] - columns["loss_low"])):
        raise ValueError("a loss has no interval")
    if np.any(columns["samples"] > columns["total_samples"]):  # such a row would count as stopped early
        raise ValueError("more samples were scored than there are")


def revision_of(connection: Connection, study_target_id: int) -> tuple[int, int]:
    """How often results of a target were stored, and how many evaluations it has.

    Read them before columns, and nothing that these lack has a lower revision.
    """
    t, e = tables.TargetRecord, tables.EvaluationRecord
    count = select(func.count()).where(e.study_target_id == t.id).scalar_subquery()
    row = connection.execute(select(t.revision, count).where(t.id == study_target_id)).one_or_none()
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def renewed_columns(connection: Connection, study_target_id: int, known: Arrays, revision: int, count: int) -> Arrays:
    """As `judged_columns`, of which most are known: only what changed since then is read.

    Args:
        known: the columns as they were read before.
        revision: as it was before they were read.
        count: how many evaluations there were a moment ago.
    """
    e = tables.EvaluationRecord
    # One statement, so that what was running and is in neither part of it now is gone.
    of_target = select(e.id).where(e.study_target_id == study_target_id)
    running, finished = of_target.where(e.status == records.RUNNING), of_target.where(e.revision > revision)
    changed = judged_columns(connection, study_target_id, e.id.in_(union_all(running, finished)))
    same = (known["status"] != records.RUNNING) & ~np.isin(known["id"], changed["id"])
    columns = {name: np.concatenate([known[name][same], column]) for name, column in changed.items()}
    order = np.argsort(columns["id"], kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    if len(order) != count:  # perhaps because others began some
        count = connection.scalar(select(func.count()).where(e.study_target_id == study_target_id)) or 0
    # Results that were deleted, or stored by something else than the store.
    return columns if count == len(order) else judged_columns(connection, study_target_id)


def detail_rows(connection: Connection, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Evaluation id → its details by name."""
    e, t = tables.EvaluationRecord, tables.TrialRecord
    lowest = select(func.min(t.number)).where(t.evaluation_id == e.id, t.study_target_id == e.study_target_id)
    query = select(e.id, lowest.scalar_subquery(), *(_column_of(name) for name in DETAILS[1:]))
    details = {}
    for chunk in chunks(ids):
        for number, *values in plain_rows(connection, query.where(e.id.in_(chunk))):
            details[number] = dict(zip(DETAILS, values, strict=True))
    return details


def detail_column(connection: Connection, study_target_id: int, name: str) -> tuple[Sequence[int], Sequence[Any]]:
    """Ids of the evaluations of one target that have a detail, in any order, and the detail of each."""
    e, t = tables.EvaluationRecord, tables.TrialRecord
    query: Query
    if name == "trial":
        query = select(t.evaluation_id, func.min(t.number)).where(t.study_target_id == study_target_id)
        query = query.group_by(t.evaluation_id)
    else:
        query = select(e.id, _column_of(name)).where(
            e.study_target_id == study_target_id, _column_of(name).is_not(None)
        )
    ids, values = zip(*(plain_rows(connection, query) or [(0, None)]), strict=True)
    return ids, values


def _column_of(name: str) -> Any:
    if name == "moves":
        return tables.EvaluationRecord.engine["moves"].as_integer()
    return tables.EvaluationRecord.__table__.c[name]


def _code() -> Any:
    """One integer for status and role: most evaluations are decided by its first case."""
    e = tables.EvaluationRecord
    pairs = [(role, status) for role in range(len(_ROLES)) for status in range(len(_STATES))]
    cases = [(and_(e.status == _STATES[s], e.role == _ROLES[r]), r * len(_STATES) + s) for r, s in pairs]
    others = [(e.status == status, len(pairs) + number) for number, status in enumerate(_STATES)]
    return case(*cases, *others)


def _set_type(name: str, column: NDArray[np.float64]) -> NDArray[Any]:
    return column if name in FLOATS else np.where(np.isnan(column), -1, column).astype(np.int64)


def _roles(
    connection: Connection, study_target_id: int, ids: NDArray[np.int64], code: NDArray[np.int64]
) -> NDArray[np.str_]:
    """(n,) roles; those that have no number are read by name.

    One that was given up between the two statements has none.
    """
    e, named = tables.EvaluationRecord, np.flatnonzero(code >= len(_ROLES))
    query = select(e.id, e.role).where(e.study_target_id == study_target_id, e.role.not_in(_ROLES))
    known = dict(plain_rows(connection, query)) if len(named) else {}
    words = dict.fromkeys([*_ROLES, *known.values()])
    numbers = {word: number for number, word in enumerate(words)}
    code = code.copy()
    code[named] = [numbers[known.get(number, "")] for number in ids[named].tolist()]
    return np.array(list(words), dtype=np.str_)[code]
