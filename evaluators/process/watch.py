"""Limits of time and memory of a process while it answers a request."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from search.values import FailureKind

_LOOK_S = 0.2


class Watch:
    """To be called now and then while a request runs; raises what `ended` makes of it when it breaks its bounds.

    Args:
        ended: ends the process, and says what to raise.
        pid: of the process, whose children count too.
        method: that was asked for, for messages.
        timeout_s: of the whole request; where it `renews`, of every stretch without news of progress.
        memory_bytes: resident bytes; None: any number.
    """

    def __init__(
        self,
        ended: Callable[[FailureKind, str], Exception],
        pid: int | None,
        method: str,
        timeout_s: float,
        memory_bytes: int | None,
        *,
        renews: bool,
    ) -> None:
        self._ended, self._pid, self._method = ended, pid, method
        self._timeout_s, self._memory_bytes, self._renews = timeout_s, memory_bytes, renews
        self._since, self._look, self._renewed = time.monotonic(), 0.0, False

    def heard(self) -> None:
        """The process has told of progress."""
        if self._renews:
            self._since, self._renewed = time.monotonic(), True

    def limit(self, timeout_s: float) -> None:
        """From now on another limit."""
        self._timeout_s = timeout_s

    def __call__(self) -> None:
        now = time.monotonic()
        if now > self._since + self._timeout_s:
            what = "made no progress for" if self._renewed else "took longer than"
            raise self._ended(FailureKind.TIMEOUT, f"{self._method} {what} {self._timeout_s:g} s")
        if self._memory_bytes is not None and now > self._look:
            self._look = now + _LOOK_S
            self._check_memory(self._memory_bytes)

    def _check_memory(self, limit: int) -> None:
        used = sum(_resident_bytes(process) for process in tree(self._pid))
        if used > limit:
            took = f"took {used / 2**20:.0f} MiB of memory, more than the limit of {limit / 2**20:.0f} MiB"
            raise self._ended(FailureKind.OUT_OF_MEMORY, f"{self._method} {took}")


def tree(pid: int | None) -> list[psutil.Process]:
    """A process and all that it has started; empty if it is gone."""
    if pid is None:
        return []
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _resident_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
