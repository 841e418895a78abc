"""`python -c CODE …` forked: what `subprocess.Popen` gives, as far as tests and keepers use it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import IO, Any

import psutil
import pytest

from evaluators.process import child
from tests.support.paths import ROOT

PATCHES = ROOT / "tests" / "support" / "evaluator_patches"
MESSAGE_BYTES = 1 << 17
_BOOT = "import sys; from tests.support.forks.server import serve; exec(serve(int(sys.argv[1])))"
_ROOM_BYTES = 1 << 14  # for the words of forked processes, which are written over those of the one that forks
_SETTINGS = {"stdin", "stdout", "stderr", "text", "cwd", "env", "pass_fds", "start_new_session"}
# What Python reads from these as it starts, a forked process does anew.
_ADOPTED = {"PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONFAULTHANDLER"}
READY = b"ready"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # a process with threads cannot be forked
_HELPERS: list[tuple[socket.socket, psutil.Process]] = []  # of a forked command: the one that came with it
_ASKING = threading.Lock()  # the server's answers come in the order of the requests and do not say whose they are


def popen(words: Sequence[str], **settings: Any) -> Any:
    """A process, forked where it is one of Python that is patched as evaluators and commands under test are.

    Only tests fork: benchmarks that kill processes start real ones. Where nothing can be forked, because a library has
    started threads, processes are started too.
    """
    environment = settings.get("env") or {}
    fits = list(words[:2]) == [sys.executable, "-c"] and settings.keys() <= _SETTINGS
    if (
        fits
        and "PYTEST_CURRENT_TEST" in os.environ
        and _of_python(environment) == _of_python(_environment())
        and _server()
    ):
        return ForkedProcess(words[2], words[3:], **settings)
    return subprocess.Popen(words, **settings)


def run_python(words: Sequence[str], timeout: float = 400, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a forked process as `subprocess.run` does, with text from both of its streams."""
    with popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings) as process:
        try:
            said = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(words, process.returncode, *said)


def fork_evaluators(patch: pytest.MonkeyPatch) -> None:
    """From now on keepers of this process fork those evaluators that `evaluator_patches` are meant for."""
    patch.setattr(child, "subprocess", _forking_subprocess())


def _forking_subprocess() -> SimpleNamespace:
    """A stand-in for the module `subprocess`, with as much of it as keepers and fleets use."""
    known = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    return SimpleNamespace(Popen=popen, **known)


def be_helped(line: socket.socket, pid: int) -> None:
    """In a forked command: from now on its helper forks its evaluators, and the workers of its fleet."""
    from studies.fleet import processes as fleet

    _HELPERS.append((line, psutil.Process(pid)))
    child.subprocess = fleet.subprocess = _forking_subprocess()  # type: ignore[attr-defined]


def evaluators_of(pid: int) -> list[psutil.Process]:
    """The evaluator processes of a command and of its workers, oldest first; a forked command has them by a helper."""
    processes = []
    with suppress(psutil.Error):
        for below in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if any("evaluators.process.server" in word for word in below.cmdline()):
                    processes.append((below.create_time(), below.pid, below))
    return [below for *_, below in sorted(processes)]


def forked_processes() -> list[psutil.Process]:
    """The processes forked for this one that are still there."""
    server = _server() if _server.cache_info().currsize else None
    return [] if server is None else server[1].children()


