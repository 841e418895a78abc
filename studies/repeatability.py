"""How far a latency can be trusted: the baseline that relative ones are scaled to, the tie band, and drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from evaluators.process import EvaluatorProcess, ProcessDiedError
from evaluators.stopwatch import time_spent
from search.errors import EvaluatorError
from search.values import Assignment, Latency, Precision
from studies.finalists import engine_of
from studies.records import OK, TargetRecord
from studies.standing import Standing

if TYPE_CHECKING:
    from studies.runner import Work

_REPEATS = 3  # fresh processes of one engine, or engines of one assignment, that show how far latencies differ
_MORE_REPEATS = 6  # where those disagree: one of them may have met a neighbour's burst
_LEAST_BAND = 0.01
_NOISY_BAND = 0.05


def settle_reference(work: Work) -> None:
    """Measure the float baseline that relative latencies are scaled to, once for all workers of the target."""

    def measure() -> None:
        work.progress.step("measuring the FP32 baseline", 0, 1)
        uniform = work.space.uniform(Precision.FP32)
        # The median of several: every later latency is scaled by it.
        reference_ms = median(_rebuilt(work, uniform).raw_ms for _ in range(_REPEATS))
        work.store.settle_target(work.target.id, reference_ms=reference_ms)

    if work.target.target.relative:
        work.lease.once("reference", lambda: _reloaded(work).reference_ms is not None, measure)
        _reloaded(work)
    if work.target.reference_ms is not None:
        work.keeper.adopt(reference_ms=work.target.reference_ms)


def settle_band(work: Work, now: Standing) -> bool:
    """Measure and store how repeatable a latency is, on the last uniform baseline; False where none was built.

    One worker does it for all. One engine is timed in fresh processes, and its assignment built anew in a warm one; the
    band is the larger spread.
    """
    built = [row for row in now.baselines() if now.table.status[row] == OK]
    if not built:
        return False

    def measure() -> None:
        rebuild = _rebuild_spread(work, now, built[-1])
        repeatability = _process_spread(work, now, built[-1])
        details = {"repeatability": repeatability, "rebuild": rebuild}
        work.store.settle_target(work.target.id, details=details, latency_band=max(_LEAST_BAND, repeatability, rebuild))

    work.lease.once("band", lambda: _reloaded(work).latency_band is not None, measure)
    band = _reloaded(work).latency_band
    assert band is not None
    noisy = ": the machine is busy or its clock is not steady" if band > _NOISY_BAND else ""
    work.progress.note(f"latencies within {band:.1%} of each other count as a tie{noisy}")
    return True


def drift(work: Work, now: Standing, row: int) -> float:
    """Time the FP32 baseline of `row` again, as a further round of its own evaluation; how much slower it runs."""
    latency = _rebuilt(work, _assignment(work, now, row))
    work.store.add_round(work.target.id, {int(now.table.id[row]): latency})
    return latency.raw_ms / float(now.table.raw_ms[row]) - 1


def band_of(values_ms: Sequence[float]) -> float:
    """Relative tie band from repeated latencies: the range of the 60 % of them nearest to the median."""
    middle = median(values_ms)
    kept = sorted(values_ms, key=lambda value: abs(value - middle))[: max(3, math.ceil(0.6 * len(values_ms)))]
    return (max(kept) - min(kept)) / middle


def _rebuild_spread(work: Work, now: Standing, row: int) -> float:
    """Of the engine of a row and others of its assignment, all built and timed in one process."""
    assignment, first = _assignment(work, now, row), float(now.table.latency_ms[row])
    return _spread(work, "measuring how much rebuilt engines differ", lambda: _rebuilt(work, assignment), first)


def _process_spread(work: Work, now: Standing, row: int) -> float:
    """Of the engine of a row, loaded and timed in fresh processes.

    Beside the one that is warm: what its builder has learnt of tactics would be lost with it, which costs TensorRT 8.6
    more than a minute.
    """
    engine = str(engine_of(work, now, row))

    @time_spent("tie band")
    def in_fresh_process() -> Latency:
        job = replace(work.keeper.job, folder=str(work.folder / "fresh"))
        with EvaluatorProcess(job, work.folder / "fresh.log", work.keeper.limits) as fresh:
            return _timed(fresh, "time_engine", {"engine": engine})

    return _spread(work, "measuring repeatability in fresh processes", in_fresh_process)


def _spread(work: Work, text: str, measure: Callable[[], Latency], *known_ms: float) -> float:
    """The band of so many latencies, with those known, as it takes."""
    values_ms = list(known_ms)
    for wanted in (_REPEATS, _MORE_REPEATS):
        while len(values_ms) < wanted:
            work.progress.step(text, len(values_ms) + 1, wanted)
            values_ms.append(measure().value_ms)
        if band_of(values_ms) <= _NOISY_BAND:
            break
    return band_of(values_ms)


def _rebuilt(work: Work, assignment: Assignment) -> Latency:
    return _timed(work.keeper, "time_again", {"assignment": assignment, "out": str(work.folder / "again.engine")})


@time_spent("tie band")
def _timed(keeper: EvaluatorProcess, method: str, params: Mapping[str, Any]) -> Latency:
    try:
        result: Latency = keeper.call(method, params)
    except ProcessDiedError as death:
        raise EvaluatorError(f"measuring a baseline: {death.told()}.") from death
    return result


def _assignment(work: Work, now: Standing, row: int) -> Assignment:
    return work.store.assignments(work.target.id)[int(now.table.id[row])]


def _reloaded(work: Work) -> TargetRecord:
    """The target as it is stored now, which becomes that of the work."""
    work.target = next(t for t in work.store.targets(work.study.id) if t.id == work.target.id)
    return work.target
