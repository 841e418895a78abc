"""The keeper of an evaluator process: starts it, limits it, replaces it, and turns its deaths into failures."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from evaluators.process import wire
from evaluators.process.job import ALIVE, Job, Limits, discard
from evaluators.process.watch import Watch, tree
from search import errors
from search.errors import BitfrontError, EvaluatorError
from search.values import Assignment, Evaluation, Failure, FailureKind, Stage

_POLL_S = 0.1
_LOG_TAIL = 4000
_END_S = 10.0
_OPEN_S = 300.0
# So many candidates in a row that no process survives, or starts in a row that fail, mean that it will never work.
_HOPELESS = 3
# What every process of a keeper has to find alike, by its name in `Evaluator.describe`.
_KEPT = {"data": "the data", "metric": "the metric", "model": "the model", "target": "the target"}
# The child finds what this process finds. Neither `-m` nor a script's path would do: they put the current folder or
# `evaluators/` first, where a user's `search/` or our own `data.py` shadows what somebody else means by that name.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from evaluators.late_imports import import_late; import_late(); "
    "from evaluators.process.server import main; main(*map(int, sys.argv[1:3]))"
)

OnEvent = Callable[[str, Any], None]


@dataclass(frozen=True)
class ProcessLimits:
    """Bounds of one request: seconds of wall time, and resident bytes of the process and its children.

    An evaluation ends within `timeout_s`. Any other request, say scoring finalists on a large split, may take longer
    as long as the process tells of progress at least that often. So may starting a process.
    """

    timeout_s: float = 600.0
    memory_bytes: int | None = None


class ProcessDiedError(EvaluatorError):
    """The evaluator process ended, or was ended, in the middle of a request."""

    def __init__(self, kind: FailureKind, message: str, log: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.log = log

    def told(self) -> str:
        """How it died and the last it printed, for messages that end a run."""
        return f"{self}{_printed(self.log)}"


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
        self._kept: dict[str, Any] = {}  # of the first process: what a replacement has to find too
        self._child: _Child | None = None
        self._log_start = 0
        self._fresh_deaths = 0
        self._canceled = False

    def __enter__(self) -> EvaluatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child is not None else None

    def adopt(self, **changes: Any) -> None:
        """Change the job of the running process and of those that replace it: `ranges`, or a level in `options`."""
        self.job = replace(self.job, **changes)
        if self._child is not None:
            with suppress(ProcessDiedError):  # its replacement opens the changed job
                self._ask("adopt", {"changes": changes}, None)

    def reopen(self, **changes: Any) -> None:
        """Change what only a fresh process can take over, say `options`; the next request starts one.

        The target may become another with that; model, data and metric may not.
        """
        self.close()
        self.job = replace(self.job, **changes)
        self._kept.pop("target", None)

    def call(self, method: str, params: Mapping[str, Any] | None = None, on_event: OnEvent | None = None) -> Any:
        """Ask the process for something, starting it when need be; asked once more when the process crashes.

        Raises:
            BitfrontError: what the process raised, as the class it raised.
            ProcessDiedError: it crashed twice, hung past the time limit, or grew past the memory limit; it is gone.
        """
        try:
            return self._ask(method, params or {}, on_event)
        except ProcessDiedError as death:
            if death.kind is not FailureKind.CRASHED:
                raise
        return self._ask(method, params or {}, on_event)

    def evaluate(
        self,
        assignment: Assignment,
        out: Path,
        limits: Limits,
        on_event: OnEvent | None = None,
        *,
        profile: bool = False,
    ) -> Evaluation:
        """Evaluate one candidate; its failures, deaths of the process included, are values.

        A crash, hang, lack of memory or broken device is tried once more in a fresh process. Unless the evaluation
        is ok, nothing stays at `out`.

        Raises:
            MetricError, ArtifactError, InputError: what no other candidate would survive either.
            EvaluatorError: fresh processes die again and again before they get anywhere.
        """
        try:
            self._be_ready()
            params = {"assignment": assignment, "out": str(out), "limits": asdict(limits), "profile": profile}
            first = self._attempt(params, on_event)
            if not isinstance(first, Failure):
                return first
            self._be_ready()
            second = self._attempt(params, on_event)
            if not isinstance(second, Failure):
                return replace(second, attempts=2, deaths=(first,))
        except BaseException:
            discard(out)
            raise
        discard(out)
        return Evaluation(assignment, failure=second, attempts=2, deaths=(first, second))

    def _attempt(self, params: Mapping[str, Any], on_event: OnEvent | None) -> Evaluation | Failure:
        stage = Stage.LOWER

        def note(event: str, value: Any) -> None:
            nonlocal stage
            if event == "stage":
                stage = Stage(value)
            if on_event is not None:
                on_event(event, value)

        try:
            result: Evaluation = self._ask("evaluate", params, note)
        except ProcessDiedError as death:
            self._count_death(death)
            return Failure(stage, death.kind, str(death), death.log)
        self._fresh_deaths = 0
        failure = result.failure
        if failure is not None and failure.kind is FailureKind.ERROR:
            failure = replace(failure, log=failure.log or self.log_tail())
            self.close()  # nobody foresaw it, so nobody knows what state it left the process in
            return replace(result, failure=failure)
        return result if failure is None else replace(result, failure=replace(failure, log=self.log_tail()))

    def _be_ready(self) -> None:
        """A death on the way to an open job is not the next candidate's fault: start again."""
        for _ in range(_HOPELESS - 1):
            with suppress(ProcessDiedError):
                return self._ensure_open()
        return self._ensure_open()

    def _count_death(self, death: ProcessDiedError) -> None:
        self._fresh_deaths += 1
        if self._fresh_deaths > 2 * _HOPELESS:
            raise EvaluatorError(
                f"running candidates: {self._fresh_deaths} evaluator processes in a row died without finishing one; "
                f"the last: {death.told()}. When the cause is mended, resume the study."
            ) from death

    def log_tail(self) -> str:
        """The end of what the process printed since the last request began."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self._log_start, self._log_size() - _LOG_TAIL))
            return file.read().decode(errors="replace")
        return ""

    def _log_size(self) -> int:
        with suppress(OSError):
            return self.log.stat().st_size
        return 0

    def cancel(self) -> None:
        """End the process for good: the request under way, and every later one, raises EvaluatorError.

        The only method that another thread may call than the one that uses this object, which has to `close` it.
        """
        self._canceled = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the process and all that it started; the next request starts a fresh one."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    # -- the conversation ------------------------------------------------------------------------------------------

    def _ask(self, method: str, params: Mapping[str, Any], on_event: OnEvent | None) -> Any:
        self._ensure_open()
        return self._request(method, params, on_event)

    def _ensure_open(self) -> None:
        self._log_start = self._log_size()
        if self._child is not None and self._child.process.poll() is not None:
            self.close()  # it died with nothing to do
        if self._child is None:
            self._refuse_canceled()
            self._start()

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._child = _Child(self.log)
        try:
            self._refuse_canceled()  # since it was looked at, when there was nothing to end yet
            found = self._request("open", {"job": self.job.to_json()}, None)
            self._refuse_changed(found)
            self.description = found
            self._kept = {name: found[name] for name in _KEPT}
        except BaseException:
            self.close()  # a process that has opened nothing is of no use
            raise

    def _refuse_canceled(self) -> None:
        if self._canceled:
            raise EvaluatorError("the evaluator process was ended, as nobody needs its answer any more")

    def _refuse_changed(self, found: Mapping[str, Any]) -> None:
        """Measures of two contents must not mix: what was found before a process was replaced has to be there still."""
        changed = [what for name, what in _KEPT.items() if name in self._kept and found[name] != self._kept[name]]
        if changed:
            raise EvaluatorError(
                f"opening model and data again, as the evaluator process was replaced: {' and '.join(changed)} changed "
                "while they were in use, and what comes now would not compare with what was measured before. Restore "
                "them, then resume the study; for the new ones, start another."
            )

    def _request(self, method: str, params: Mapping[str, Any], on_event: OnEvent | None) -> Any:
        child = self._child
        assert child is not None
        line = wire.dumps({"method": method, "params": dict(params)}) + "\n"
        watch = self._watch(method)
        try:
            child.send(line.encode(), watch)
            while "event" in (message := wire.loads(child.receive(watch))):
                watch.heard()
                if on_event is not None and message["event"] != ALIVE:
                    on_event(message["event"], message["value"])
                if not child.has_more():
                    watch()
        except _GoneError:
            raise self._ended(FailureKind.CRASHED, f"the evaluator process died ({child.how_it_ended()})") from None
        except BaseException:
            # Whatever interrupts the conversation (Ctrl-C too) leaves it out of step: start anew.
            self.close()
            raise
        return self._result_of(message)

    def _result_of(self, message: dict[str, Any]) -> Any:
        if "result" in message:
            return message["result"]
        if message["replace"]:
            lack = message["error"] in ("OutOfMemoryError", "MemoryError")
            kind = FailureKind.OUT_OF_MEMORY if lack else FailureKind.CRASHED
            raise self._ended(kind, message["message"])
        raised = getattr(errors, message["error"], None)
        if isinstance(raised, type) and issubclass(raised, BitfrontError):
            raise raised(message["message"])
        raise EvaluatorError(f"the evaluator process failed: {message['message']}{_printed(self.log_tail())}.")

    def _watch(self, method: str) -> Watch:
        limits = self.limits
        # Starting has nothing to do with the candidate that the limit is meant for; TensorRT alone takes 8 s for it.
        timeout_s = max(limits.timeout_s, _OPEN_S) if method == "open" else limits.timeout_s
        # Only of an evaluation is it known how long it may take as a whole.
        renews = method != "evaluate"
        return Watch(self._ended, self.pid, method, timeout_s, limits.memory_bytes, renews=renews)

    def _ended(self, kind: FailureKind, message: str) -> ProcessDiedError:
        self.close()
        return ProcessDiedError(kind, message, self.log_tail())


# -- the process and its line ------------------------------------------------------------------------------------------


class _GoneError(Exception):
    """The process has ended, or closed its end of the line."""


class _Child:
    """A process of its own session, and the two pipes to it."""

    def __init__(self, log: Path) -> None:
        requests_read, self._requests = os.pipe()
        self._answers, answers_write = os.pipe()
        self._unread = bytearray()
        command = [sys.executable, "-c", _BOOT, str(requests_read), str(answers_write), *python_path()]
        try:
            with log.open("ab") as output:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(requests_read, answers_write),
                    start_new_session=True,
                    env=_environment(),
                )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(requests_read)
            os.close(answers_write)
        os.set_blocking(self._requests, False)  # a stopped process reads nothing; its keeper must not stop too

    def send(self, data: bytes, watch: Watch) -> None:
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
            raise _GoneError from None

    def receive(self, watch: Watch) -> str:
        """The next line."""
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if _is_ready(self._answers, select.POLLIN, _POLL_S):
                self._read()
                continue  # an answer that is there counts, however late this process, stopped itself perhaps, reads it
            if self.process.poll() is not None and not _is_ready(self._answers, select.POLLIN, 0):
                raise _GoneError  # something that it started holds the pipe open
            watch()
        line = self._unread[:end].decode()
        del self._unread[: end + 1]
        return line

    def has_more(self) -> bool:
        """Whether there is something to receive now."""
        return b"\n" in self._unread or _is_ready(self._answers, select.POLLIN, 0)

    def _read(self) -> None:
        chunk = os.read(self._answers, 1 << 20)
        if not chunk:
            raise _GoneError
        self._unread += chunk

    def how_it_ended(self) -> str:
        try:
            code = self.process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            return "it closed its line and goes on"
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


def _printed(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()][-3:]
    return f"; it printed last: {' | '.join(lines)}" if lines else ""


def _environment() -> dict[str, str]:
    """Whatever it prints is in the log when it dies: unbuffered, in UTF-8, a fault of native code too."""
    readable = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace", "PYTHONFAULTHANDLER": "1"}
    return {**os.environ, **readable}
