"""Several processes that only build, beside the one that measures."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from evaluators.process.connection import CutOffError
from evaluators.process.job import Job, discard
from evaluators.process.job import StopLimits as EarlyLimits
from evaluators.process.keeper import EvaluatorProcess
from evaluators.process.line import STAGE, WAIT
from evaluators.process.results import Built
from evaluators.stopwatch import time_spent
from search.errors import EvaluatorError
from search.values import Assignment, Evaluation, Stage
from studies.judging.search_events import SearchEvents
from studies.run.claims.claim import Claim
from studies.run.pipeline.build_hold import BuilderProcess, BuildHold
from studies.run.pipeline.pipeline import Result, Waiting, early_limits
from studies.run.work import Bench
from studies.run_clock import count_parts
from studies.trials.ledger import Ledger

_CUT_AGAIN_S = 0.5  # until a build that was about to begin when it was cut off, and began after all, is cut off again
_AHEAD = 2  # claims beyond those that are being built: one that is measured, one that waits


@dataclass(frozen=True)
class _ToMeasure:
    """A claim for the process that measures, which builds it too where `built` is None."""

    claim: Claim
    built: Built | None
    limits: EarlyLimits


@dataclass(frozen=True)
class _BuildDone:
    claim: Claim
    built: Built


@dataclass(frozen=True)
class _BuildCutOff:
    claim: Claim


@dataclass(frozen=True)
class _Evaluated:
    claim: Claim
    evaluation: Evaluation


@dataclass(frozen=True)
class _StageReached:
    claim: Claim
    stage: Stage


@dataclass(frozen=True)
class _BuilderReady:
    """A builder has ended what it began before the search."""


@dataclass(frozen=True)
class _Waits:
    """A claim waits for another process that measures on the device; without one its turn has come."""

    claim: Claim
    holder: str


_Item = TypeVar("_Item")
_News = _BuilderReady | _Waits | _BuildDone | _BuildCutOff | _Evaluated | _StageReached | BaseException


class ParallelPipeline:
    """Builds several claims at a time and measures one at a time; builds stand still while a latency is measured.

    A thread for each process does nothing but wait for it. All that is stored, told or decided is so in the thread that
    runs the search, which hears from the others by a queue.

    A builder that has learnt from a uniform assignment, and has its engine, is the one that builds it, and the one for
    mixes that have most of their layers in that precision: of a recognizer on an H200 a mix of 26 layers in INT8 took
    174 s to build where FP16 alone was known.
    """

    def __init__(self, bench: Bench, ledger: Ledger, events: SearchEvents) -> None:
        self._bench = bench
        self._ledger = ledger
        self._events = events
        self._waiting = Waiting(events)
        self._building: dict[int, int] = {}  # number of a claim → place of its builder
        self._in_flight: set[int] = set()
        self._to_build: list[queue.Queue[Claim | None]] = [queue.Queue() for _ in bench.builders]
        self._to_measure: queue.Queue[_ToMeasure | None] = queue.Queue()
        self._news: queue.Queue[_News] = queue.Queue()
        self._threads: list[threading.Thread] = []
        self._waited_s = 0.0
        self._builds_end = math.inf  # on the clock of `time.monotonic`

    @property
    def free(self) -> bool:
        count = len(self._bench.builders)
        learning = sum(builder.learns_mix for builder in self._bench.builders)  # a claim would wait, and seem slow
        few = len(self._building) + learning < count and len(self._in_flight) < count + _AHEAD
        return few or not self._in_flight

    @property
    def busy(self) -> bool:
        return bool(self._in_flight)

    def start(self, claim: Claim) -> None:
        if not self._threads:
            self._open()
        first = claim.uniform and not self._in_flight
        self._in_flight.add(claim.number)
        if first:  # the process that measures may have built it before, and has nothing else to do yet
            self._to_measure.put(_ToMeasure(claim, None, early_limits(self._ledger, claim)))
        else:
            place = choose_builder(self._bench.builders, list(self._building.values()), claim.assignment)
            self._building[claim.number] = place
            self._to_build[place].put(claim)

    def wait_finished(self) -> Sequence[Result]:
        """As `Pipeline.wait_finished`; also returns, with nothing, as soon as another claim may be started."""
        while self._in_flight:
            start = time.monotonic()
            with time_spent("evaluator"):
                news = self._next_news()
            self._waited_s += time.monotonic() - start
            if news is None:
                self._cut_builds()
                continue
            if isinstance(news, BaseException):
                raise news
            if isinstance(news, _Evaluated):
                return (self._finish(news.claim, news.evaluation),)
            if isinstance(news, _BuilderReady):
                return ()
            if isinstance(news, _Waits):
                self._waiting.tell(news.claim.trial, news.holder)
                continue
            if isinstance(news, _StageReached):
                self._events.stage(news.claim.trial, news.stage.value)
                continue
            del self._building[news.claim.number]
            if isinstance(news, _BuildCutOff):
                self._in_flight.discard(news.claim.number)
                continue
            if news.built.engine is None:
                return (self._finish(news.claim, news.built.evaluation),)
            self._to_measure.put(_ToMeasure(news.claim, news.built, early_limits(self._ledger, news.claim)))
            return ()
        return ()

    def _next_news(self) -> _News | None:
        """What is heard next; None where builds have to end first."""
        left_s = self._builds_end - time.monotonic()
        try:
            return self._news.get(timeout=None if left_s == math.inf else max(0.0, left_s))
        except queue.Empty:
            return None

    def bound_builds(self, seconds: float) -> None:
        """As `Pipeline.bound_builds`; what is built, but not measured by then, is given up too."""
        self._builds_end = time.monotonic() + seconds

    def _cut_builds(self) -> None:
        """Forget what no process is at yet, and end builds under way; what is being measured goes on."""
        for item in _drain(self._to_measure):
            self._in_flight.discard(item.claim.number)
            if item.built is not None and item.built.engine is not None:
                discard(item.built.engine)
        for waiting in self._to_build:
            for claim in _drain(waiting):
                self._in_flight.discard(claim.number)
                del self._building[claim.number]
        for place in self._building.values():
            self._bench.builders[place].process.cut_off()
        self._builds_end = time.monotonic() + _CUT_AGAIN_S if self._building else math.inf

    def _finish(self, claim: Claim, evaluation: Evaluation) -> Result:
        self._in_flight.discard(claim.number)
        count_parts(evaluation, uniform=claim.uniform, at_most_s=self._waited_s)
        self._waited_s = 0.0
        return claim, evaluation

    def close(self) -> None:
        if self._in_flight:
            self._bench.keeper.cancel()  # in the middle of what nobody waits for
        for builder in self._bench.builders:
            builder.process.cancel()
        self._to_measure.put(None)
        for waiting in self._to_build:
            waiting.put(None)
        for thread in self._threads:
            thread.join()
        for builder in self._bench.builders:
            builder.process.close()
        self._threads.clear()

    # -- the threads -----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Start the threads. Each process is started by its first request, unless it has built something before."""
        bench = self._bench
        now = bench.keeper.job
        for builder, waiting in zip(bench.builders, self._to_build, strict=True):
            bench.hold.add(builder.process)
            self._begin_thread("bitfront-build", partial(self._build_all, builder.process, now, waiting))
        self._begin_thread("bitfront-measure", self._measure_all)

    def _begin_thread(self, name: str, serve: Callable[[], None]) -> None:
        def run() -> None:
            try:
                serve()
            except BaseException as error:  # raised again in the thread that runs the search
                self._news.put(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _build_all(self, process: EvaluatorProcess, job: Job, waiting: queue.Queue[Claim | None]) -> None:
        bench, hold = self._bench, self._bench.hold
        process.adopt(ranges=job.ranges, options=job.options)  # once it has ended what it began before the search
        self._news.put(_BuilderReady())
        while (claim := waiting.get()) is not None:
            hold.wait_released()
            out = bench.folder / f"{claim.number}.engine"
            try:
                built = process.build(claim.assignment, out, self._teller(claim))
            except CutOffError:
                self._news.put(_BuildCutOff(claim))
                continue
            _check_alike(process, bench.keeper)
            self._news.put(_BuildDone(claim, built))

    def _measure_all(self) -> None:
        bench = self._bench
        while (item := self._to_measure.get()) is not None:
            claim = item.claim
            with _HeldAtLatency(bench.hold, self._teller(claim)) as tell:
                if item.built is None:
                    out = bench.folder / f"{claim.number}.engine"
                    done = bench.keeper.evaluate(claim.assignment, out, item.limits, tell, profile=claim.uniform)
                else:
                    done = bench.keeper.measure(item.built, item.limits, tell, profile=claim.uniform)
            self._news.put(_Evaluated(claim, done))

    def _teller(self, claim: Claim) -> Callable[[str, Any], None]:
        def tell(event: str, value: Any) -> None:
            if event == STAGE:
                self._news.put(_StageReached(claim, Stage(value)))
            elif event == WAIT:
                self._news.put(_Waits(claim, value))

        return tell


def choose_builder(builders: Sequence[BuilderProcess], busy: Sequence[int], assignment: Assignment) -> int:
    """The place of the builder with least to do; of several the one that has learnt from what is most alike.

    Args:
        busy: place of a builder, once for each build that it is at or that waits for it.
    """
    alike = [
        max((len(each.items() & assignment.items()) for each in tuple(builder.known)), default=0)
        for builder in builders
    ]
    return min(
        range(len(alike)),
        key=lambda place: (busy.count(place) + builders[place].learns_mix, -alike[place], place),
    )


class _HeldAtLatency:
    """Holds builds back from when a candidate reaches the latency stage until it reaches another one, or ends."""

    def __init__(self, hold: BuildHold, tell: Callable[[str, Any], None]) -> None:
        self._hold = hold
        self._tell = tell
        self._held = ExitStack()

    def __enter__(self) -> Callable[[str, Any], None]:
        return self._on_event

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _on_event(self, event: str, value: Any) -> None:
        if event == STAGE:
            self._held.close()
            if Stage(value) is Stage.LATENCY:
                self._held.enter_context(self._hold)
        self._tell(event, value)


def _drain(waiting: queue.Queue[_Item | None]) -> list[_Item]:
    """What nobody has taken of a queue."""
    items: list[_Item] = []
    with suppress(queue.Empty):
        while (item := waiting.get_nowait()) is not None:
            items.append(item)
    return items


def _check_alike(builder: EvaluatorProcess, measurer: EvaluatorProcess) -> None:
    """Refuse engines of a process that found another target, or builds otherwise: a device that was changed, say.

    Raises:
        EvaluatorError: naming what differs.
    """
    built, measured = builder.description, measurer.description
    differs = [name for name in ("target", "model", "capability") if getattr(built, name) != getattr(measured, name)]
    if differs:
        raise EvaluatorError(
            f"building beside measuring: the {' and the '.join(differs)} that the process which builds found "
            f"{'is' if len(differs) == 1 else 'are'} not what the one that measures found. Resume the study; if it "
            "happens "
            "again, resume without --builders."
        )
