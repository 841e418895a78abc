"""Opening the study database, checking whose tables it has, and creating or upgrading the tables of bitfront."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, insert, inspect, select, text, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from search.errors import BitfrontError, StudyError
from search.installation import upgrade_advice
from studies.options.urls import default_url
from studies.store.database.connections import begin_write, make_engine, no_way_to, one_at_a_time
from studies.store.database.database_url import artifact_folder, check_shareable, hide_password, is_file, parse_url
from studies.store.database.retries import (
    RESTORE,
    InterruptedTransactionError,
    coming_back,
    cut_off,
    is_damaged,
    reason,
    report_errors,
    retry,
)
from studies.store.database.tables import VERSION, Base, SchemaRecord

if TYPE_CHECKING:
    from alembic.operations import Operations
    from optuna.storages import RDBStorage


__all__ = [
    "artifact_folder",
    "begin_write",
    "check_shareable",
    "check_usable",
    "close_optuna",
    "default_url",
    "hide_password",
    "open_engine",
    "optuna_reported",
    "optuna_storage",
    "parse_url",
    "report_errors",
]

OUR_TABLES = frozenset(Base.metadata.tables)
OPTUNA_TABLES = frozenset({"studies", "trials", "version_info"})
ALL_OPTUNA_TABLES = OPTUNA_TABLES | {
    "alembic_version",
    "study_directions",
    "study_system_attributes",
    "study_user_attributes",
    "trial_heartbeats",
    "trial_intermediate_values",
    "trial_params",
    "trial_system_attributes",
    "trial_user_attributes",
    "trial_values",
}
SQLITE_HEADER = b"SQLite format 3\0"
TRIES = 15
OTHERS_S = 10.0  # within this, a program that makes Optuna's tables has made them


@retry
def open_engine(url: str, *, create: bool, write: bool) -> Engine:
    """An engine on a database that holds our tables in their newest version.

    Args:
        create: make the file and the tables where they are missing; implies `write`.
        write: False refuses every write, so that reading can never harm a study.

    Raises:
        StudyError: nothing there to read, not ours, too new, not reachable, or not writable.
    """
    parsed, write = parse_url(url), write or create
    if is_file(parsed):
        _check_file(Path(str(parsed.database)), parsed, create=create, write=write)
    engine = make_engine(parsed, write=write)
    try:
        _prepare(engine, parsed, create=create)
    except BaseException:
        engine.dispose()
        raise
    return engine


@retry
def check_usable(url: str) -> bool:
    """Check, creating nothing, that `open_engine(url, create=True)` will work; whether our tables are there already.

    Raises:
        StudyError: as `open_engine`.
    """
    parsed = parse_url(url)
    if is_file(parsed):
        _check_file(Path(str(parsed.database)), parsed, create=True, write=True)
    return _version_of(parsed, create=True) is not None


@retry
def optuna_storage(url: str) -> RDBStorage:
    """Optuna's storage in the same database, with the same connection settings. Imports Optuna.

    Creates Optuna's tables; call it only for a database that `Store.open` has opened for writing.
    """
    from optuna.exceptions import StorageInternalError

    parsed = parse_url(url)
    with report_errors("open Optuna's tables", parsed, StorageInternalError):
        if _has_optunas(parsed):
            return _trials(url, 1)  # many workers that start together must not do this one after the other
        with one_at_a_time(parsed):
            return _trials(url, TRIES)


@contextmanager
def optuna_reported(url: str) -> Iterator[None]:
    """Turn what Optuna's storage raises into our errors, as `report_errors`."""
    from optuna.exceptions import StorageInternalError

    with report_errors("store a trial", parse_url(url), StorageInternalError):
        yield


def close_optuna(storage: RDBStorage) -> None:
    """Close all connections of Optuna's storage, so that SQLite folds its write-ahead log into the file."""
    storage.remove_session()
    storage.engine.dispose()


def _has_optunas(url: URL) -> bool:
    """Whether a server holds all of Optuna's tables, and the version that it writes last."""
    if is_file(url):
        return False
    engine = make_engine(url, write=False)
    try:
        with engine.connect() as connection:
            there = frozenset(inspect(connection).get_table_names())
            return there >= ALL_OPTUNA_TABLES and bool(connection.scalar(text("select count(*) from alembic_version")))
    finally:
        engine.dispose()


def _trials(url: str, tries: int) -> RDBStorage:
    from optuna.exceptions import StorageInternalError

    from studies.store.database.trial_storage import RetriedStorage

    try:
        return RetriedStorage(url)
    except (DBAPIError, StorageInternalError) as error:
        # Two processes on one SQLite file, or optuna-dashboard, may make Optuna's tables at the same moment: who comes
        # second fails, and then finds them.
        if tries == 1 or cut_off(error):
            raise
    time.sleep(0.1)
    return _trials(url, tries - 1)


def _check_file(path: Path, url: URL, *, create: bool, write: bool) -> None:
    shown = hide_password(url)
    if not path.exists():
        if not create:
            raise StudyError(
                f"There is no database at {shown}. Make one with `bitfront search`, or give another with --storage."
            )
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise StudyError(f"Cannot create the database {shown}: {path.parent} is not a folder that can be written.")
        return
    if not path.is_file() or not os.access(path, os.R_OK):
        raise StudyError(f"Cannot open the database {shown}: expected a readable file.")
    with path.open("rb") as file:
        header = file.read(len(SQLITE_HEADER))
    if header not in (b"", SQLITE_HEADER):
        raise StudyError(f"Cannot open {shown}: the file is not an SQLite database. Give another file with --storage.")
    if write and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise StudyError(
            f"Cannot write to {shown}: it is read-only. Make the file and its folder writable, or use a copy."
        )


