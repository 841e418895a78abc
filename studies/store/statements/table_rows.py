"""Statements on rows of any table, conditions on leases, and the merging of stored options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Delete, Update, delete, insert, or_, select
from sqlalchemy.exc import IntegrityError

from studies.store.database import column_types, tables

CHUNK = 500  # values of one IN list; SQLite's oldest limit is 999


def select_all(table: type[tables.Base], *conditions: Any) -> Any:
    """A query for all columns of the rows that meet the conditions."""
    return select(*table.__table__.c).where(*conditions)


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
            added: Any = connection.execute(insert(table).values(**values)).inserted_primary_key
            return added[0]
    except IntegrityError:
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


def meets_row(connection: Connection, statement: Update | Delete) -> bool:
    """Whether the statement met a row."""
    return connection.execute(statement).rowcount > 0


def chunks(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Pieces that fit one IN list."""
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))


def is_free(table: Any, worker: str, lease_s: float) -> Any:
    """SQL: whether the worker of a lease or task did not renew it for too long, has ended, or is the one that asks."""
    ended = select(tables.WorkerRecord.name).where(tables.WorkerRecord.ended_at.is_not(None))
    return or_(table.worker == worker, table.heartbeat < column_types.utc_ago(lease_s), table.worker.in_(ended))


def merge_options(
    known: Mapping[str, Any], options: Mapping[str, Any], seen: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Which of the stored options a run changes.

    Between reading and writing a run checks its inputs and calibrates, while others may store their options. An option
    that was given just as it had been read is no change and overwrites nothing. Of two totals of trials the larger
    stays, for workers that count to it are at work; of anything else the later value.

    Args:
        known: the options that are stored now.
        options: those that the run was given.
        seen: the stored options as the run had read them; None if it had not.
    """
    if seen is None:
        return dict(options)
    changed = {name: value for name, value in options.items() if name not in seen or value != seen[name]}
    if "trials" in changed and known.get("trials") not in (None, seen.get("trials")):
        changed["trials"] = max(changed["trials"], known["trials"])
    return changed
