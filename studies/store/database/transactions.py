"""Transactions on one study database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, select
from sqlalchemy.engine import URL

from search.errors import BitfrontError, StudyError
from studies.store.database import column_types
from studies.store.database.connections import begin_write
from studies.store.database.database_url import hide_password
from studies.store.database.retries import report_errors, retry

Row = Any  # SQLAlchemy 2.0 and 2.1 type rows and selects in ways that exclude each other
Query = Any


class Database:
    """A study database; safe to use from several threads, each transaction has a connection of its own."""

    def __init__(self, engine: Engine, url: URL) -> None:
        """Take over an engine of `open_engine`."""
        self.engine = engine
        self.url = url
        self._closed = False

    @property
    def shown_url(self) -> str:
        """Where the database is, fit for messages and reports: without its password."""
        return hide_password(self.url)

    @contextmanager
    def begin_read(self, action: str) -> Iterator[Connection]:
        """One transaction that only reads; errors say that it was to `action`.

        Raises:
            StudyError: what was read is damaged.
        """
        try:
            with self._connect(action) as connection:
                yield connection
        except (BitfrontError, ImportError, OSError, KeyError):
            raise
        except Exception as error:  # reading a value that nobody wrote raises anything
            if damage := self.find_damage():
                raise StudyError(damage) from error
            raise

    def find_damage(self) -> str:
        """What is damaged, in a sentence that says what to do; empty if nothing is."""
        from studies.store.reading.damage import find_damage  # no good database needs it

        with self._connect("look for damage") as connection:
            damage = find_damage(connection)
        return f"the database {self.shown_url} is damaged: {damage}. Restore a copy of it." if damage else ""

    @contextmanager
    def _connect(self, action: str) -> Iterator[Connection]:
        try:
            with report_errors(action, self.url), self.engine.connect() as connection:
                yield connection
        finally:
            if self._closed:  # details of evaluations may be asked for later
                self.engine.dispose()

    @contextmanager
    def begin_write(self, action: str) -> Iterator[Connection]:
        """One transaction that writes: committed at the end, rolled back by any exception."""
        with report_errors(action, self.url), begin_write(self.engine) as connection:
            yield connection

    @retry
    def rows(self, query: Query) -> Sequence[Row]:
        """All rows of one query."""
        with self.begin_read("read the study") as connection:
            return connection.execute(query).all()

    def now(self) -> datetime:
        """The database's clock."""
        now: datetime = self.rows(select(column_types.utc_now()))[0][0]
        return now

    def close(self) -> None:
        """Close all connections; what is read later has a connection for that alone."""
        self._closed = True
        self.engine.dispose()


class Repository:
    """The part of a database that is about one subject."""

    def __init__(self, database: Database) -> None:
        self._database = database
