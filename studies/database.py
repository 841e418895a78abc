"""Opening the study database: what a URL means, whose tables it holds, and how its connections behave."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, select, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from search.errors import BitfrontError, RunError, StudyError
from studies.tables import VERSION, Base, Schema

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

OPTUNA_TABLES = frozenset({"studies", "trials", "alembic_version"})
SQLITE_HEADER = b"SQLite format 3\0"
BUSY_S = 30
CONNECT_S = 10
WRITES = "bitfront_writes"  # execution option: the transaction is going to write
SECRETS = ("password", "passwd", "passphrase", "secret", "token")
DRIVERS = {"postgresql": ("postgresql+psycopg", "psycopg[binary]"), "mysql": ("mysql+pymysql", "pymysql")}


def default_url() -> str:
    """The database used when none is named: a file in the current folder."""
    return "sqlite:///bitfront.db"


def parse_url(url: str) -> URL:
    """Read a database URL; SQLite paths become absolute, so that a later chdir does not move the database.

    Raises:
        StudyError: it is no database URL, or names an SQLite database that is no file.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        # An unreadable URL is not repeated: nobody can tell where in it the password stands.
        raise StudyError(
            "The database URL cannot be read. Expected dialect://user:password@host/database, "
            "say sqlite:///bitfront.db or postgresql+psycopg://me@db/studies, with special characters "
            "in a password written as %40 and the like."
        ) from None
    if backend != "sqlite":
        return parsed
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise StudyError(
            f"The database {hide_password(parsed)} is no plain file. A study must outlive its process: "
            "give a path, say sqlite:///bitfront.db."
        )
    return parsed.set(database=os.path.abspath(parsed.database))


def hide_password(url: URL | str) -> str:
    """The URL with passwords, also those in its query, replaced by ***; fit for messages, logs and reports."""
    parsed = make_url(url) if isinstance(url, str) else url
    hidden = parsed.update_query_dict(dict.fromkeys(_secrets(parsed), "***"))
    return hidden.render_as_string(hide_password=True).replace("%2A%2A%2A", "***")


def artifact_folder(url: str, given: Path | None = None) -> Path:
    """Where artifacts of this database lie: the folder given, else beside the SQLite file.

    Raises:
        StudyError: the database is on a server and no folder was given.
    """
    if given is not None:
        return given.absolute()
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return Path(f"{parsed.database}.artifacts")
    raise StudyError(
        f"The database {hide_password(parsed)} is on a server, so engines need a folder of their own. "
        "Name one that all workers of the study see."
    )


def open_engine(url: str, *, create: bool, write: bool) -> Engine:
    """An engine on a database that holds our tables in their newest version.

    Args:
        create: make the file and the tables where they are missing; implies `write`.
        write: False refuses every write, so that reading can never harm a study.

    Raises:
        StudyError: nothing there to read, not ours, too new, not reachable, or not writable.
    """
    parsed, write = parse_url(url), write or create
    if parsed.get_backend_name() == "sqlite":
        _check_file(Path(str(parsed.database)), parsed, create=create, write=write)
    engine = _engine(parsed, write=write)
    try:
        _prepare(engine, parsed, create=create)
    except BaseException:
        engine.dispose()
        raise
    return engine


def check_usable(url: str) -> bool:
    """Check, creating nothing, that `open_engine(url, create=True)` will work; whether our tables are there already.

    Raises:
        StudyError: as `open_engine`.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        _check_file(Path(str(parsed.database)), parsed, create=True, write=True)
    return _version_of(parsed, create=True) is not None


def optuna_storage(url: str) -> RDBStorage:
    """Optuna's storage in the same database, with the same connection settings. Imports Optuna.

    Creates Optuna's tables; call it only for a database that `Store.open` has opened for writing.
    """
    from optuna.storages import RDBStorage

    parsed = parse_url(url)
    with reported("open Optuna's tables", parsed):
        storage = RDBStorage(
            parsed.render_as_string(hide_password=False), engine_kwargs={"connect_args": _connect_args(parsed)}
        )
    if parsed.get_backend_name() == "sqlite":
        event.listen(storage.engine, "connect", _set_pragmas)
        storage.scoped_session.remove()
        storage.engine.dispose()  # connections made before the listener
    return storage


@contextmanager
def optuna_reported(url: str) -> Iterator[None]:
    """Turn what Optuna's storage raises into our errors, as `reported`."""
    from optuna.exceptions import StorageInternalError

    with reported("store a trial", parse_url(url)):
        try:
            yield
        except StorageInternalError as error:
            raise error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error from error


