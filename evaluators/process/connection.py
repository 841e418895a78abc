"""A connection to one evaluator process, which is started on the first request and replaced if it dies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluators.metrics.own.handed_metric import find_metric, is_handed
from evaluators.process import wire
from evaluators.process.child import Child, GoneError, Watch
from evaluators.process.handed_metric.scorer import Scorer
from evaluators.process.job import Job
from evaluators.process.line import ALIVE, MODEL_RUN
from evaluators.process.requests import OPEN, PREPARE, call_handlers, kinds_of
from evaluators.process.results import Description
from search import errors
from search.errors import BitfrontError, EvaluatorError, MetricError
from search.values import FailureKind

LOG_TAIL = 4000
_OPEN_S = 300.0
_ENDS = frozenset({"result", "error"})  # in the last message of a conversation
# What every process has to find alike, by its name in `Description`.
_KEPT = {"data": "the data", "metric": "the metric", "model": "the model", "target": "the target"}

OnEvent = Callable[[str, Any], None]


@dataclass(frozen=True)
class ProcessLimits:
    """Bounds of one request: seconds of wall time, and resident bytes of the process and its children.

    An evaluation ends within `timeout_s`. Any other request, say scoring finalists on a large split, may take longer
    as long as the process tells of progress at least that often. So may starting a process, but for a run of the model.
    """

    timeout_s: float = 600.0
    memory_bytes: int | None = None


_ADVICE = {
    FailureKind.TIMEOUT: ". If it only needs longer, give it more with --evaluation-timeout, or a longer --time-limit",
    FailureKind.OUT_OF_MEMORY: ". --evaluation-memory allows more",
}


class ProcessDiedError(EvaluatorError):
    """The evaluator process ended, or was ended, in the middle of a request.

    Attributes:
        kind: how.
        reason: how, in words.
        log: the last that it printed, of which the message has the end.
    """

    def __init__(self, kind: FailureKind, reason: str, log: str, doing: str = "") -> None:
        text = f"{reason}{_ADVICE.get(kind, '')}{_last_lines(log)}"
        super().__init__(f"{doing}: {text}" if doing else text)
        self.kind = kind
        self.reason = reason
        self.log = log


class CutOffError(EvaluatorError):
    """A request was ended by `Connection.cut_off`."""


@dataclass(frozen=True)
class TimeBounds:
    """How long a request may take; where it `renews`, from one sign of progress to the next."""

    timeout_s: float
    renews: bool


class Connection:
    """One evaluator process, started when there is something to ask. Not thread-safe.

    Args:
        job: what every process opens.
        log: file that takes what it prints.
        limits: bounds of every request.
    """

    def __init__(self, job: Job, log: Path, limits: ProcessLimits) -> None:
        self.job = job
        self.log = log
        self.limits = limits
        self._description: Description | None = None
        self._kept: dict[str, Any] = {}  # of the first process: what a replacement has to find too
        self._child: Child | None = None
        self._scorer: Scorer | None = None
        self._log_start = 0
        self._metric_error: MetricError | None = None
        self._canceled = self._cut_off = self._preparing = False

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child is not None else None

    @property
    def description(self) -> Description:
        """What the process opened, at its last start; starts one where that was never done.

        Raises:
            InputError: model, data, metric, backend or device cannot be used.
            ProcessDiedError: it dies over it.
        """
        if self._description is None:
            self.open()
        assert self._description is not None
        return self._description

    def request(
        self,
        request: str,
        arguments: Mapping[str, Any],
        on_event: OnEvent | None = None,
        bounds: TimeBounds | None = None,
    ) -> Any:
        """Make one request and wait for its answer.

        Args:
            request: its name.
            on_event: told the stages and the progress that the process tells of meanwhile.
            bounds: how long it may take; None for `timeout_s` of the limits between two signs of progress.

        Raises:
            BitfrontError: what the process raised, as the class it raised.
            ProcessDiedError: it crashed, hung past the time limit, or grew past the memory limit; it is gone.
        """
        self.open()
        return self._converse(request, arguments, on_event, bounds or TimeBounds(self.limits.timeout_s, renews=True))

    def forget_target(self) -> None:
        """The next process may find another target."""
        self._kept.pop("target", None)

    def take_as_shares(self) -> None:
        """The scores of the metric are shares, in this process as in those that replace it."""
        description = self.description
        assert description.metric is not None
        metric = replace(description.metric, ratio=True)
        self.job, self._description = replace(self.job, shares=True), replace(description, metric=metric)
        self._kept["metric"] = metric

    def log_tail(self) -> str:
        """The end of what the process printed since the last request began."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self._log_start, self._log_size() - LOG_TAIL))
            return file.read().decode(errors="replace")
        return ""

    def _log_size(self) -> int:
        with suppress(OSError):
            return self.log.stat().st_size
        return 0

    def cancel(self) -> None:
        """End the process for good, from any thread: the request under way, and every later one, raises."""
        self._canceled = True
        child = self._child
        if child is not None:
            child.kill()

    def cut_off(self) -> None:
        """End the request under way, from any thread: it raises CutOffError. The next one starts a fresh process."""
        self._cut_off = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the process and all that it started; the next request starts a fresh one."""
        child, self._child = self._child, None
        self._preparing = False
        if child is not None:
            child.end()

    def open(self) -> None:
        """Start a process where there is none; raises as `request` does."""
        self._log_start = self._log_size()
        if self._child is not None and self._child.process.poll() is not None:
            self.close()  # it died with nothing to do
        if self._child is None or self._preparing:
            self._refuse_canceled()
            self._start()

    def prepare(self) -> None:
        """Start a process that imports what it needs and opens the backend of the job, and do not wait for it.

        Of `job` only what says how its backend is opened has to be final by now.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._child, self._preparing = Child(self.log), True
        line = wire.dumps({"request": PREPARE, "arguments": {"job": self.job}}) + "\n"
        with suppress(GoneError):  # the first request finds that out, and starts another one
            self._child.send(line.encode(), lambda: None)

    def _end_preparing(self, bounds: TimeBounds) -> None:
        """Wait until the process is prepared; where it did not survive that, one that is not takes its place."""
        self._preparing = False
        child = self._child
        assert child is not None
        watch = Watch(
            self._close_as_ended, self.pid, PREPARE, bounds.timeout_s, self.limits.memory_bytes, renews=bounds.renews
        )
        try:
            while not _ENDS & json.loads(child.receive(watch)).keys():
                watch.heard()
        except GoneError:
            child.end()
            self._child = Child(self.log)

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._scorer = self._make_scorer()
        self._cut_off = False  # what was cut off is over
        if not self._preparing:
            self._child = Child(self.log)
        try:
            self._refuse_canceled()  # since it was looked at, when there was nothing to end yet
            # Starting has nothing to do with the candidate that the limit is meant for; TensorRT alone takes 8 s.
            bounds = TimeBounds(max(self.limits.timeout_s, _OPEN_S), renews=True)
            if self._preparing:
                self._end_preparing(bounds)
            arguments = {"job": self.job, "metric": self._scorer.facts if self._scorer else None}
            description: Description = self._converse(OPEN, arguments, None, bounds)
            self._refuse_changed(description)
            self._description = description
            self._kept = {name: getattr(description, name) for name in _KEPT}
        except BaseException:
            self.close()  # a process that has opened nothing is of no use
            raise

    def _make_scorer(self) -> Scorer | None:
        """What answers calls of the next process, where the metric is a function that this process was handed."""
        name, job = self.job.metric, self.job
        if name is None or not is_handed(name) or job.only_builds or job.engine_files:
            return None
        return Scorer(find_metric(name))

    def _refuse_canceled(self) -> None:
        if self._canceled:
            raise EvaluatorError("the evaluator process was ended, because its answer is no longer needed")

    def _refuse_changed(self, description: Description) -> None:
        """Measures of two contents must not mix: what was found before a process was replaced has to be there still."""
        kept = self._kept
        changed = [what for name, what in _KEPT.items() if name in kept and getattr(description, name) != kept[name]]
        if changed:
            raise EvaluatorError(
                f"opening model and data again, as the evaluator process was replaced: {' and '.join(changed)} changed "
                "while they were in use, so new measurements could not be compared with the earlier ones. Restore "
                "them, then try again; to use the new ones, start another study."
            )

    def _converse(
        self, request: str, arguments: Mapping[str, Any], on_event: OnEvent | None, bounds: TimeBounds
    ) -> Any:
        child = self._child
        assert child is not None
        line = wire.dumps({"request": request, "arguments": dict(arguments)}) + "\n"
        doing = request.rpartition(".")[2]
        watch = Watch(
            self._close_as_ended, self.pid, doing, bounds.timeout_s, self.limits.memory_bytes, renews=bounds.renews
        )
        try:
            child.send(line.encode(), watch)
            while not _ENDS & (message := json.loads(child.receive(watch))).keys():
                watch.heard()
                if message.get("event") == MODEL_RUN:  # what an opening takes without it says nothing of the model
                    watch.limit(self.limits.timeout_s if message["value"] else bounds.timeout_s)
                elif "call" in message:
                    child.send(self._answer(message).encode(), watch)
                elif on_event is not None and message["event"] != ALIVE:
                    on_event(message["event"], message["value"])
                if not child.has_more():
                    watch()
            watch.look_at_least_once()
        except GoneError:
            raise self._close_as_ended(
                FailureKind.CRASHED, f"the evaluator process died ({child.how_it_ended()})"
            ) from None
        except BaseException:
            # Whatever interrupts the conversation (Ctrl-C too) leaves it out of step: start anew.
            self.close()
            raise
        return self._result_of(message, request)

    def _answer(self, message: Mapping[str, Any]) -> str:
        """The line that answers a call of the process.

        An error of the metric goes there too, where it ends the request, and comes back as the error of that.
        """
        assert self._scorer is not None
        handler = call_handlers(self._scorer)[message["call"]]
        try:
            arguments = wire.read_arguments(message["arguments"], kinds_of(message["call"]))
            return wire.dumps({"result": handler(**arguments)}) + "\n"
        except MetricError as error:
            self._metric_error = error
            return wire.dumps({"error": type(error).__name__, "message": str(error)}) + "\n"

    def _result_of(self, message: dict[str, Any], request: str) -> Any:
        if "result" in message:
            try:
                return wire.read(message["result"], kinds_of(request)["return"])
            except ValueError as error:  # of a backend or a metric from outside, say
                raise EvaluatorError(f"the evaluator process gave another answer than {request} has: {error}") from None
        if message["replace"]:
            lack = message["error"] in ("OutOfMemoryError", "MemoryError")
            kind = FailureKind.OUT_OF_MEMORY if lack else FailureKind.CRASHED
            raise self._close_as_ended(kind, message["message"])
        raised = getattr(errors, message["error"], None)
        if isinstance(raised, type) and issubclass(raised, BitfrontError):
            cause, self._metric_error = self._metric_error, None
            raise raised(message["message"]) from cause  # whose traceback shows the user's own line
        raise EvaluatorError(f"the evaluator process failed: {message['message']}{_last_lines(self.log_tail())}.")

    def _close_as_ended(self, kind: FailureKind, reason: str) -> EvaluatorError:
        self.close()
        if self._cut_off:
            return CutOffError("the request was cut off, because nobody waits for its answer any more")
        return ProcessDiedError(kind, reason, self.log_tail())


def _last_lines(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()][-3:]
    return f"; it printed last: {' | '.join(lines)}" if lines else ""
