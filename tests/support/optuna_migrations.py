"""Optuna's migrations are read once a process: it reads a dozen files three times for every database that it makes."""

from __future__ import annotations

import functools
from typing import Any

from optuna.storages._rdb import storage


def read_migrations_once() -> None:
    """In this process, and in those that are forked from it. An Optuna that keeps them elsewhere is left as it is."""
    manager = getattr(storage, "_VersionManager", None)
    read = getattr(manager, "_create_alembic_script", None)
    if manager is None or read is None or hasattr(read, "cache_info"):
        return

    @functools.cache
    def scripts() -> Any:
        anywhere = object.__new__(manager)
        anywhere.url = "sqlite://"  # only what upgrades a database takes it from there
        return read(anywhere)

    def read_once(_: Any) -> Any:
        return scripts()

    read_once.cache_info = scripts.cache_info  # type: ignore[attr-defined]
    scripts()
    manager._create_alembic_script = read_once