class ForkedProcess:
    """As much of `subprocess.Popen` as is used; as there, any thread may start processes and wait for them.

    Args:
        code: that it runs.
        words: its `sys.argv[1:]`.
        stdin, stdout, stderr, text, cwd, env, pass_fds, start_new_session: as `subprocess.Popen` has them.
    """

    def __init__(
        self,
        code: str,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | str = ".",
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        self.args = [sys.executable, "-c", code, *words]
        self.returncode: int | None = None
        self._text = text
        self._reading = threading.Lock()
        self._ended, end_writer = os.pipe()
        # Not closed earlier: another thread may be waiting on it, and its number would be given to another file.
        weakref.finalize(self, os.close, self._ended)
        ours = [end_writer]  # descriptors that only the process needs
        self.stdin: IO[Any] | None = None
        if stdin == subprocess.PIPE:
            stdin, writing = os.pipe()
            ours.append(stdin)
            self.stdin = open(writing, "w" if text else "wb")  # noqa: SIM115
        streams = [_opened(stream, place, ours) for place, stream in enumerate((stdin, stdout))]
        self.stdout: IO[Any] | None = self._reader(streams[1])
        streams.append((None, streams[1][1]) if stderr == subprocess.STDOUT else _opened(stderr, 2, ours))
        self.stderr: IO[Any] | None = self._reader(streams[2])
        ours.append(os.open(cwd, os.O_RDONLY | os.O_DIRECTORY))  # by its descriptor, for it may have been removed
        request = {
            "code": code,
            "words": list(words),
            "environment": dict(env),
            "places": [0, 1, 2, *pass_fds],
            "new_session": start_new_session,
            "cores": sorted(os.sched_getaffinity(0)),  # of this thread, as processes inherit them
        }
        try:
            server = _server()
            assert server is not None
            fds = [end_writer, ours[-1], *(fd for _, fd in streams), *pass_fds]
            with _ASKING:
                socket.send_fds(server[0], [json.dumps(request).encode()], fds)
                self.pid = _number(server[0].recv(MESSAGE_BYTES))
        finally:
            for fd in ours:
                os.close(fd)

    def _reader(self, stream: tuple[int | None, int]) -> IO[Any] | None:
        return None if stream[0] is None else open(stream[0], "r" if self._text else "rb")

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended the process; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and give what `poll` gives; raises TimeoutExpired."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._ended, select.POLLIN)
            if not poll.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            with self._reading:
                if self.returncode is None:  # the code can be read once, by the first of the threads that wait
                    self.returncode = _number(os.read(self._ended, 100))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Close what it reads, and give what it prints until its end, on both streams; raises TimeoutExpired."""
        if self.stdin is not None:
            with suppress(BrokenPipeError):
                self.stdin.close()
        end = None if timeout is None else time.monotonic() + timeout
        contents: dict[int, bytes] = {}
        with selectors.DefaultSelector() as waiting:
            for stream in (self.stdout, self.stderr):
                if stream is not None and not stream.closed:
                    waiting.register(stream, selectors.EVENT_READ)
                    contents[stream.fileno()] = b""
            while waiting.get_map():
                ready = waiting.select(None if end is None else max(0.0, end - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 16)
                    contents[key.fd] += chunk
                    if not chunk:
                        waiting.unregister(key.fileobj)
        said = tuple(self._close(stream, contents) for stream in (self.stdout, self.stderr))
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        return said[0], said[1]

    def _close(self, stream: IO[Any] | None, contents: Mapping[int, bytes]) -> str | bytes | None:
        """Close a stream and give what was read of it; None where there is none or it was closed before."""
        if stream is None or stream.closed:
            return None
        content = contents[stream.fileno()]
        stream.close()
        return content.decode() if self._text else content

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _number(reply: bytes) -> int:
    """The number in a reply of the server; raises ChildProcessError if it is empty, as the server has ended."""
    if not reply:
        raise ChildProcessError("the process that forks others for the tests has ended before them: was it killed?")
    return int(reply)


def _opened(stream: Any, place: int, ours: list[int]) -> tuple[int | None, int]:
    """The end of a stream that this process reads, None where it reads nothing, and the end of the forked process."""
    if stream is None:
        return None, place
    if stream == subprocess.PIPE:
        reading, writing = os.pipe()
        ours.append(writing)
        return reading, writing
    if stream == subprocess.DEVNULL:
        ours.append(os.open(os.devnull, os.O_RDWR))
        return None, ours[-1]
    return None, stream if isinstance(stream, int) else stream.fileno()


def _environment() -> dict[str, str]:
    """Variables of the process that forks, without those that single tests set."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("BITFRONT_TEST_")}
    return {**plain, "PYTHONPATH": f"{PATCHES}{os.pathsep}{ROOT}"}


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide how Python starts."""
    return {k: v for k, v in environment.items() if k.startswith("PYTHON") and k not in _ADOPTED}


@functools.cache
def _server() -> tuple[socket.socket, psutil.Process] | None:
    """The process that forks, which ends when this one does, and the line to it; None where it cannot fork."""
    if _HELPERS:
        return _HELPERS[0]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        words = [sys.executable, "-c", _BOOT, str(theirs.fileno()), "-" * _ROOM_BYTES]
        environment = _environment() | dict.fromkeys(_ONE_THREAD, "1")
        process = subprocess.Popen(words, pass_fds=(theirs.fileno(),), env=environment)
    atexit.register(process.wait, 60)
    atexit.register(ours.close)
    return (ours, psutil.Process(process.pid)) if ours.recv(MESSAGE_BYTES) == READY else None
