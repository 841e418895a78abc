"""The storage of the circuit breaker: memory, or a file that survives a restart and can be shared by processes.

Every change reads the file, changes it and replaces it under a lock beside it, so that a process may be killed at any
moment. Requests do not wait for it: they look at a copy in memory, which `refresh` renews.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from filelock import FileLock, Timeout

from studies.guard.options import GuardError
from studies.guard.reports import TroubleReports, sentence_of
from studies.guard.state import Breaker

_VERSION = 1
_LOCK_S = 10.0
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
        self._lock = Lock()
        self._stamp: tuple[int, int] | None = None
        self._unsaved = False  # whether memory knows more than the file, which could not be written
        self.breaker = Breaker()
        if path is not None:
            self._file_lock = FileLock(f"{path}.lock", timeout=_LOCK_S)
            self.breaker = self._open(path)

    def _open(self, path: Path) -> Breaker:
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

    def change(self, change: Change) -> tuple[Breaker, Breaker]:
        """Change the breaker; what it was and what it is."""
        with self._lock:
            if self._path is None:
                before = self.breaker
                self.breaker = change(before)
                return before, self.breaker
            return self._change_file(self._path, change)

    def _change_file(self, path: Path, change: Change) -> tuple[Breaker, Breaker]:
        before = self.breaker
        try:
            with self._file_lock:
                if not self._unsaved or _stamp(path) != self._stamp:
                    before = self._read(path)
                self.breaker = change(before)
                if self._unsaved or self.breaker != before:
                    self._write(path)
                    self._unsaved = False
                    self._troubles.settle(_WRITING)
        except (OSError, Timeout, GuardError) as error:
            self.breaker, self._unsaved = change(before), True
            told = f"keeping the guard's state in {path}: {sentence_of(error)} It is kept in memory for now."
            self._troubles.report(_WRITING, told)
        return before, self.breaker

    def refresh(self) -> None:
        """See what other processes have changed."""
        if self._path is None:
            return
        with self._lock:
            try:
                if _stamp(self._path) != self._stamp:
                    self.breaker, self._unsaved = self._read(self._path), False
                    self._troubles.settle(_READING)
            except (OSError, GuardError) as error:
                told = f"reading the guard's state in {self._path}: {sentence_of(error)} What is known stays."
                self._troubles.report(_READING, told)

    def _read(self, path: Path) -> Breaker:
        self._stamp = _stamp(path)
        if self._stamp is None:
            return self.breaker
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] != _VERSION:
                raise ValueError(f"its version is {data['version']}")
            return Breaker.from_json(data["breaker"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise GuardError(
                f"reading the state of a guard: expected {path} to be what a guard of this version wrote, got "
                f"{type(error).__name__}: {error}. Delete the file to start with an empty state, or give another path."
            ) from error

    def _write(self, path: Path) -> None:
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            fresh.write_text(json.dumps({"version": _VERSION, "breaker": self.breaker.to_json()}), encoding="utf-8")
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
        self._stamp = _stamp(path)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino
