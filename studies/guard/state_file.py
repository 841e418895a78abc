"""The storage of the circuit breaker: memory, or a file that survives a restart and can be shared by processes.

Requests change a copy in memory and never wait. The guard's thread then writes their changes: it reads the file,
changes it and replaces it under a lock beside it, so that a process may be killed at any moment, and one that is
stopped while it holds the lock delays what the others share, but no request.
"""

from __future__ import annotations

import glob
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock

from filelock import FileLock, Timeout

from evaluators.forks import hold_forks_back, renew_in_children
from studies.guard.options import GuardError
from studies.guard.reports import TroubleReports, sentence_of
from studies.guard.state import Breaker

_VERSION = 1
_NEW = ".new"
_MOST_BYTES = 2**16  # of a file: it takes some hundred
_LOCK_S = 0.05  # that the guard's thread waits for the lock, once in a round
_TELL_LOCKED_S = 10.0
_MOST_PENDING = 1000
_READING, _WRITING = "reading the state", "writing the state"

Change = Callable[[Breaker], Breaker]


class StateKeeper:
    """The breaker of one guard.

    Args:
        path: of the file; None to keep it in memory.
        troubles: told if the file cannot be read or written; the guard continues with what it knows.

    Raises:
        GuardError: the file is there and is no state of a guard, or its folder is missing.
    """

    def __init__(self, path: Path | None, troubles: TroubleReports) -> None:
        self._path = path
        self._troubles = troubles
        self._stamp: tuple[int, int] | None = None
        self._stored: Breaker | None = None  # what the file held when it had that stamp
        self._locked_since_s: float | None = None
        self.breaker = Breaker()
        self.renew_after_fork()
        if path is not None:
            self._stored = self._open(path)
            self.breaker = self._stored or self.breaker
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """Locks of its own; what is not written yet is written by the parent."""
        self._lock = Lock()  # of the two below; never held while the file is read or written
        self._pending: list[Change] = []  # that are in memory and not in the file
        if self._path is not None:
            self._file_lock = FileLock(f"{self._path}.lock", timeout=_LOCK_S)

    def _open(self, path: Path) -> Breaker | None:
        """The stored breaker; a path that can never be written is refused at once, while somebody is looking."""
        if not path.absolute().parent.is_dir():
            raise GuardError(
                f"opening the state of a guard in {path}: there is no folder {path.absolute().parent}. Make it, or "
                "give another path."
            )
        try:
            return self._read(path)
        except OSError as error:
            raise GuardError(
                f"opening the state of a guard in {path}: {error.strerror or error}. Give another path."
            ) from error

    def change(self, change: Change) -> None:
        """Change the breaker in memory; `synchronize` writes it. Any thread may call this; it waits for no file."""
        with self._lock:
            self.breaker = change(self.breaker)
            if self._path is not None:
                self._pending = [*self._pending[1 - _MOST_PENDING :], change]

    def synchronize(self) -> None:
        """Write what was changed here, and see what other processes have changed. Not for threads of requests."""
        if self._path is None:
            return
        with hold_forks_back():
            if self._pending:
                self._write_changes(self._path)
            else:
                self._refresh(self._path)

    def _write_changes(self, path: Path) -> None:
        with self._lock:
            known, taken, self._pending = self.breaker, self._pending, []
        try:
            with self._file_lock:
                if _stamp(path) != self._stamp:  # of other processes; otherwise memory knows all there is
                    known = _replay(self._read(path) or known, taken)
                if known != self._stored or self._stamp is None:
                    self._write(path, known)
        except (OSError, Timeout, GuardError) as error:
            with self._lock:
                self._pending = [*taken, *self._pending][-_MOST_PENDING:]
            self._report_unwritten(path, error)
            return
        self._locked_since_s = None
        self._troubles.settle(_WRITING)
        self._take_in(known)

    def _report_unwritten(self, path: Path, error: Exception) -> None:
        if isinstance(error, Timeout):
            now = time.monotonic()
            self._locked_since_s = self._locked_since_s or now
            if now - self._locked_since_s < _TELL_LOCKED_S:
                return
            said = f"another process has held its lock for {_TELL_LOCKED_S:g} s, perhaps one that is stopped."
        else:
            said = sentence_of(error)
        self._troubles.report(_WRITING, f"keeping the guard's state in {path}: {said} It is kept in memory for now.")

    def _refresh(self, path: Path) -> None:
        try:
            if _stamp(path) != self._stamp:
                known = self._read(path)
                if known is not None:
                    self._take_in(known)
                self._troubles.settle(_READING)
        except (OSError, GuardError) as error:
            message = f"reading the guard's state in {path}: {sentence_of(error)} What is known stays."
            self._troubles.report(_READING, message)

    def _take_in(self, known: Breaker) -> None:
        """What the file holds now, and what requests have changed meanwhile."""
        with self._lock:
            self.breaker = _replay(known, self._pending)

    def _read(self, path: Path) -> Breaker | None:
        """The stored breaker; None where there is no file."""
        self._stamp, self._stored = _stamp(path), None
        if self._stamp is None:
            return None
        try:
            data = json.loads(_read_text(path))
            if data["version"] != _VERSION:
                raise ValueError(f"its version is {data['version']!r:.40}")
            self._stored = Breaker.from_json(data["breaker"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise GuardError(
                f"reading the state of a guard: expected {path} to be what a guard of this version wrote, got "
                f"{type(error).__name__}: {error}. Delete the file to start with an empty state, or give another path."
            ) from error
        return self._stored

    def _write(self, path: Path, breaker: Breaker) -> None:
        """Replace the file. Whoever does that holds the lock, so other new files beside it were left behind."""
        text = json.dumps({"version": _VERSION, "breaker": breaker.to_json()})
        for left in path.parent.glob(f"{glob.escape(path.name)}.*{_NEW}"):
            left.unlink(missing_ok=True)
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}{_NEW}")
        try:
            with fresh.open("x", encoding="utf-8") as file:  # with the rights that files of this user have
                file.write(text)
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
        self._stamp, self._stored = _stamp(path), breaker


def _replay(breaker: Breaker, changes: Iterable[Change]) -> Breaker:
    for change in changes:
        breaker = change(breaker)
    return breaker


def _read_text(path: Path) -> str:
    """The text of a file that is one and is small: reading a pipe would wait for ever."""
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode) and (not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES):
        raise ValueError(f"no file of at most {_MOST_BYTES} bytes")
    return path.read_text(encoding="utf-8")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino
