"""Turning database errors into bitfront's errors, and repeating transactions that the server interrupted.

A transaction of ours is a function. When the server chose it as a deadlock's victim, could not serialize it, or went
away in the middle, the whole function runs again from its start on a new connection. Where the connection was lost
while it committed, nobody knows whether the first run happened: `is_repeat` tells the function, which then looks.
"""

from __future__ import annotations

import functools
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from evaluators.stopwatch import time_spent
from search.errors import RunError, StudyError
from studies.interrupts import came_of_interrupt, held_back
from studies.store.database.database_url import hide_password, is_file, secrets

RETRY_S = 60.0  # a server that is restarted or replaced is back within this
CLEAN_UP_S = 2.0  # what a process that is ending waits for in one step
FEWEST = 5  # tries, of a worker that gets so little processor time that each takes long
SHORTEST_S, LONGEST_S = 0.05, 5.0  # between two tries
# By SQLSTATE, PostgreSQL: serialization failure, deadlock, lock not available, too many connections, and the server
# going down or coming up. Whole classes: 08 connection exceptions.
ROLLED_BACK = frozenset({"40001", "40P01", "55P03"})
AWAY = frozenset({"25P03", "53300", "57P01", "57P02", "57P03", "57P05"})
# By number, MySQL and MariaDB: lock wait timeout, deadlock, record changed since it was read.
MYSQL_ROLLED_BACK = frozenset({1020, 1205, 1213})
# Too many connections, server shutting down, network errors, connection killed, cannot connect, lost, timed out.
MYSQL_AWAY = frozenset({1040, 1053, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2055, 3159, 4031})

ON_ITS_WAY = (
    "the database system is",  # starting up, shutting down, in recovery mode, not yet accepting connections
    "terminating connection",
    "server closed the connection",
    "Server shutdown in progress",
    "Lost connection to MySQL server during query",
)
_WRITABLE_FILE = "Make the file and its folder writable, or work on a copy."
_DAMAGED = ("malformed", "not a database")  # in what SQLite says
RESTORE = "Restore a copy of it, or give another one with --storage."
_WRITABLE_SERVER = "Give the address of the server that accepts writes, and a user who may write."

P = ParamSpec("P")
T = TypeVar("T")


class InterruptedTransactionError(RunError):
    """The server cut a transaction off, and it may be run again.

    Attributes:
        lost: the connection went away, so that it may have been committed; False when it was rolled back for sure.
    """

    def __init__(self, message: str, *, lost: bool) -> None:
        super().__init__(message)
        self.lost = lost


class _Calls(threading.local):
    running = False
    repeated = False
    known_server = False


_calls = _Calls()


@contextmanager
def known_server() -> Iterator[None]:
    """Wait for a server that cannot be reached too: it was reached a moment ago, so that its address is right."""
    before, _calls.known_server = _calls.known_server, True
    try:
        yield
    finally:
        _calls.known_server = before


