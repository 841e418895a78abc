"""Measuring where time goes: seconds by kind of work, in which no moment counts twice."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Stopwatch:
    """Seconds by kind since it was made; the sum over all kinds is the time that has passed.

    Kinds nest: while an inner one runs, the outer one stands still. One thread measures; any thread may read.

    Args:
        since: when it starts, as `time.monotonic` tells it; None for now.
        kind: what counts where nothing else is measured.

    Attributes:
        began: when it started, as `since`.
    """

    def __init__(self, since: float | None = None, kind: str = "other") -> None:
        self._lock = threading.Lock()
        self.began = time.monotonic() if since is None else since
        self._since = self.began
        self._open = [kind]
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Count the time until the end of the context as `kind`."""
        with self._lock:
            self._settle()
            self._open.append(kind)
        try:
            yield
        finally:
            with self._lock:
                self._settle()
                self._open.pop()

    def turn(self, kind: str) -> None:
        """Make the innermost context measure another kind from now on."""
        with self._lock:
            self._settle()
            self._open[-1] = kind

    def move(self, source: str, kind: str, seconds: float) -> None:
        """Count some seconds of one kind, at most all of them, as another kind."""
        with self._lock:
            self._settle()
            moved = min(max(seconds, 0.0), self._seconds[source])
            self._seconds[source] -= moved
            self._seconds[kind] += moved

    def seconds(self) -> dict[str, float]:
        """Kind → seconds up to now; kinds that took no time are absent."""
        with self._lock:
            self._settle()
            return {kind: seconds for kind, seconds in self._seconds.items() if seconds > 0}

    def _settle(self) -> None:
        now = time.monotonic()
        self._seconds[self._open[-1]] += now - self._since
        self._since = now


_current: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def use_stopwatch(watch: Stopwatch) -> Iterator[Stopwatch]:
    """Let `time_spent` count on this stopwatch, in this thread, until the end of the context."""
    token = _current.set(watch)
    try:
        yield watch
    finally:
        _current.reset(token)


def current_stopwatch() -> Stopwatch | None:
    """The stopwatch in use in this thread, if there is one."""
    return _current.get()


@contextmanager
def time_spent(kind: str) -> Iterator[None]:
    """Count what happens in the context as `kind`, where a stopwatch is in use; also a decorator."""
    watch = _current.get()
    if watch is None:
        yield
        return
    with watch.measure(kind):
        yield
