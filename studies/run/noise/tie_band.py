"""Timing baselines again between trials: for the tie band of a target, and for its drift."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from evaluators.process.job import discard
from evaluators.process.keeper import EvaluatorProcess
from evaluators.stopwatch import time_spent
from search.errors import EvaluatorError
from search.values import BASELINE, Assignment, Latency
from studies.judging.sentences.picks import band_text
from studies.judging.standing import Standing
from studies.run.finalists import engine_of
from studies.run.hooks.hook import Hook
from studies.run.noise.background import BackgroundCall
from studies.run.work import Bench, Work
from studies.store.reading.repeats import LEAST_BAND, NOISY_BAND, next_kind, repeats_at_most, scale_repeat, spreads
from studies.store.records import OK, PROCESS, REBUILD, REOPEN, RUNNING, RepeatRecord, StoredEvaluation
from studies.trials.ledger import Ledger

EVERY = 2  # evaluations between two of these measurements
_TASK = "tie band"  # held from the first repetition to the last
_AT_IT = "band"  # held during one


class TieBand(Hook):
    """Measures the tie band of a target on a uniform baseline, one repetition between two evaluations at a time.

    It only says how sure latencies are, so mixes come first: see `Pace.allows_repeat`. One worker does it for all;
    another goes on where it was lost, with what is stored. Until all is there a provisional band counts.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._held = ExitStack()
        self._holds = False
        self._fresh: BackgroundCall | None = None
        self._left = 0  # evaluations until the next repetition
        self._told = False
        self._repeats: Sequence[RepeatRecord] | None = None  # taken so far, where no other worker takes any
        self._failed = False  # in this run; another run tries again

    def follow(self, record: StoredEvaluation, now: Standing) -> None:
        self._left -= 1

    def notice(self, now: Standing) -> Standing:
        """Take the next repetition, where one is due and there is time for it."""
        is_due = self._left <= 0 and self._work.pace.allows_repeat(now, self._next_kind)
        if (self._told and not is_due) or not self._can_begin(now):
            return now
        if not self._told:
            self._told = True
            self._work.events.detail(band_text(now))
        if not is_due or not self._mine():
            return now
        self._left = EVERY
        if not self._one_more(now):
            return self._settle()
        self._work.ledger.reload_target()  # what is provisional of the band has changed
        self._prepare(now)
        return now

    def complete(self, now: Standing) -> Standing:
        """Take all repetitions that are left, or wait for the worker that does; where the study stands afterwards.

        Where the time that is left is needed for the finalists the band stays provisional.
        """
        if not self._can_begin(now):
            return now
        pace = self._work.pace
        while not self._failed and self._is_open():
            if pace.left_s < pace.repeat_s(now, self._next_kind(now)) + pace.reserve_s(now):
                break
            if not self._mine():
                self._work.crew.wait("waiting for another worker: tie band")
            elif not self._one_more(now):
                return self._settle()
        return now

    @property
    def repeats_left(self) -> dict[str, int]:
        """Kind → how many repetitions are usually left of it; empty once the band is measured."""
        if not self._is_open():
            return {}
        taken = Counter(each.kind for each in self._read_repeats())
        left = {kind: repeats_at_most(kind, 0) - taken[kind] for kind in (REOPEN, REBUILD, PROCESS)}
        return {kind: count for kind, count in left.items() if count > 0}

    def close(self) -> None:
        """Let another worker go on; ends the process that was to time an engine next."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            fresh.close()
        self._held.close()
        self._holds = False

    # -- what is left ----------------------------------------------------------------------------------------------

    def _can_begin(self, now: Standing) -> bool:
        """Whether it is not measured yet, and all uniform baselines are finished and one of them was built."""
        rows = now.measures.baselines
        begun = now.measures.finished_count >= len(self._work.problem.space.baselines)
        finished = begun and all(now.table.status[row] != RUNNING for row in rows)
        possible = finished and bool(self._built_rows(now)) and not self._failed
        return possible and self._work.ledger.target.latency_band is None and self._is_open()

    def _is_open(self) -> bool:
        """Whether no worker has settled the band; one that is alone knows."""
        ledger = self._work.ledger
        return (ledger.target if self._work.crew.alone else ledger.reload_target()).latency_band is None

    def _read_repeats(self) -> Sequence[RepeatRecord]:
        if self._repeats is None or not self._work.crew.alone:
            self._repeats = self._work.ledger.store.targets.repeats(self._work.ledger.target.id)
        return self._repeats

    def _mine(self) -> bool:
        """Hold the task until the band is complete, where no living worker does."""
        if not self._holds:
            held = ExitStack()
            self._holds = held.enter_context(self._work.crew.try_hold(_TASK)) and self._is_open()
            self._held = held
            if not self._holds:
                held.close()
        return self._holds

    def _built_rows(self, now: Standing) -> list[int]:
        return [row for row in now.measures.baselines if now.table.status[row] == OK]

    def _row(self, now: Standing, repeats: Sequence[RepeatRecord]) -> int:
        """The row of the baseline to measure again: the one that was so far, else INT8 where there is one."""
        known = {repeat.evaluation_id for repeat in repeats}
        rows = [now.measures.row_of(BASELINE + label) for label in self._work.problem.space.baselines]
        built = [row for row in rows if row is not None and row in self._built_rows(now)]
        return next((row for row in built if int(now.table.id[row]) in known), built[-1])

    def _next_kind(self, now: Standing) -> str:
        """The kind of the next repetition; the cheapest where none can be or is to be taken."""
        if not self._can_begin(now):
            return REOPEN
        repeats = self._read_repeats()
        return next_kind(self._first(now, self._row(now, repeats)), repeats) or REOPEN

    # -- one repetition --------------------------------------------------------------------------------------------

    def _one_more(self, now: Standing) -> bool:
        """Take the next repetition and store it; False if none is left. One that fails leaves the band provisional."""
        repeats = self._read_repeats()
        row = self._row(now, repeats)
        kind = next_kind(self._first(now, row), repeats)
        if kind is None:
            return False
        number = int(now.table.id[row])
        taken = 1 + sum(repeat.kind == kind for repeat in repeats)
        text, take = self._steps[kind]
        self._work.events.step(text, taken, repeats_at_most(kind, taken))
        began = time.monotonic()
        try:
            with self._work.crew.try_hold(_AT_IT):
                latency = take(now, row)
        except EvaluatorError as error:
            self._failed = True
            self.close()
            self._work.events.note(f"the tie band of latencies stays provisional, because {text} failed: {error}")
            return True
        self._work.ledger.store.targets.add_repeat(self._work.ledger.target.id, number, kind, latency)
        self._repeats = (
            *repeats,
            RepeatRecord(evaluation_id=number, kind=kind, raw_ms=latency.raw_ms, baseline_ms=latency.baseline_ms),
        )
        self._work.pace.note_repeat(time.monotonic() - began, kind)
        return True

    @property
    def _steps(self) -> Mapping[str, tuple[str, Callable[[Standing, int], Latency]]]:
        """Kind of a repetition → what it is called, and what takes it."""
        return {
            REOPEN: ("measuring repeatability of one engine", self._time_reopened),
            REBUILD: ("measuring how much rebuilt engines differ", self._time_rebuilt),
            PROCESS: ("measuring repeatability in fresh processes", self._in_fresh_process),
        }

    @time_spent("tie band")
    def _time_reopened(self, now: Standing, row: int) -> Latency:
        """Open a baseline's engine again in the process that is warm, and time it."""
        engine = engine_of(self._work, now, row)
        with self._work.bench.hold:
            return self._work.bench.keeper.ask("measuring a baseline").timings.time_engine(engine)

    def _time_rebuilt(self, now: Standing, row: int) -> Latency:
        """Build a baseline again in the process that is warm, and time it."""
        return time_rebuild(self._work.bench, assignment_of(self._work.ledger, now, row))

    def _first(self, now: Standing, row: int) -> float:
        """The baseline's own latency, on the scale of the repetitions."""
        baseline_ms = float(now.table.baseline_ms[row])
        return scale_repeat(float(now.table.raw_ms[row]), None if np.isnan(baseline_ms) else baseline_ms)

    @time_spent("tie band")
    def _in_fresh_process(self, now: Standing, row: int) -> Latency:
        """Time an engine in the process that was prepared for it, or one that is started now."""
        call = self._fresh or self._start_process(now, row)
        self._fresh = None
        try:
            if call.wait() and call.failure():
                raise EvaluatorError(f"measuring a baseline in a fresh process: {call.failure()}")
            with self._work.bench.hold:
                return call.process.ask("measuring a baseline").timings.time_engine(call.result())
        finally:
            call.close()

    def _prepare(self, now: Standing) -> None:
        """Start the next fresh process while the search continues, if the target is a GPU.

        On a target that is the processor itself, starting one would disturb what is measured meanwhile.
        """
        repeats = self._read_repeats()
        row = self._row(now, repeats)
        wanted = next_kind(self._first(now, row), repeats) == PROCESS
        if wanted and self._fresh is None and not self._work.ledger.target.target.relative:
            self._fresh = self._start_process(now, row)

    def _start_process(self, now: Standing, row: int) -> BackgroundCall:
        """A process beside the one that is warm: what that one's builder has learnt of tactics would be lost with it,
        which costs TensorRT 8.6 more than a minute.
        """
        work = self._work
        beside = not work.ledger.target.target.relative
        job = replace(work.bench.keeper.job, folder=str(work.bench.folder / "fresh"), beside=beside)
        process = EvaluatorProcess(job, work.bench.folder / "fresh.log", work.bench.keeper.limits)
        engine = engine_of(work, now, row)
        return BackgroundCall(process, lambda line: line.timings.load_engine(engine), lambda _: engine)

    # -- the band --------------------------------------------------------------------------------------------------

    def _settle(self) -> Standing:
        """Store the tie band that the repetitions show, and report it."""
        work = self._work
        repeats = self._read_repeats()
        now = work.ledger.read_standing()
        ranges = spreads(self._first(now, self._row(now, repeats)), repeats)
        work.ledger.store.targets.settle(
            work.ledger.target.id, details=ranges, latency_band=max(LEAST_BAND, *ranges.values())
        )
        band = work.ledger.reload_target().latency_band
        self.close()
        assert band is not None
        noisy = ". The machine is busy, or its clock is not steady" if band > NOISY_BAND else ""
        now = work.ledger.read_standing()
        tell = work.events.note if noisy else work.events.detail
        tell(f"{band_text(now)}{noisy}")
        return now


