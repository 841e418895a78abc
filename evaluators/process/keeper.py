"""The keeper of an evaluator process: starts it, limits it, replaces it, and turns its deaths into failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from evaluators.process import wire
from evaluators.process.child import Child, GoneError
from evaluators.process.job import Job, Limits, discard, discarding
from evaluators.process.line import ALIVE, OPEN, PROGRESS, STAGE, Built, Description, EvaluatorLine, connect
from evaluators.process.watch import Watch
from search import errors
from search.errors import BitfrontError, EvaluatorError
from search.values import Assignment, Evaluation, Failure, FailureKind, Stage

_LOG_TAIL = 4000
_OPEN_S = 300.0
# So many candidates in a row that no process survives, or starts in a row that fail, mean that it will never work.
_HOPELESS = 3
# What every process of a keeper has to find alike, by its name in `Description`.
_KEPT = {"data": "the data", "metric": "the metric", "model": "the model", "target": "the target"}

OnEvent = Callable[[str, Any], None]
OnProgress = Callable[[int, int], None]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ProcessLimits:
    """Bounds of one request: seconds of wall time, and resident bytes of the process and its children.

    An evaluation ends within `timeout_s`. Any other request, say scoring finalists on a large split, may take longer
    as long as the process tells of progress at least that often. So may starting a process.
    """

    timeout_s: float = 600.0
    memory_bytes: int | None = None


class ProcessDiedError(EvaluatorError):
    """The evaluator process ended, or was ended, in the middle of a request.

    Attributes:
        kind: how.
        reason: how, in words.
        log: the last that it printed, of which the message has the end.
    """

    def __init__(self, kind: FailureKind, reason: str, log: str, doing: str = "") -> None:
        super().__init__(f"{doing}: {reason}{_last_lines(log)}" if doing else f"{reason}{_last_lines(log)}")
        self.kind = kind
        self.reason = reason
        self.log = log


@dataclass(frozen=True)
class _Bounds:
    """How long a request may take; where it `renews`, from one sign of progress to the next."""

    timeout_s: float
    renews: bool


class EvaluatorProcess:
    """One long-lived evaluator process; use as a context manager.

    It does one thing at a time: a thread that asks for something while another one is answered waits for its turn.

    Args:
        job: what the process opens; a replacement opens the same.
        log: file that takes what the process prints.
        limits: bounds of every request.

    Attributes:
        description: what the process opened; None before it was first started.
    """

    def __init__(self, job: Job, log: Path, limits: ProcessLimits | None = None) -> None:
        self.job = job
        self.log = log
        self.limits = limits or ProcessLimits()
        self._description: Description | None = None
        self._kept: dict[str, Any] = {}  # of the first process: what a replacement has to find too
        self._child: Child | None = None
        self._log_start = 0
        self._fresh_deaths = 0
        self._canceled = False
        self._turn = threading.RLock()

    def __enter__(self) -> EvaluatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child is not None else None

    @property
    def description(self) -> Description:
        """What the process opened, at the last start; starts it where that was never done.

        Raises:
            InputError: model, data, metric, backend or device cannot be used.
            ProcessDiedError: it dies over it again and again.
        """
        if self._description is None:
            self._be_ready()
        assert self._description is not None
        return self._description

    def adopt(self, **changes: Any) -> None:
        """Change the job of the running process and of those that replace it: `ranges`, or a level in `options`."""
        self.job = replace(self.job, **changes)
        if self._child is not None:
            with suppress(ProcessDiedError):  # its replacement opens the changed job
                connect(self._ask_once).setup.adopt(changes)

    def reopen(self, **changes: Any) -> None:
        """Change what only a fresh process can take over, say `options`; the next request starts one.

        The target may become another with that; model, data and metric may not.
        """
        self.close()
        self.job = replace(self.job, **changes)
        self._kept.pop("target", None)

    def ask(self, doing: str = "", on_progress: OnProgress | None = None) -> EvaluatorLine:
        """The line to the process, which is started when need be; a request is made once more when the process crashes.

        Evaluations have methods of their own here: `evaluate`, or `build` and `measure`.

        Args:
            doing: what is done, for the message where the process dies over it: "profiling trial 3".
            on_progress: told how much of how much of a long request is done.

        Requests raise:
            BitfrontError: what the process raised, as the class it raised.
            ProcessDiedError: it crashed twice, hung past the time limit, or grew past the memory limit; it is gone.
        """

        def note(event: str, value: Any) -> None:
            if on_progress is not None and event == PROGRESS:
                on_progress(*value)

        def ask(request: str, arguments: Mapping[str, Any]) -> Any:
            with self._turn:
                try:
                    try:
                        return self._ask_once(request, arguments, note)
                    except ProcessDiedError as death:
                        if death.kind is not FailureKind.CRASHED:
                            raise
                    return self._ask_once(request, arguments, note)
                except ProcessDiedError as death:
                    raise ProcessDiedError(death.kind, death.reason, death.log, doing) from death

        return connect(ask)

    # -- evaluations -----------------------------------------------------------------------------------------------

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
        with self._turn, discarding(out):
            found, deaths = self._attempt(
                lambda line: line.candidates.evaluate(assignment, out, limits, profile), Stage.LOWER, on_event
            )
            evaluation = Evaluation(assignment) if found is None else self._with_log(found)
            self._fresh_deaths = self._fresh_deaths if found is None else 0
            return _with_deaths(evaluation, deaths, out, finished=found is not None)

    def build(self, assignment: Assignment, out: Path, on_event: OnEvent | None = None) -> Built:
        """Lower, build and audit one candidate, for `measure` here or in another process; as `evaluate`."""
        with self._turn, discarding(out):
            found, deaths = self._attempt(lambda line: line.builds.build(assignment, out), Stage.LOWER, on_event)
            if found is None:
                return Built(_with_deaths(Evaluation(assignment), deaths, out, finished=False), None)
            log = self.log_tail()
            if self.job.only_builds or found.engine is None:  # else measuring it may end the process yet
                self._fresh_deaths = 0
            evaluation = self._with_log(found.evaluation)
            return replace(found, evaluation=_with_deaths(evaluation, deaths, out, finished=True), log=log)

    def measure(
        self, built: Built, limits: Limits, on_event: OnEvent | None = None, *, profile: bool = False
    ) -> Evaluation:
        """Time and score what `build` left, here or in another process; as `evaluate`, with what is left of its time.

        Unless the evaluation is ok, the engine file is removed.
        """
        out = built.engine
        if out is None:
            return built.evaluation
        took_s = built.evaluation.total_s or 0.0
        with self._turn, discarding(out):
            found, deaths = self._attempt(
                lambda line: line.candidates.measure(built, limits, profile), Stage.AUDIT, on_event, took_s
            )
            evaluation = built.evaluation if found is None else self._with_log(found, built.log)
            self._fresh_deaths = self._fresh_deaths if found is None else 0
            return _with_deaths(evaluation, deaths, out, finished=found is not None)

    def _attempt(
        self,
        request: Callable[[EvaluatorLine], Answer],
        stage: Stage,
        on_event: OnEvent | None,
        took_s: float = 0.0,
    ) -> tuple[Answer | None, list[Failure]]:
        """Make a request that a candidate may kill the process by; once more in a fresh process where it does.

        Args:
            stage: that the candidate is in until the process tells of another.
            took_s: of the time of the evaluation.

        Returns:
            The answer, None where there is none, and the deaths.
        """
        deaths: list[Failure] = []
        bounds = _Bounds(self.limits.timeout_s - took_s, renews=False)
        for _ in range(2):
            self._be_ready()
            reached = _Reached(stage, on_event)
            line = connect(partial(self._ask_once, on_event=reached.note, bounds=bounds))
            try:
                answer = request(line)
            except ProcessDiedError as death:
                self._count_death(death)
                deaths.append(Failure(reached.stage, death.kind, death.reason, death.log))
            else:
                return answer, deaths
        return None, deaths

    def _with_log(self, evaluation: Evaluation, earlier: str = "") -> Evaluation:
        """A failed evaluation with what the process printed, which goes where nobody foresaw the failure."""
        failure = evaluation.failure
        if failure is None:
            return evaluation
        log = (earlier + self.log_tail())[-_LOG_TAIL:]
        if failure.kind is FailureKind.ERROR:
            self.close()  # nobody knows what state it left the process in
            log = failure.log or log
        return replace(evaluation, failure=replace(failure, log=log))

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
                f"the last: {death}. When the cause is mended, resume the study."
            ) from death

    # -- the process -----------------------------------------------------------------------------------------------

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

        It waits for no turn; whoever uses this object has to `close` it.
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

    def _ensure_open(self) -> None:
        self._log_start = self._log_size()
        if self._child is not None and self._child.process.poll() is not None:
            self.close()  # it died with nothing to do
        if self._child is None:
            self._refuse_canceled()
            self._start()

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._child = Child(self.log)
        try:
            self._refuse_canceled()  # since it was looked at, when there was nothing to end yet
            # Starting has nothing to do with the candidate that the limit is meant for; TensorRT alone takes 8 s.
            bounds = _Bounds(max(self.limits.timeout_s, _OPEN_S), renews=True)
            found: Description = self._converse(OPEN, {"job": self.job}, None, bounds)
            self._refuse_changed(found)
            self._description = found
            self._kept = {name: getattr(found, name) for name in _KEPT}
        except BaseException:
            self.close()  # a process that has opened nothing is of no use
            raise

    def _refuse_canceled(self) -> None:
        if self._canceled:
            raise EvaluatorError("the evaluator process was ended, as nobody needs its answer any more")

    def _refuse_changed(self, found: Description) -> None:
        """Measures of two contents must not mix: what was found before a process was replaced has to be there still."""
        kept = self._kept
        changed = [what for name, what in _KEPT.items() if name in kept and getattr(found, name) != kept[name]]
        if changed:
            raise EvaluatorError(
                f"opening model and data again, as the evaluator process was replaced: {' and '.join(changed)} changed "
                "while they were in use, and what comes now would not compare with what was measured before. Restore "
                "them, then resume the study; for the new ones, start another."
            )

    # -- the conversation ------------------------------------------------------------------------------------------

    def _ask_once(
        self,
        request: str,
        arguments: Mapping[str, Any],
        on_event: OnEvent | None = None,
        bounds: _Bounds | None = None,
    ) -> Any:
        self._ensure_open()
        return self._converse(request, arguments, on_event, bounds or _Bounds(self.limits.timeout_s, renews=True))

    def _converse(self, request: str, arguments: Mapping[str, Any], on_event: OnEvent | None, bounds: _Bounds) -> Any:
        child = self._child
        assert child is not None
        line = wire.dumps({"request": request, "arguments": dict(arguments)}) + "\n"
        doing = request.rpartition(".")[2]
        watch = Watch(self._ended, self.pid, doing, bounds.timeout_s, self.limits.memory_bytes, renews=bounds.renews)
        try:
            child.send(line.encode(), watch)
            while "event" in (message := wire.loads(child.receive(watch))):
                watch.heard()
                if on_event is not None and message["event"] != ALIVE:
                    on_event(message["event"], message["value"])
                if not child.has_more():
                    watch()
        except GoneError:
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
        raise EvaluatorError(f"the evaluator process failed: {message['message']}{_last_lines(self.log_tail())}.")

    def _ended(self, kind: FailureKind, reason: str) -> ProcessDiedError:
        self.close()
        return ProcessDiedError(kind, reason, self.log_tail())


class _Reached:
    """The stage that a candidate has reached, from what the process tells."""

    def __init__(self, stage: Stage, on_event: OnEvent | None) -> None:
        self.stage = stage
        self._on_event = on_event

    def note(self, event: str, value: Any) -> None:
        if event == STAGE:
            self.stage = Stage(value)
        if self._on_event is not None:
            self._on_event(event, value)


def _with_deaths(evaluation: Evaluation, deaths: list[Failure], out: Path, *, finished: bool) -> Evaluation:
    """The evaluation with the processes that died over it; failed by the last of them where none finished it."""
    died = (*evaluation.deaths, *deaths)
    if finished:
        return replace(evaluation, attempts=len(died) + 1, deaths=died)
    discard(out)
    return replace(evaluation, failure=deaths[-1], attempts=len(died), deaths=died)


def _last_lines(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()][-3:]
    return f"; it printed last: {' | '.join(lines)}" if lines else ""
