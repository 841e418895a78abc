"""The keeper of an evaluator process, which starts, limits and replaces it, and turns its deaths into failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from evaluators.process.connection import LOG_TAIL, Connection, OnEvent, ProcessDiedError, ProcessLimits, TimeBounds
from evaluators.process.job import Job, StopLimits, discard, discard_on_error
from evaluators.process.line import PROGRESS, STAGE, WAIT, EvaluatorLine
from evaluators.process.requests import connect
from evaluators.process.results import Built
from search.errors import EvaluatorError
from search.values import Assignment, Evaluation, Failure, FailureKind, Stage

# So many candidates in a row that no process survives, or starts in a row that fail, mean that it will never work.
_HOPELESS = 3

OnProgress = Callable[[int, int], None]
OnDoing = Callable[[str, str], None]
Answer = TypeVar("Answer")


class EvaluatorProcess(Connection):
    """One long-lived evaluator process, which candidates may kill; use as a context manager.

    It does one thing at a time: a thread that asks for something while another one is answered waits for its turn.

    Args:
        job: what the process opens; a replacement opens the same.
        log: file that takes what the process prints.
        limits: bounds of every request.

    Attributes:
        on_doing: told what every request of `ask` is made for when it begins, and, with that, which process it waits
            for in words; that one is empty when its turn has come.
    """

    on_doing: OnDoing | None = None

    def __init__(self, job: Job, log: Path, limits: ProcessLimits | None = None) -> None:
        super().__init__(job, log, limits or ProcessLimits())
        self._fresh_deaths = 0
        self._turn = threading.RLock()

    def __enter__(self) -> EvaluatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def adopt(self, **changes: Any) -> None:
        """Change the job of the running process and of those that replace it: `ranges`, or a level in `options`."""
        with self._turn:
            self.job = replace(self.job, **changes)
            if self.pid is not None:
                with suppress(ProcessDiedError):  # its replacement opens the changed job
                    connect(self.request).setup.adopt(changes)

    def reopen(self, **changes: Any) -> None:
        """Change what only a fresh process can take over, for example `options`; the next request starts one.

        The target may become another with that; model, data and metric may not.
        """
        self.close()
        self.job = replace(self.job, **changes)
        self.forget_target()

    def ask(self, doing: str = "", on_progress: OnProgress | None = None) -> EvaluatorLine:
        """The line to the process, which is started when need be; a request is made again when the process crashes.

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
            elif event == WAIT:
                self._tell(doing, value)

        def ask(request: str, arguments: Mapping[str, Any]) -> Any:
            with self._turn:
                self._tell(doing, "")
                try:
                    try:
                        return self.request(request, arguments, note)
                    except ProcessDiedError as death:
                        if death.kind is not FailureKind.CRASHED:
                            raise
                    return self.request(request, arguments, note)
                except ProcessDiedError as death:
                    raise ProcessDiedError(death.kind, death.reason, death.log, doing) from death

        return connect(ask)

    def _tell(self, doing: str, holder: str) -> None:
        if self.on_doing is not None and doing:
            self.on_doing(doing, holder)

    # -- evaluations -----------------------------------------------------------------------------------------------

    def evaluate(
        self,
        assignment: Assignment,
        out: Path,
        limits: StopLimits,
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
        with self._turn, discard_on_error(out):
            reply, deaths = self._attempt(
                lambda line: line.candidates.evaluate(assignment, out, limits, profile), Stage.LOWER, on_event
            )
            evaluation = Evaluation(assignment) if reply is None else self._with_log(reply)
            self._fresh_deaths = self._fresh_deaths if reply is None else 0
            return _with_deaths(evaluation, deaths, out, finished=reply is not None)

    def build(self, assignment: Assignment, out: Path, on_event: OnEvent | None = None) -> Built:
        """Lower, build and audit one candidate, to be measured here or elsewhere; its failures are values."""
        with self._turn, discard_on_error(out):
            reply, deaths = self._attempt(lambda line: line.builds.build(assignment, out), Stage.LOWER, on_event)
            if reply is None:
                return Built(_with_deaths(Evaluation(assignment), deaths, out, finished=False), None)
            log = self.log_tail()
            if self.job.only_builds or reply.engine is None:  # else measuring it may end the process yet
                self._fresh_deaths = 0
            evaluation = self._with_log(reply.evaluation)
            return replace(reply, evaluation=_with_deaths(evaluation, deaths, out, finished=True), log=log)

    def measure(
        self, built: Built, limits: StopLimits, on_event: OnEvent | None = None, *, profile: bool = False
    ) -> Evaluation:
        """Time and score what `build` left, here or in another process, within what is left of its time.

        Unless the evaluation is ok, the engine file is removed.
        """
        out = built.engine
        if out is None:
            return built.evaluation
        took_s = built.evaluation.total_s or 0.0
        with self._turn, discard_on_error(out):
            reply, deaths = self._attempt(
                lambda line: line.candidates.measure(built, limits, profile), Stage.AUDIT, on_event, took_s
            )
            evaluation = built.evaluation if reply is None else self._with_log(reply, built.log)
            self._fresh_deaths = self._fresh_deaths if reply is None else 0
            return _with_deaths(evaluation, deaths, out, finished=reply is not None)

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
            The answer, None if there is none, and the deaths.
        """
        deaths: list[Failure] = []
        bounds = TimeBounds(self.limits.timeout_s - took_s, renews=False)
        for _ in range(2):
            self._be_ready()
            reached = _Reached(stage, on_event)
            line = connect(partial(self.request, on_event=reached.note, bounds=bounds))
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
        log = (earlier + self.log_tail())[-LOG_TAIL:]
        if failure.kind is FailureKind.ERROR:
            self.close()  # nobody knows what state it left the process in
            log = failure.log or log
        return replace(evaluation, failure=replace(failure, log=log))

    def _be_ready(self) -> None:
        """A death on the way to an open job is not the next candidate's fault: start again."""
        for _ in range(_HOPELESS - 1):
            with suppress(ProcessDiedError):
                return self.open()
        return self.open()

    def _count_death(self, death: ProcessDiedError) -> None:
        self._fresh_deaths += 1
        if self._fresh_deaths > 2 * _HOPELESS:
            raise EvaluatorError(
                f"running candidates: {self._fresh_deaths} evaluator processes in a row died without finishing one; "
                f"the last: {death}. Try again when the cause is removed."
            ) from death


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
