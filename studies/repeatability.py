"""How far a latency can be trusted: the baseline that relative ones are scaled to, and drift."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from evaluators.process import EvaluatorProcess, ProcessDiedError
from evaluators.stopwatch import time_spent
from search.errors import EvaluatorError
from search.values import Assignment, Latency, Precision
from studies.records import TargetRecord
from studies.standing import Standing

if TYPE_CHECKING:
    from studies.runner import Work

_REPEATS = 3  # builds of the reference


def settle_reference(work: Work) -> None:
    """Measure the float baseline that relative latencies are scaled to, once for all workers of the target."""

    def measure() -> None:
        work.progress.step("measuring the FP32 baseline", 0, 1)
        uniform = work.space.uniform(Precision.FP32)
        # The median of several: every later latency is scaled by it.
        reference_ms = median(rebuilt(work, uniform).raw_ms for _ in range(_REPEATS))
        work.store.settle_target(work.target.id, reference_ms=reference_ms)

    if work.target.target.relative:
        work.lease.once("reference", lambda: reloaded(work).reference_ms is not None, measure)
        reloaded(work)
    if work.target.reference_ms is not None:
        work.keeper.adopt(reference_ms=work.target.reference_ms)


def drift(work: Work, now: Standing, row: int) -> float:
    """Time the FP32 baseline of `row` again, as a further round of its own evaluation; how much slower it runs."""
    latency = rebuilt(work, assignment_of(work, now, row))
    work.store.add_round(work.target.id, {int(now.table.id[row]): latency})
    return latency.raw_ms / float(now.table.raw_ms[row]) - 1


def rebuilt(work: Work, assignment: Assignment) -> Latency:
    """Build an assignment anew in the process that is warm, and measure its latency alone."""
    return timed(work.keeper, "time_again", {"assignment": assignment, "out": str(work.folder / "again.engine")})


@time_spent("tie band")
def timed(keeper: EvaluatorProcess, method: str, params: Mapping[str, Any]) -> Latency:
    """The latency that a request to an evaluator process gives; EvaluatorError where the process dies over it."""
    try:
        result: Latency = keeper.call(method, params)
    except ProcessDiedError as death:
        raise EvaluatorError(f"measuring a baseline: {death.told()}.") from death
    return result


def assignment_of(work: Work, now: Standing, row: int) -> Assignment:
    """What a row of the study's evaluations was built from."""
    return work.store.assignments(work.target.id)[int(now.table.id[row])]


def reloaded(work: Work) -> TargetRecord:
    """The target as it is stored now, which becomes that of the work."""
    work.target = next(t for t in work.store.targets(work.study.id) if t.id == work.target.id)
    return work.target
