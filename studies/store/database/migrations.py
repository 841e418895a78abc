"""Steps from one version of the `bf_` tables to the next.

A step is frozen once it is released: it names its columns and their types itself instead of reading `tables.py`, which
moves on. Optuna keeps its own version table, `alembic_version`; nothing here touches it.
"""

from __future__ import annotations

from collections.abc import Callable

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection

# What takes the tables from a version to the next one, for example {1: add_power} from 1 to 2. MySQL commits every
# statement by itself, so a step may find half of its work done: it checks what is there before it adds anything.
STEPS: dict[int, Callable[[Operations], None]] = {}


def migrate(connection: Connection, version: int) -> int:
    """Take the tables from `version` to the newest and return that, in the caller's transaction."""
    operations = Operations(MigrationContext.configure(connection))
    while version in STEPS:
        STEPS[version](operations)
        version += 1
    return version
