"""A step of the tables that no release has: what a bitfront with one version more would do to a database of today."""

from __future__ import annotations

from alembic.operations import Operations
from sqlalchemy import Column, Integer, inspect

from studies.store.database import database, tables

NEXT = tables.VERSION + 1


def add_toy(operations: Operations) -> None:
    """Add the column `toy` to `bf_study`; where `bf_gone` is there, fail after that."""
    inspector = inspect(operations.get_bind())
    if "toy" not in {column["name"] for column in inspector.get_columns("bf_study")}:
        operations.add_column("bf_study", Column("toy", Integer))
    if inspector.has_table("bf_gone"):
        operations.drop_column("bf_gone", "no such column")


def install() -> None:
    """Make this process the newer bitfront."""
    database.STEPS[tables.VERSION] = add_toy
    database.VERSION = NEXT