def close_optuna(storage: RDBStorage) -> None:
    """Close all connections of Optuna's storage, so that SQLite folds its write-ahead log into the file."""
    storage.remove_session()
    storage.engine.dispose()


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One writing transaction: committed at the end, rolled back by any exception."""
    with engine.connect() as connection:
        connection.execution_options(**{WRITES: True})
        with connection.begin():
            yield connection


@contextmanager
def reported(action: str, url: URL) -> Iterator[None]:
    """Turn what the database driver raises into our errors, passwords left out.

    Raises:
        StudyError: the database is read-only, or has not the tables it should have.
        RunError: anything else, such as a full disk or a lost server; the transaction was rolled back.
    """
    try:
        yield
    except IntegrityError:
        raise
    except (SQLAlchemyError, sqlite3.Error) as error:
        reason = _reason(error, url)
        message = f"Could not {action} in {hide_password(url)}: {reason}."
        if "readonly" in reason or "read-only" in reason:
            raise StudyError(f"{message} Make the file and its folder writable, or work on a copy.") from None
        raise RunError(f"{message} Nothing of this step was stored; `resume` goes on when the cause is gone.") from None


def _reason(error: Exception, url: URL) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
    for secret in (url.password, *_secrets(url).values()):
        text = text.replace(str(secret), "***") if secret else text
    return text


def _secrets(url: URL) -> dict[str, Any]:
    """What stands in the query of a URL and must not be shown."""
    return {key: value for key, value in url.query.items() if any(word in key.lower() for word in SECRETS)}


def _check_file(path: Path, url: URL, *, create: bool, write: bool) -> None:
    shown = hide_password(url)
    if not path.exists():
        if not create:
            raise StudyError(f"There is no database at {shown}. `bitfront search` makes one, --storage names another.")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise StudyError(f"Cannot create the database {shown}: {path.parent} is no folder that can be written.")
        return
    if not path.is_file() or not os.access(path, os.R_OK):
        raise StudyError(f"Cannot open the database {shown}: expected a readable file.")
    with path.open("rb") as file:
        header = file.read(len(SQLITE_HEADER))
    if header not in (b"", SQLITE_HEADER):
        raise StudyError(f"Cannot open {shown}: the file is no SQLite database. Name another file with --storage.")
    if write and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise StudyError(f"Cannot write to {shown}: it is read-only. Make file and folder writable, or use a copy.")


def _engine(url: URL, *, write: bool) -> Engine:
    local = url.get_backend_name() == "sqlite"
    target = _readable(url) if local and not write else url
    try:
        engine = create_engine(
            target, json_serializer=_to_json, connect_args=_connect_args(url), pool_pre_ping=not local
        )
    except (ImportError, NoSuchModuleError) as error:
        raise StudyError(_driver_missing(url, error)) from None
    if local:
        event.listen(engine, "connect", _set_pragmas if write else _set_reading_pragmas)
        event.listen(engine, "begin", _begin)
    return engine


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
    if url.get_backend_name() == "sqlite":
        return {"timeout": BUSY_S}
    if url.get_driver_name() in ("psycopg", "psycopg2", "pymysql", "mysqldb") and "connect_timeout" not in url.query:
        return {"connect_timeout": CONNECT_S}
    return {}


def _driver_missing(url: URL, error: Exception) -> str:
    scheme, package = DRIVERS.get(url.get_backend_name(), ("", ""))
    hint = (
        f"Install one with `pip install '{package}'` and write {scheme}://…"
        if package
        else "Known: " + ", ".join(["sqlite", *DRIVERS])
    )
    return f"No driver for the database {hide_password(url)}: {error}. {hint}."


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _set_pragmas(connection: Any, _: Any) -> None:
    # WAL lets the readers of a running study work; NORMAL cannot corrupt a WAL database and saves an fsync a commit.
    for pragma in (f"busy_timeout={BUSY_S * 1000}", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _set_reading_pragmas(connection: Any, _: Any) -> None:
    for pragma in ("query_only=ON", f"busy_timeout={BUSY_S * 1000}"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    """Start the transaction ourselves: Python's sqlite3 starts none before DDL and reads.

    A writer takes its lock at once: one that starts as a reader is refused, without waiting, when another wrote since.
    """
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _version_of(url: URL, *, create: bool) -> int | None:
    """Version of our tables, None without them; looks in a way that leaves a database that is not ours as it is."""
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        return None
    engine = _engine(url, write=False)
    try:
        with engine.connect() as connection:
            version, tables = _look(connection)
    except SQLAlchemyError as error:
        raise StudyError(f"Cannot open the database {hide_password(url)}: {_reason(error, url)}.") from None
    finally:
        engine.dispose()
    _check_ours(version, tables, url, create=create)
    return version


def _prepare(engine: Engine, url: URL, *, create: bool) -> None:
    version = _version_of(url, create=create)
    if version == VERSION:
        return
    if version is not None:
        with _upgrading(url) as upgrade:
            _upgrade(upgrade)
        return
    with reported("create the tables", url), writing(engine) as connection:
        _create(connection)


def _look(connection: Connection) -> tuple[int | None, frozenset[str]]:
    """Version of our tables, None without them, and the names of all tables."""
    tables = frozenset(inspect(connection).get_table_names())
    version = connection.scalar(select(Schema.version)) if Schema.__tablename__ in tables else None
    return version, tables


def _check_ours(version: int | None, tables: frozenset[str], url: URL, *, create: bool) -> None:
    shown = hide_password(url)
    if version is not None and version > VERSION:
        raise StudyError(
            f"The database {shown} has version {version} of bitfront's tables, this bitfront knows up to {VERSION}. "
            "Upgrade bitfront: pip install -U bitfront."
        )
    if version is not None or (create and (not tables or tables >= OPTUNA_TABLES)):
        return
    if not tables:
        raise StudyError(f"The database {shown} is empty. `bitfront search` makes a study in it.")
    if tables >= OPTUNA_TABLES:
        raise StudyError(f"The database {shown} holds Optuna studies, none of bitfront. Name another with --storage.")
    names = ", ".join(sorted(tables)[:5])
    raise StudyError(f"The database {shown} is not bitfront's: it holds {names}. Name another with --storage.")


def _create(connection: Connection) -> None:
    if _look(connection)[0] is None:
        Base.metadata.create_all(connection)
        connection.execute(insert(Schema).values(version=VERSION))


@contextmanager
def _upgrading(url: URL) -> Iterator[Connection]:
    """One writing transaction on an engine of its own: even a reader upgrades old tables, before it reads."""
    if url.get_backend_name() == "sqlite":
        _check_file(Path(str(url.database)), url, create=False, write=True)
    engine = _engine(url, write=True)
    try:
        with reported("upgrade the tables", url), writing(engine) as connection:
            yield connection
    finally:
        engine.dispose()


def _upgrade(connection: Connection) -> None:
    from studies.migrations import migrate

    version, _ = _look(connection)
    if version is None:
        raise BitfrontError("The tables went away while they were upgraded.")
    if version < VERSION:
        connection.execute(update(Schema).values(version=migrate(connection, version)))
