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
from studies.guard.state import Breaker

_VERSION = 1
_LOCK_S = 10.0

Change = Callable[[Breaker], Breaker]


class StateKeeper:
    """The breaker of one guard.

    Args:
        path: of the file; None to keep it in memory.
        tell: told in one sentence that the file cannot be read or written; the guard continues what it knows.

    Raises:
        GuardError: the file is there and is no state of a guard.
    """

    def __init__(self, path: Path | None, tell: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell
        self._lock = Lock()
        self._stamp: tuple[int, int] | None = None
        self._unsaved = False  # whether memory knows more than the file, which could not be written
        self.breaker = Breaker()
        if path is not None:
            self._file_lock = FileLock(f"{path}.lock", timeout=_LOCK_S)
            self.breaker = self._read(path)

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
        except (OSError, Timeout, GuardError) as error:
            self.breaker, self._unsaved = change(before), True
            self._tell(f"keeping the guard's state in {path}: {error}. It is kept in memory for now.")
        return before, self.breaker

    def refresh(self) -> None:
        """See what other processes have changed."""
        if self._path is None:
            return
        with self._lock:
            try:
                if _stamp(self._path) != self._stamp:
                    self.breaker, self._unsaved = self._read(self._path), False
            except (OSError, GuardError) as error:
                self._tell(
                    f"reading the guard's state in {self._path}: {error}. The guard continues with the state that it "
                    "has."
                )

    def _read(self, path: Path) -> Breaker:
        self._stamp = _stamp(path)
        if self._stamp is None:
            return self.breaker
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] != _VERSION:
                raise ValueError(f"its version is {data['version']}")
            return Breaker.from_json(data["breaker"])
        except (ValueError, KeyError, TypeError) as error:
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
