"""Connections to the study database: pool, pragmas, session settings, transactions, locks between processes.

Ours and Optuna's engines are made with the same settings.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, func, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError, OperationalError
from sqlalchemy.pool import NullPool

from search.errors import RunError, StudyError
from studies.store.database.database_url import MYSQL, hide_password, is_file

BUSY_S = 30
CONNECT_S = 10
RECYCLE_S = 1800  # firewalls forget connections that are idle for longer
ANSWER_S = 600  # the longest statement is an upgrade of large tables; a server that is silent for longer is gone
# A worker that is stopped in the middle of a transaction loses it, and its locks, after this. Much longer than a
# transaction takes: of many workers on few cores one may get no processor time for 20 s.
HOLD_S = 60
STATEMENT_S = 120.0  # of processor time for one statement of SQLite with reading its rows
_LOOK_EVERY = 200_000  # instructions of SQLite
_BEGAN = "bitfront_began"  # when the statement of a connection began, in processor time of its thread
LOCK_S = 300  # how long another process may take to create or upgrade the tables
WRITES = "bitfront_writes"  # execution option: the transaction is going to write
PLAIN = "bitfront_plain"  # execution option: rows are taken from the driver as they are, so they may come in binary
_LONGER = "bitfront_longer"  # of a connection whose limit `hold_longer` raised
PORTS = {"postgresql": 5432, "mysql": 3306}
DRIVERS = {"postgresql": ("postgresql+psycopg", "psycopg[binary]"), "mysql": ("mysql+pymysql", "pymysql[rsa]")}
# A network that swallows packets is noticed within a minute, not after the two hours of the system's defaults.
KEEPALIVES = {"keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 50_000}


def make_engine(url: URL, *, write: bool) -> Engine:
    """An engine whose connections have our settings; it opens none yet.

    Args:
        write: False refuses every write.

    Raises:
        StudyError: the driver is not installed.
    """
    target = _readable(url) if is_file(url) and not write else url
    try:
        engine = create_engine(target, json_serializer=_to_json, **engine_settings(url))
    except (ImportError, NoSuchModuleError) as error:
        scheme, package = DRIVERS.get(url.get_backend_name(), ("", ""))
        hint = (
            f"Install one with `pip install '{package}'` and write {scheme}://…"
            if package
            else "Known: " + ", ".join(["sqlite", *DRIVERS])
        )
        raise StudyError(f"No driver for the database {hide_password(url)}: {error}. {hint}.") from None
    settle(engine, write=write)
    if is_file(url):
        event.listen(engine, "begin", _begin)
    if engine.driver == "psycopg":
        event.listen(engine, "before_cursor_execute", _ask_for_binary)
    return engine


def engine_settings(url: URL) -> dict[str, Any]:
    """What `create_engine` is told for this kind of database, by Optuna too."""
    if is_file(url):
        return {"connect_args": {"timeout": BUSY_S}}
    # Few connections: with one thread for the study and one for its heartbeat, a worker needs hardly more than two.
    settings: dict[str, Any] = {"pool_pre_ping": True, "pool_recycle": RECYCLE_S, "pool_size": 2, "max_overflow": 8}
    # Whatever the server's default is: a transaction sees what others committed while it waited for a lock, or nothing
    # could be counted exactly; and MySQL does not lock gaps between rows.
    settings["isolation_level"] = "READ COMMITTED"
    return {**settings, "connect_args": _connect_args(url)}


def settle(engine: Engine, *, write: bool) -> None:
    """Give every new connection of an engine the settings that are made by statements."""
    kind = "mysql" if engine.dialect.name in MYSQL else engine.dialect.name
    listeners = {
        "sqlite": _set_pragmas if write else _set_reading_pragmas,
        "postgresql": _set_postgresql if write else _set_reading_postgresql,
        "mysql": _set_mysql if write else _set_reading_mysql,
    }
    if kind in listeners:
        event.listen(engine, "connect", listeners[kind])
    if kind == "sqlite":
        event.listen(engine, "connect", _bound_statements)
        event.listen(engine, "before_cursor_execute", _begin_statement)
    if kind == "mysql":
        event.listen(engine, "reset", _hold_no_longer)


def hold_longer(connection: Connection) -> None:
    """Let this transaction, which only reads, take as long as a large study takes to be made into objects."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{ANSWER_S}s'")
    elif connection.dialect.name in MYSQL:
        connection.exec_driver_sql(f"SET SESSION wait_timeout = {ANSWER_S}")
        connection.info[_LONGER] = True


def no_way_to(url: URL) -> str:
    """Why the network does not get to the server's host; empty if it does, also where nothing answers there.

    psycopg says of an unreachable host what it says of a server that is going down: that it closed the connection.
    """
    if is_file(url) or not url.host or url.host.startswith("/"):
        return ""
    try:
        socket.create_connection((url.host, url.port or PORTS.get(url.get_backend_name(), 0)), CONNECT_S).close()
    except OSError as error:
        return "" if isinstance(error, ConnectionError) else f"connecting to {url.host}: {error.strerror or error}"
    return ""


@contextmanager
def begin_write(engine: Engine) -> Iterator[Connection]:
    """One writing transaction: committed at the end, rolled back by any exception."""
    with engine.connect() as connection:
        connection.execution_options(**{WRITES: True})
        with connection.begin():
            yield connection


