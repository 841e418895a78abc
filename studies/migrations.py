"""Steps from one version of the `bf_` tables to the next. A step is frozen once released: it repeats column types
instead of using `tables.py`, which moves on. Optuna keeps its own `alembic_version` table, which is never touched here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    inspect,
    true,
)
from sqlalchemy.dialects.mysql import DATETIME, LONGTEXT
from sqlalchemy.types import TypeEngine


def migrate(connection: Connection, version: int) -> int:
    """Take the tables from `version` to the newest and return that; the caller's transaction, which it commits.

    On MySQL every step commits by itself; steps therefore check what is already there.
    """
    operations = Operations(MigrationContext.configure(connection))
    while version in STEPS:
        STEPS[version](operations)
        version += 1
    return version


def _edges_memory_warnings(operations: Operations) -> None:
    """1 → 2: `bf_edge`, memory of an evaluation, warnings of a measurement."""
    if not inspect(operations.get_bind()).has_table("bf_edge"):
        operations.create_table(
            "bf_edge",
            Column("study_id", Integer, nullable=False),
            Column("position", Integer, nullable=False, autoincrement=False),
            Column("source", String(40)),
            Column("target", String(40), nullable=False),
            Column("elements", BigInteger, nullable=False),
            Column("tensor", _long_text(), nullable=False),
            PrimaryKeyConstraint("study_id", "position", name="pk_bf_edge"),
            ForeignKeyConstraint(["study_id"], ["bf_study.id"], name="fk_bf_edge_study_id", ondelete="CASCADE"),
        )
    _add_column(operations, "bf_evaluation", Column("memory_bytes", BigInteger))
    _add_column(operations, "bf_sample", Column("warnings", JSON))


def _engines_profiles(operations: Operations) -> None:
    """2 → 3: `bf_profile`, what an engine is made of, what cannot be built, what surrounds a measurement."""
    if not inspect(operations.get_bind()).has_table("bf_profile"):
        operations.create_table(
            "bf_profile",
            Column("evaluation_id", Integer, nullable=False),
            Column("position", Integer, nullable=False, autoincrement=False),
            Column("group", String(40)),
            Column("moves", Boolean, nullable=False),
            Column("ms", Double, nullable=False),
            Column("kind", _long_text(), nullable=False),
            Column("name", _long_text(), nullable=False),
            PrimaryKeyConstraint("evaluation_id", "position", name="pk_bf_profile"),
            ForeignKeyConstraint(
                ["evaluation_id"], ["bf_evaluation.id"], name="fk_bf_profile_evaluation_id", ondelete="CASCADE"
            ),
            sqlite_with_rowid=False,
        )
    _add_column(operations, "bf_choice", Column("buildable", Boolean, nullable=False, server_default=true()))
    _add_column(operations, "bf_evaluation", Column("engine", JSON))
    _add_column(operations, "bf_trial", Column("asked_assignment", JSON))
    _add_column(operations, "bf_audit", Column("details", JSON))
    _add_column(operations, "bf_sample", Column("details", JSON))


def _sensitivities(operations: Operations) -> None:
    """3 → 4: `bf_sensitivity`."""
    if not inspect(operations.get_bind()).has_table("bf_sensitivity"):
        numbers = ("error", "flipped", "sqnr_db", "kl", "overlap", "saturated")
        operations.create_table(
            "bf_sensitivity",
            Column("study_target_id", Integer, nullable=False),
            Column("group", String(40), nullable=False),
            Column("precision", Integer, nullable=False, autoincrement=False),
            *(Column(name, Double) for name in numbers),
            Column("samples", Integer, nullable=False),
            PrimaryKeyConstraint("study_target_id", "group", "precision", name="pk_bf_sensitivity"),
            ForeignKeyConstraint(
                ["study_target_id"],
                ["bf_study_target.id"],
                name="fk_bf_sensitivity_study_target_id",
                ondelete="CASCADE",
            ),
        )


def _workers(operations: Operations) -> None:
    """4 → 5: `bf_worker`, `bf_task`, `bf_file`, how often an evaluation changed hands, options of a target, and indexes
    for what is counted."""
    if not inspect(operations.get_bind()).has_table("bf_worker"):
        operations.create_table(
            "bf_worker",
            Column("id", Integer, nullable=False),
            Column("study_target_id", Integer, nullable=False),
            Column("name", String(200), nullable=False),
            Column("host", String(200), nullable=False),
            Column("device", String(200), nullable=False),
            Column("pid", Integer, nullable=False),
            Column("state", String(40), nullable=False),
            Column("started_at", _time(), nullable=False),
            Column("heartbeat", _time(), nullable=False),
            Column("ended_at", _time()),
            PrimaryKeyConstraint("id", name="pk_bf_worker"),
            UniqueConstraint("name", name="uq_bf_worker_name"),
            _of_study_target("bf_worker"),
        )
    _add_index(operations, "bf_worker", "study_target_id")
    if not inspect(operations.get_bind()).has_table("bf_task"):
        operations.create_table(
            "bf_task",
            Column("study_target_id", Integer, nullable=False),
            Column("name", String(40), nullable=False),
            Column("worker", String(200), nullable=False),
            Column("acquired", _time(), nullable=False),
            Column("heartbeat", _time(), nullable=False),
            PrimaryKeyConstraint("study_target_id", "name", name="pk_bf_task"),
            _of_study_target("bf_task"),
        )
    _add_column(operations, "bf_evaluation", Column("takeovers", Integer, nullable=False, server_default="0"))
    _add_index(operations, "bf_sample", "round")
    _add_index(operations, "bf_evaluation", "study_target_id", "status", "role", "worker")
    _drop_index(operations, "bf_evaluation", "study_target_id", "status")
    if not inspect(operations.get_bind()).has_table("bf_file"):
        operations.create_table(
            "bf_file",
            Column("study_id", Integer, nullable=False),
            Column("role", String(40), nullable=False),
            Column("position", Integer, nullable=False, autoincrement=False),
            Column("digest", String(64), nullable=False),
            Column("size_bytes", BigInteger, nullable=False),
            Column("name", _long_text(), nullable=False),
            PrimaryKeyConstraint("study_id", "role", "position", name="pk_bf_file"),
            ForeignKeyConstraint(["study_id"], ["bf_study.id"], name="fk_bf_file_study_id", ondelete="CASCADE"),
        )
    _add_index(operations, "bf_file", "digest")
    _add_column(operations, "bf_study_target", Column("options", JSON))


def _of_study_target(table: str) -> ForeignKeyConstraint:
    name = f"fk_{table}_study_target_id"
    return ForeignKeyConstraint(["study_target_id"], ["bf_study_target.id"], name=name, ondelete="CASCADE")


def _time() -> TypeEngine[datetime]:
    return DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def _long_text() -> TypeEngine[str]:
    return Text().with_variant(LONGTEXT(), "mysql", "mariadb")


def _add_index(operations: Operations, table: str, *columns: str) -> None:
    if _index(table, *columns) not in _indexes(operations, table):
        operations.create_index(_index(table, *columns), table, list(columns))


def _drop_index(operations: Operations, table: str, *columns: str) -> None:
    if _index(table, *columns) in _indexes(operations, table):
        operations.drop_index(_index(table, *columns), table)


def _index(table: str, *columns: str) -> str:
    return f"ix_{table}_{'_'.join(columns)}"


def _indexes(operations: Operations, table: str) -> set[str | None]:
    return {existing["name"] for existing in inspect(operations.get_bind()).get_indexes(table)}


def _add_column(operations: Operations, table: str, column: Column[Any]) -> None:
    if column.name not in {existing["name"] for existing in inspect(operations.get_bind()).get_columns(table)}:
        operations.add_column(table, column)


STEPS = {1: _edges_memory_warnings, 2: _engines_profiles, 3: _sensitivities, 4: _workers}