def measure_drift(work: Work, now: Standing, row: int) -> float:
    """Time the FP32 baseline of `row` again, as a further round of its own evaluation.

    Returns:
        How much slower it runs, on the clock, than it usually does; where no baseline runs beside candidates, than it
        did at first.
    """
    latency = time_rebuild(work.bench, assignment_of(work.ledger, now, row), now.table.reference_ms)
    work.ledger.store.measurements.add_round(work.ledger.target.id, {int(now.table.id[row]): latency})
    usual_ms = now.table.reference_ms if latency.baseline_ms is not None else None
    return latency.raw_ms / (usual_ms or float(now.table.raw_ms[row])) - 1


@time_spent("tie band")
def time_rebuild(bench: Bench, assignment: Assignment, reference_ms: float | None = None) -> Latency:
    """Build an assignment again in the process that has learnt from it, and measure its latency alone.

    Args:
        reference_ms: what the baseline usually takes on a relative target.
    """
    out, builder = bench.folder / "again.engine", bench.builder_of(assignment)
    line = bench.keeper.ask("measuring a baseline")
    if builder is bench.keeper:
        with bench.hold:
            return line.timings.time_again(assignment, out, reference_ms)
    try:
        builder.ask("building a baseline again").builds.rebuild(assignment, out)
        with bench.hold:
            return line.timings.time_engine(out, reference_ms)
    finally:
        discard(out)


def assignment_of(ledger: Ledger, now: Standing, row: int) -> Assignment:
    """What a row of the study's evaluations was built from."""
    return ledger.store.evaluations.assignments(ledger.target.id)[int(now.table.id[row])]