def retry(function: Callable[P, T]) -> Callable[P, T]:
    """Run the function again, from its start, whenever the server cut its transaction off, up to RETRY_S.

    Inside another one it runs as it is: the outermost is run again. It may commit several transactions when running
    all of them twice does no harm.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if _calls.running:
            return function(*args, **kwargs)
        _calls.running = True
        try:
            with time_spent("database"):
                return _until_done(lambda: function(*args, **kwargs))
        finally:
            _calls.running = _calls.repeated = False

    return run


def is_repeat() -> bool:
    """Whether the running function is run again after a connection was lost: its first run may have happened."""
    return _calls.repeated


def _until_done(function: Callable[[], T]) -> T:
    patience_s, longest_s, deadline, tries = _patience_s(), SHORTEST_S, None, 0
    fewest = FEWEST if patience_s > CLEAN_UP_S else 1
    while True:
        tries += 1
        try:
            with held_back():
                return function()
        except InterruptedTransactionError as error:
            deadline = deadline or time.monotonic() + patience_s
            if time.monotonic() >= deadline and tries >= fewest:
                raise
            _calls.repeated = _calls.repeated or error.lost
        # Workers that were cut off together must not come back together.
        time.sleep(random.uniform(longest_s / 2, longest_s))
        longest_s = min(2 * longest_s, LONGEST_S)


def _patience_s() -> float:
    """How long a server is waited for: not for long by what cleans up after Ctrl-C, or after a server that stayed away.

    What is not cleaned up then is as after a process that was killed, and others take care of it.
    """
    handled = sys.exc_info()[1]
    while handled is not None:
        if isinstance(handled, KeyboardInterrupt | InterruptedTransactionError):
            return min(CLEAN_UP_S, RETRY_S)
        handled = handled.__context__
    return RETRY_S


@contextmanager
def report_errors(action: str, url: URL, wrapper: type[Exception] = sqlite3.Error) -> Iterator[None]:
    """Turn what the database driver raises into our errors, passwords left out.

    Args:
        wrapper: what a library raises from an error of the driver.

    Raises:
        StudyError: the database is read-only or damaged, or has not the tables it should have.
        InterruptedTransactionError: a deadlock, a serialization failure or a lost server; see `retry`.
        RunError: anything else, such as a full disk; the transaction was rolled back.
        KeyboardInterrupt: whatever was raised came of one.
    """
    before = sys.exc_info()[1]
    try:
        yield
    except Exception as error:
        if came_of_interrupt(error, before):
            raise KeyboardInterrupt from None
        if isinstance(error, IntegrityError) or not isinstance(error, SQLAlchemyError | sqlite3.Error | wrapper):
            raise
        said = reason(error.__cause__ or error if isinstance(error, wrapper) else error, url)
        message = f"Could not {action} in {hide_password(url)}: {said}."
        if any(word in said.lower() for word in ("readonly", "read-only", "read only")):
            raise StudyError(f"{message} {_WRITABLE_FILE if is_file(url) else _WRITABLE_SERVER}") from None
        if is_damaged(said, url):
            raise StudyError(f"The database {hide_password(url)} is damaged: {said}. {RESTORE}") from None
        cut = cut_off(error)
        if cut is not None:
            went_on = "bitfront has waited for the server in vain. Try again when it is back."
            raise InterruptedTransactionError(f"{message} {went_on}", lost=cut == "lost") from None
        raise RunError(f"{message} Nothing of this step was stored. Try again when the cause is removed.") from None


def is_damaged(said: str, url: URL) -> bool:
    """Whether SQLite says that its file is damaged."""
    return is_file(url) and any(word in said for word in _DAMAGED)


def reason(error: BaseException, url: URL) -> str:
    """What the driver said, on one line, passwords left out."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
    for secret in (url.password, *secrets(url).values()):
        text = text.replace(str(secret), "***") if secret else text
    return text


def cut_off(error: BaseException | None) -> str | None:
    """Whether the server cut a transaction off: `lost` with its connection, `rolled back`, or None for neither.

    Looks through what an error was raised from, because Optuna and SQLAlchemy wrap what a lost connection raises.
    """
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        kind = _of_driver(error) if isinstance(error, DBAPIError) else None
        if kind is not None:
            return kind
        seen.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def coming_back(error: DBAPIError, *, reached: bool) -> bool:
    """Whether a server was met that is on its way down or up; one that is not there at all may be a wrong address.

    Args:
        reached: whether the network gets to its host.
    """
    met = error.statement is not None or any(words in str(error.orig) for words in ON_ITS_WAY)
    return _calls.known_server or (reached and met)


def _of_driver(error: DBAPIError) -> str | None:
    orig = error.orig
    if isinstance(orig, sqlite3.Error) or orig is None:
        return None
    state = getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)  # psycopg; psycopg2
    number = next((value for value in orig.args[:1] if isinstance(value, int)), None)  # MySQL drivers
    if state in ROLLED_BACK or number in MYSQL_ROLLED_BACK:
        return "rolled back"
    if error.connection_invalidated or state in AWAY or number in MYSQL_AWAY or str(state or "").startswith("08"):
        return "lost"
    connecting = error.statement is None and "OperationalError" in type(orig).__name__
    return "lost" if connecting and state is None and number is None else None
