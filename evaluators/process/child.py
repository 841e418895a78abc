"""An evaluator process from its keeper's side: starting, writing, reading, limits of time and memory, the end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from search.values import FailureKind

_POLL_S = 0.1
_END_S = 10.0
# The child finds what this process finds. Neither `-m` nor a script's path would do: they put the current folder or
# `evaluators/` first, where a user's `search/` or our own `data.py` shadows what somebody else means by that name.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from evaluators.late_imports import import_late; import_late(); "
    "from evaluators.process.server import main; main(*map(int, sys.argv[1:3]))"
)


class GoneError(Exception):
    """The process has ended, or closed its end of the line."""


class Child:
    """A process of its own session, and the two pipes to it."""

    def __init__(self, log: Path) -> None:
        requests_read, self._requests = os.pipe()
        self._answers, answers_write = os.pipe()
        self._unread = bytearray()
        command = [sys.executable, "-c", _BOOT, str(requests_read), str(answers_write), *python_path()]
        try:
            with log.open("ab") as output:
                # Whatever it prints is in the log when it dies: unbuffered, in UTF-8, a fault of native code too.
                readable = {
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONIOENCODING": "utf-8:backslashreplace",
                    "PYTHONFAULTHANDLER": "1",
                }
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(requests_read, answers_write),
                    start_new_session=True,
                    env={**os.environ, **readable},
                )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(requests_read)
            os.close(answers_write)
        os.set_blocking(self._requests, False)  # a stopped process reads nothing; its keeper must not stop too

    def send(self, data: bytes, watch: Callable[[], None]) -> None:
        view = memoryview(data)
        while view:
            if _is_ready(self._requests, select.POLLOUT, _POLL_S):
                with suppress(BlockingIOError):
                    view = view[self._write(view) :]
            else:
                watch()

    def _write(self, view: memoryview) -> int:
        try:
            return os.write(self._requests, view)
        except BrokenPipeError:
            raise GoneError from None

    def receive(self, watch: Watch) -> str:
        """The next line."""
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if _is_ready(self._answers, select.POLLIN, _POLL_S):
                chunk = os.read(self._answers, 1 << 20)
                if not chunk:
                    raise GoneError
                self._unread += chunk
                continue  # an answer that is there counts, however late this process, stopped itself perhaps, reads it
            if self.process.poll() is not None and not _is_ready(self._answers, select.POLLIN, 0):
                raise GoneError  # something that it started holds the pipe open
            watch()
        line = self._unread[:end].decode()
        del self._unread[: end + 1]
        return line

    def has_more(self) -> bool:
        """Whether there is something to receive now."""
        return b"\n" in self._unread or _is_ready(self._answers, select.POLLIN, 0)

    def how_it_ended(self) -> str:
        try:
            code = self.process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            return "it closed its connection and still runs"
        if code >= 0:
            return f"exit code {code}"
        # The kernel's out-of-memory killer sends SIGKILL; so may a user, which a second attempt tells apart.
        known = {number.value: number.name for number in signal.Signals}
        return f"signal {known.get(-code, -code)}"

    def kill(self) -> None:
        """Kill it and what it started, whether in its session or in others."""
        self._kill(tree(self.process.pid) if self.process.poll() is None else [])

    def _kill(self, processes: Sequence[psutil.Process]) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in processes:
            with suppress(psutil.Error):
                process.kill()

    def end(self) -> None:
        """Kill it and what it started, and close the pipes to it."""
        # Looked up first: a process whose line is closed ends itself, and with it what tells whom it has started.
        processes = tree(self.process.pid) if self.process.poll() is None else []
        self._close_pipes()
        self._kill(processes)
        with suppress(subprocess.TimeoutExpired):  # stuck in a driver's call: the kernel ends it when that returns
            self.process.wait(timeout=_END_S)

    def _close_pipes(self) -> None:
        for fd in (self._requests, self._answers):
            with suppress(OSError):
                os.close(fd)


def _is_ready(fd: int, event: int, timeout_s: float) -> bool:
    poll = select.poll()  # unlike select(), knows descriptors from 1024 on
    poll.register(fd, event)
    return bool(poll.poll(1000 * timeout_s))


def python_path() -> list[str]:
    """This process's own module path, our packages on it and the current folder not.

    Where users' modules are looked up, the current folder is added by those who look.
    """
    root = str(Path(__file__).resolve().parents[2])
    shadows = {""}
    with suppress(FileNotFoundError):
        shadows.add(os.getcwd())
    path = [entry for entry in sys.path if isinstance(entry, str) and entry not in shadows]
    return path if root in path else [root, *path]


_LOOK_S = 0.2


class Watch:
    """Is called now and then while a request runs; raises what `ended` makes of it when it breaks its bounds.

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
        """Set another limit, from now on."""
        self._timeout_s = timeout_s

    def __call__(self) -> None:
        now = time.monotonic()
        if now > self._since + self._timeout_s:
            what = "made no progress for" if self._renewed else "took longer than"
            raise self._ended(FailureKind.TIMEOUT, f"{self._method} {what} {self._timeout_s:g} s")
        if now > self._look:
            self._look_at_memory(now)

    def look_at_least_once(self) -> None:
        """Look at the memory of a request that was answered before anybody did, however short it was."""
        if not self._look:
            self._look_at_memory(time.monotonic())

    def _look_at_memory(self, now: float) -> None:
        self._look = now + _LOOK_S
        if self._memory_bytes is None:
            return
        used, limit = sum(_resident_bytes(process) for process in tree(self._pid)), self._memory_bytes
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