@contextmanager
def one_at_a_time(url: URL) -> Iterator[None]:
    """Hold a lock on the server that only one process at a time gets: to create or upgrade tables.

    It goes with its connection, so also with the process. SQLite has its own: writers of a file go one by one.

    Raises:
        RunError: another process has held it for LOCK_S.
    """
    if is_file(url):
        yield
        return
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=_connect_args(url))
    name = hashlib.sha256(f"bitfront tables {url.database}".encode()).hexdigest()
    with engine.connect() as connection:
        # Autocommit, so that waiting is no open transaction: those are cut off, and hold up what the other is doing.
        if not (_lock_mysql if url.get_backend_name() in MYSQL else _lock_postgresql)(connection, name):
            raise RunError(
                f"Another process has been making the tables of {hide_password(url)} for {LOCK_S} s. Wait for it, or "
                "end it."
            )
        yield


def _lock_postgresql(connection: Connection, name: str) -> bool:
    connection.exec_driver_sql(f"SET lock_timeout = '{LOCK_S}s'")
    try:
        connection.execute(select(func.pg_advisory_lock(int(name[:15], 16))))
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) == "55P03":
            return False
        raise
    return True


def _lock_mysql(connection: Connection, name: str) -> bool:
    return bool(connection.scalar(select(func.get_lock(name, LOCK_S))) == 1)


def _readable(url: URL) -> URL:
    """Where the file or folder cannot be written, SQLite has to be told, or WAL databases do not open."""
    path = Path(str(url.database))
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return url
    query = {"uri": "true", "mode": "ro"}
    if not Path(f"{path}-wal").exists():
        query["immutable"] = "1"
    return url.set(database=path.as_uri(), query=query)


def _connect_args(url: URL) -> dict[str, Any]:
    """What the driver is told, as far as the URL does not say it."""
    known: dict[str, dict[str, Any]] = {
        "psycopg": {"connect_timeout": CONNECT_S, **KEEPALIVES},
        "psycopg2": {"connect_timeout": CONNECT_S, **KEEPALIVES},
        "pymysql": {"connect_timeout": CONNECT_S, "read_timeout": ANSWER_S, "write_timeout": ANSWER_S},
        "mysqldb": {"connect_timeout": CONNECT_S},
    }
    wanted = known.get(url.get_driver_name(), {})
    return {name: value for name, value in wanted.items() if name not in url.query}


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _set_pragmas(connection: Any, _: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout={BUSY_S * 1000}").close()
    _set_wal(connection)
    for pragma in ("synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _set_wal(connection: Any) -> None:
    """WAL lets the readers of a running study work; NORMAL cannot corrupt a WAL database and saves an fsync a commit.

    SQLite does not wait for one that is writing in another journal mode: a new file that others open at the same time.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return connection.execute("PRAGMA journal_mode=WAL").close()  # type: ignore[no-any-return]
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(0.02)


def _set_reading_pragmas(connection: Any, _: Any) -> None:
    for pragma in ("query_only=ON", f"busy_timeout={BUSY_S * 1000}"):
        connection.execute(f"PRAGMA {pragma}").close()


def _bound_statements(connection: Any, record: Any) -> None:
    """End a statement that would run for ever: a view or a trigger in a file may ask for anything."""
    began = record.info[_BEGAN] = [time.thread_time()]
    connection.set_progress_handler(lambda: time.thread_time() - began[0] > STATEMENT_S, _LOOK_EVERY)


def _begin_statement(connection: Connection, *_: Any) -> None:
    connection.info[_BEGAN][0] = time.thread_time()


def _set_postgresql(connection: Any, _: Any) -> None:
    _say(connection, f"SET idle_in_transaction_session_timeout = '{HOLD_S}s'")


def _set_reading_postgresql(connection: Any, _: Any) -> None:
    _say(connection, f"SET idle_in_transaction_session_timeout = '{HOLD_S}s'; SET default_transaction_read_only = on")


def _set_mysql(connection: Any, _: Any) -> None:
    # MySQL has no limit for idle transactions alone. An idle connection that it closes is opened again when needed.
    _say(connection, f"SET SESSION wait_timeout = {HOLD_S}, SESSION innodb_lock_wait_timeout = {2 * HOLD_S}")


def _hold_no_longer(connection: Any, record: Any, _: Any) -> None:
    if connection is not None and record.info.pop(_LONGER, False):
        _set_mysql(connection, record)


def _set_reading_mysql(connection: Any, record: Any) -> None:
    _set_mysql(connection, record)
    _say(connection, "SET SESSION TRANSACTION READ ONLY")


def _say(connection: Any, statement: str) -> None:
    cursor = connection.cursor()
    cursor.execute(statement)
    cursor.close()
    connection.commit()


def _ask_for_binary(_: Connection, cursor: Any, __: str, ___: Any, context: Any, ____: bool) -> None:
    """Numbers that PostgreSQL writes as text and psycopg parses take three times as long."""
    if context is not None and context.execution_options.get(PLAIN):
        cursor.format = 1


def _begin(connection: Connection) -> None:
    """Start the transaction ourselves: Python's sqlite3 starts none before DDL and reads.

    A writer takes its lock at once: one that starts as a reader is refused, without waiting, when another wrote since.
    """
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