def _version_of(url: URL, *, create: bool) -> int | None:
    """Version of our tables, None without them; looks in a way that leaves a database that is not ours as it is."""
    if is_file(url) and not Path(str(url.database)).exists():
        return None
    engine = make_engine(url, write=False)
    try:
        version, tables = _await_tables(engine)
        if version != VERSION and tables:
            with one_at_a_time(url):  # another process may be in the middle of making them
                version, tables = _await_tables(engine)
    except SQLAlchemyError as error:
        nowhere = no_way_to(url)
        message = f"Cannot open the database {hide_password(url)}: {nowhere or reason(error, url)}."
        if isinstance(error, DBAPIError) and cut_off(error) and coming_back(error, reached=not nowhere):
            raise InterruptedTransactionError(message, lost=True) from None
        raise StudyError(f"{message} {RESTORE}" if is_damaged(message, url) else message) from None
    finally:
        engine.dispose()
    _check_ours(version, tables - OUR_TABLES, url, create=create)
    return version


def _prepare(engine: Engine, url: URL, *, create: bool) -> None:
    version = _version_of(url, create=create)
    if version == VERSION:
        return
    if version is not None:
        with _open_upgrade(url) as upgrade:
            version, _ = _look(upgrade)
            if version is None:
                raise BitfrontError("The tables were removed while they were upgraded.")
            if version < VERSION:
                upgrade.execute(update(SchemaRecord).values(version=migrate(upgrade, version)))
        return
    with report_errors("create the tables", url), one_at_a_time(url), begin_write(engine) as connection:
        if _look(connection)[0] is None:
            Base.metadata.create_all(connection)
            connection.execute(insert(SchemaRecord).values(version=VERSION))


def _await_tables(engine: Engine) -> tuple[int | None, frozenset[str]]:
    """As `_look`; waits for tables that Optuna is making: MySQL commits each, and optuna-dashboard takes no lock."""
    deadline = time.monotonic() + OTHERS_S
    while True:
        with engine.connect() as connection:
            version, tables = _look(connection)
        others = tables - OUR_TABLES
        if version is not None or not _half_made(others) or time.monotonic() >= deadline:
            return version, tables
        time.sleep(0.1)


def _half_made(tables: frozenset[str]) -> bool:
    return bool(tables) and tables <= ALL_OPTUNA_TABLES and not tables >= OPTUNA_TABLES


def _look(connection: Connection) -> tuple[int | None, frozenset[str]]:
    """Version of our tables, None without them, and the names of all tables."""
    tables = frozenset(inspect(connection).get_table_names())
    version = connection.scalar(select(SchemaRecord.version)) if SchemaRecord.__tablename__ in tables else None
    return version, tables


def _check_ours(version: int | None, tables: frozenset[str], url: URL, *, create: bool) -> None:
    """Refuse a database by its version or by the tables in it that are not ours.

    Some of ours without a version were left by a process that died while it made them on MySQL, one by one.
    """
    shown = hide_password(url)
    if version is not None and version > VERSION:
        raise StudyError(
            f"opening the database {shown}: expected version {VERSION} of bitfront's tables or older, got version "
            f"{version}, which a newer bitfront wrote. {upgrade_advice()}"
        )
    if version is not None or (create and (not tables or tables >= OPTUNA_TABLES)):
        return
    if not tables:
        raise StudyError(f"The database {shown} is empty. `bitfront search` makes a study in it.")
    if tables >= OPTUNA_TABLES:
        raise StudyError(f"The database {shown} holds Optuna studies, none of bitfront. Name another with --storage.")
    names = ", ".join(sorted(tables)[:5])
    raise StudyError(f"The database {shown} is not bitfront's: it holds {names}. Name another with --storage.")


@contextmanager
def _open_upgrade(url: URL) -> Iterator[Connection]:
    """One writing transaction on an engine of its own: even a reader upgrades old tables, before it reads."""
    if is_file(url):
        _check_file(Path(str(url.database)), url, create=False, write=True)
    engine = make_engine(url, write=True)
    try:
        with report_errors("upgrade the tables", url), one_at_a_time(url), begin_write(engine) as connection:
            yield connection
    finally:
        engine.dispose()


# What takes the tables from a version to the next one, for example {1: add_power} from 1 to 2. A step is frozen once it
# is released: it names its columns and their types itself instead of reading `tables.py`, which moves on. MySQL commits
# every statement by itself, so a step may find half of its work done: it checks what is there before it adds anything.
# Optuna keeps its own version table, `alembic_version`; nothing here touches it.
STEPS: dict[int, Callable[[Operations], None]] = {}


def migrate(connection: Connection, version: int) -> int:
    """Take the tables from `version` to the newest and return that, in the caller's transaction."""
    from alembic.migration import MigrationContext  # reading verbs do without
    from alembic.operations import Operations

    operations = Operations(MigrationContext.configure(connection))
    while version in STEPS:
        STEPS[version](operations)
        version += 1
    return version
