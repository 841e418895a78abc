"""Forked processes: a child has none of its parent's threads, and a lock that another thread held stays held in it.

Servers that fork their workers after they have loaded the application (gunicorn with `--preload`) do that with a guard.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, local
from typing import Any, Protocol
from weakref import WeakSet

import filelock  # noqa: F401  # it waits for its own locks before a fork; what is registered later comes before that

from search.errors import TargetError

_HOLD_S = 1.0  # that a fork waits at most


class ForkRenewed(Protocol):
    """Something that has locks or a thread."""

    def renew_after_fork(self) -> None:
        """Make them anew. Called in the child, which has no other thread yet."""


class _Forks:
    """The things to renew, and the lock that a fork waits for."""

    def __init__(self) -> None:
        self.known: WeakSet[ForkRenewed] = WeakSet()
        self.files = Lock()
        self._forking = local()  # several threads may fork

    def begin(self) -> None:
        self._forking.held = self.files.acquire(timeout=_HOLD_S)

    def end_in_parent(self) -> None:
        if self._forking.held:
            self.files.release()

    def end_in_child(self) -> None:
        self.files = Lock()
        for thing in list(self.known):
            thing.renew_after_fork()


_forks = _Forks()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_forks.begin, after_in_parent=_forks.end_in_parent, after_in_child=_forks.end_in_child)


def renew_in_children(thing: ForkRenewed) -> None:
    """Call its `renew_after_fork` in every process that is forked from this one, for as long as it is referred to."""
    _forks.known.add(thing)


@contextmanager
def hold_forks_back() -> Iterator[None]:
    """No process is forked meanwhile: a child would inherit the open lock file, and with it the lock."""
    with _forks.files:
        yield


GPU = ("on a GPU", "CUDA works in no forked process")


def refuse_forked(folder: Path, pid: int, where: str = GPU[0], why: str = GPU[1]) -> None:
    """Raises TargetError in another process than the one, `pid`, that opened the engine of a folder."""
    if os.getpid() != pid:
        raise TargetError(
            f"running the engine of {folder}: it was opened {where} in process {pid}, from which this one was forked, "
            f"and {why}. Open the guard in each worker, for example in gunicorn's post_fork, "
            "or do not load the application before the fork (no --preload)."
        )


_Run = Callable[[Mapping[str, Any]], dict[str, Any]]


class RenewedRun:
    """Runs an engine, and opens it again in a forked process, where its threads are missing and its locks may be held.

    Args:
        open_one: opens it, and gives what runs it: inputs by name to outputs by name.
        folder: of the engine, for messages.
        refused: where it was opened, and why it cannot be opened in a forked process; None where it can.
    """

    def __init__(self, open_one: Callable[[], _Run], folder: Path, refused: tuple[str, str] | None) -> None:
        self._open_one, self._folder, self._refused = open_one, folder, refused
        self._pid, self._opening = os.getpid(), Lock()
        self._run: _Run | None = open_one()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        # It is never let go of, also not as the process ends: that would wait for threads of the parent's.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._run))
        self._run, self._opening = None, Lock()

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return (self._run or self._open_again())(inputs)

    def _open_again(self) -> _Run:
        if self._refused is not None:
            refuse_forked(self._folder, self._pid, *self._refused)
        with self._opening:
            self._run = self._run or self._open_one()
            return self._run
