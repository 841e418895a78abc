"""What libraries make anew at each use is made once a process of tests, and in those that are forked from it.

A command of a test takes half a second of a processor, and a third of that went into the same tables, statements and
converters as in the command before. A library that does any of it elsewhere is left as it is.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.storages._rdb import storage
from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from studies.store.database.database_url import is_file, parse_url
from studies.store.store import Store, close_optuna, optuna_storage

_TEMPORARY = tempfile.gettempdir()  # tests point it elsewhere later
_STATEMENTS: LRUCache[Any, Any] = LRUCache(4000)
_ALIKE: tuple[Any, ...] = (SQLiteDialect_pysqlite, PGDialect_psycopg)  # MySQL's know what server it is when connected
_DONE: list[bool] = []
_NO_PART = frozenset(  # of how the value of an option is read
    "autocompletion callback default default_factory envvar expose_value help hidden is_eager metavar param_decls "
    "rich_help_panel shell_complete show_choices show_default show_envvar".split()
)


def make_once() -> None:
    """Migrations of Optuna, SQL of statements on SQLite and PostgreSQL, and converters of options."""
    _read_migrations_once()
    if not _DONE:
        _DONE.append(True)
        _compile_once()
        with suppress(ImportError, AttributeError):
            adapters = importlib.import_module("typer._adapters")
            adapters.try_build_adapter = _built_once(adapters.try_build_adapter)  # type: ignore[attr-defined]


def _read_migrations_once() -> None:
    """Optuna reads a dozen files three times for every database that it makes."""
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


def _compile_once() -> None:
    """Every engine has a cache of its own, by its dialect: all of a kind that write JSON alike are given one."""
    made = Engine.__init__

    def facts(dialect: Any) -> tuple[Any, ...]:
        return type(dialect), dialect._json_serializer, dialect._json_deserializer

    def with_cache(self: Engine, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        if type(self.dialect) in _ALIKE:
            self._compiled_cache = _STATEMENTS

    Engine.__init__ = with_cache  # type: ignore[method-assign]
    for dialect in _ALIKE:
        dialect.__eq__ = lambda one, other: type(other) in _ALIKE and facts(one) == facts(other)
        dialect.__hash__ = lambda one: hash(facts(one))


def _built_once(build: Any) -> Any:
    """One converter for all options that are read alike: it takes a millisecond, and a search has 65 options."""
    known: dict[Any, Any] = {}

    def build_once(annotation: Any, parameter_info: Any) -> Any:
        rest = sorted((name, value) for name, value in vars(parameter_info).items() if name not in _NO_PART)
        try:
            key = (annotation, tuple(rest))
            return known[key] if key in known else known.setdefault(key, build(annotation, parameter_info))
        except TypeError:  # something that cannot be a key
            return build(annotation, parameter_info)

    return build_once


@functools.cache
def empty_database() -> Path:
    """One with our tables and Optuna's. Copy it, do not write to it."""
    folder = Path(tempfile.mkdtemp(prefix="bitfront-test-", dir=_TEMPORARY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_tables(f"sqlite:///{folder / 'empty.db'}")
    return folder / "empty.db"


def make_tables(url: str) -> None:
    """Ours and Optuna's, in an empty database."""
    with Store.open(url, create=True):
        close_optuna(optuna_storage(url))


def copy_tables(url: str) -> None:
    """Put tables where an SQLite file is going to be made; elsewhere, and where nothing can be written, do nothing."""
    parsed = parse_url(url)
    path = Path(str(parsed.database))
    if is_file(parsed) and not os.path.lexists(path) and path.parent.is_dir():
        try:
            shutil.copyfile(empty_database(), path)
        except OSError:
            path.unlink(missing_ok=True)
