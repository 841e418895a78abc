"""The keeper of an evaluator process: starts it, limits it, replaces it, and turns its deaths into failures."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from evaluators import wire
from evaluators.job import Job, Limits
from search import errors
from search.errors import BitfrontError, EvaluatorError
from search.values import Assignment, Evaluation, Failure, FailureKind, Stage

_POLL_S = 0.1
_LOG_TAIL = 4000
# Deaths of fresh processes in a row, each before it finished a single candidate, that mean it will never work.
_HOPELESS = 3

OnEvent = Callable[[str, Any], None]


@dataclass(frozen=True)
class ProcessLimits:
    """Bounds of one request: seconds of wall time, and resident bytes of the process and its children."""

    timeout_s: float = 600.0
    memory_bytes: int | None = None


class ProcessDiedError(BitfrontError):
    """The evaluator process ended, or was ended, in the middle of a request."""

    def __init__(self, kind: FailureKind, message: str, log: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.log = log


class EvaluatorProcess:
    """One long-lived evaluator process. Not thread-safe; use as a context manager.

    Args:
        job: what the process opens; a replacement opens the same.
        log: file that takes what the process prints.
        limits: bounds of every request.
    """

    def __init__(self, job: Job, log: Path, limits: ProcessLimits | None = None) -> None:
        self.job = job
        self.log = log
        self.limits = limits or ProcessLimits()
        self.description: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = -1
        self._answers = -1
        self._unread = b""
        self._fresh_deaths = 0

    def __enter__(self) -> EvaluatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def adopt(self, **changes: Any) -> None:
        """Change the job, of the running process and of those that replace it: `ranges` or `reference_ms`."""
        self.job = replace(self.job, **changes)
        if self._process is not None:
            self.call("adopt", {"changes": changes})

    def call(self, method: str, params: Mapping[str, Any] | None = None, on_event: OnEvent | None = None) -> Any:
        """Ask the process for something, starting it when need be.

        Raises:
            BitfrontError: what the process raised, as the class it raised.
            ProcessDiedError: it crashed, hung past the time limit, or grew past the memory limit; it is gone.
        """
        if self._process is None:
            self._start()
        return self._request(method, params or {}, on_event)

    def evaluate(
        self, assignment: Assignment, out: Path, limits: Limits, on_event: OnEvent | None = None
    ) -> Evaluation:
        """Evaluate one candidate; its failures, deaths of the process included, are values.

        A crash, hang, lack of memory or broken device is tried once more in a fresh process.

        Raises:
            MetricError, InputError: what no other candidate would survive either.
            EvaluatorError: fresh processes die again and again before they get anywhere.
        """
        first = self._attempt(assignment, out, limits, on_event)
        if not isinstance(first, Failure):
            return first
        second = self._attempt(assignment, out, limits, on_event)
        if not isinstance(second, Failure):
            return replace(second, attempts=2)
        out.unlink(missing_ok=True)
        return Evaluation(assignment, failure=second, attempts=2)

    def _attempt(
        self, assignment: Assignment, out: Path, limits: Limits, on_event: OnEvent | None
    ) -> Evaluation | Failure:
        stage, params = Stage.LOWER, _evaluate_params(assignment, out, limits)

        def note(event: str, value: Any) -> None:
            nonlocal stage
            if event == "stage":
                stage = Stage(value)
            if on_event is not None:
                on_event(event, value)

        try:
            result: Evaluation = self.call("evaluate", params, note)
        except ProcessDiedError as death:
            self._count_death(death)
            return Failure(stage, death.kind, str(death), death.log)
        self._fresh_deaths = 0
        failure = result.failure
        return result if failure is None else replace(result, failure=replace(failure, log=self.log_tail()))

    def _count_death(self, death: ProcessDiedError) -> None:
        self._fresh_deaths += 1
        if self._fresh_deaths > 2 * _HOPELESS:
            raise EvaluatorError(
                f"running candidates: {self._fresh_deaths} evaluator processes in a row died without finishing one; "
                f"the last: {death}. See {self.log}; when the cause is mended, resume the study."
            ) from death

    def log_tail(self) -> str:
        """The end of what the process printed."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LOG_TAIL))
            return file.read().decode(errors="replace")
        return ""

    def close(self) -> None:
        """End the process; the next request starts a fresh one."""
        process, self._process = self._process, None
        if process is None:
            return
        for fd in (self._requests, self._answers):
            with suppress(OSError):
                os.close(fd)
        _kill_tree(process)

    # -- the line --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        requests_read, requests_write = os.pipe()
        answers_read, answers_write = os.pipe()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "evaluators.serve", str(requests_read), str(answers_write)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(requests_read, answers_write),
                start_new_session=True,
                env=_environment(),
            )
        os.close(requests_read)
        os.close(answers_write)
        self._requests, self._answers, self._unread = requests_write, answers_read, b""
        self.description = self._request("open", {"job": self.job.to_json()}, None)

    def _request(self, method: str, params: Mapping[str, Any], on_event: OnEvent | None) -> Any:
        line = wire.dumps({"method": method, "params": dict(params)}) + "\n"
        deadline = time.monotonic() + self.limits.timeout_s
        try:
            _write_all(self._requests, line.encode())
            while True:
                message = wire.loads(self._read_line(method, deadline))
                if "event" not in message:
                    break
                if on_event is not None:
                    on_event(message["event"], message["value"])
        except (BrokenPipeError, EOFError):
            raise self._died() from None
        except BaseException:
            # Whatever interrupts the conversation (Ctrl-C too) leaves it out of step: start anew.
            self.close()
            raise
        return self._result_of(message)

    def _result_of(self, message: dict[str, Any]) -> Any:
        if "result" in message:
            return message["result"]
        if message["replace"]:
            self.close()
            lack = message["error"] in ("OutOfMemoryError", "MemoryError")
            kind = FailureKind.OUT_OF_MEMORY if lack else FailureKind.CRASHED
            raise ProcessDiedError(kind, message["message"], self.log_tail())
        raised = getattr(errors, message["error"], None)
        if isinstance(raised, type) and issubclass(raised, BitfrontError):
            raise raised(message["message"])
        raise EvaluatorError(f"the evaluator process failed: {message['message']}. See {self.log}.")

    def _read_line(self, method: str, deadline: float) -> str:
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], _POLL_S)
            if ready:
                chunk = os.read(self._answers, 1 << 20)
                if not chunk:
                    raise EOFError
                self._unread += chunk
                continue
            self._check_limits(method, deadline)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def _check_limits(self, method: str, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise self._ended(FailureKind.TIMEOUT, f"{method} took longer than {self.limits.timeout_s:g} s")
        limit = self.limits.memory_bytes
        used = _resident_bytes(self.pid) if limit is not None else 0
        if limit is not None and used > limit:
            message = f"{method} took {used / 2**20:.0f} MiB of memory, more than the limit of {limit / 2**20:.0f} MiB"
            raise self._ended(FailureKind.OUT_OF_MEMORY, message)

    def _ended(self, kind: FailureKind, message: str) -> ProcessDiedError:
        log = self.log_tail()
        self.close()
        return ProcessDiedError(kind, message, log)

    def _died(self) -> ProcessDiedError:
        process = self._process
        code = process.wait(timeout=10) if process is not None else None
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        # The kernel's out-of-memory killer sends SIGKILL; so may a user, which a second attempt tells apart.
        return self._ended(FailureKind.CRASHED, f"the evaluator process died ({how})")


def _evaluate_params(assignment: Assignment, out: Path, limits: Limits) -> dict[str, Any]:
    return {
        "assignment": assignment,
        "out": str(out),
        "limits": {"latency_ms": limits.latency_ms, "drop": limits.drop},
    }


def _environment() -> dict[str, str]:
    # The child must find the packages that this process runs, installed or not, and the user's own modules.
    roots = [str(Path(__file__).resolve().parent.parent), *(path for path in [os.environ.get("PYTHONPATH")] if path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "PYTHONUNBUFFERED": "1"}


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _resident_bytes(pid: int | None) -> int:
    total = 0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it started: it leads a session of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
