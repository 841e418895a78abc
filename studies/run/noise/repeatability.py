"""Timing a baseline again: for the tie band, and for drift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluators.stopwatch import time_spent
from search.values import Assignment, Latency
from studies.judging.standing import Standing

if TYPE_CHECKING:
    from studies.run.work import Work


def measure_drift(work: Work, now: Standing, row: int) -> float:
    """Time the FP32 baseline of `row` again, as a further round of its own evaluation.

    Returns:
        How much slower it runs, on the clock, than it usually does; where no baseline runs beside candidates, than it
        did at first.
    """
    latency = rebuilt(work, assignment_of(work, now, row), now.table.reference_ms)
    work.ledger.store.measurements.add_round(work.ledger.target.id, {int(now.table.id[row]): latency})
    usual_ms = now.table.reference_ms if latency.baseline_ms is not None else None
    return latency.raw_ms / (usual_ms or float(now.table.raw_ms[row])) - 1


@time_spent("tie band")
def rebuilt(work: Work, assignment: Assignment, reference_ms: float | None = None) -> Latency:
    """Build an assignment anew in the process that is warm, and measure its latency alone.

    Args:
        reference_ms: what the baseline usually takes on a relative target.
    """
    line = work.bench.keeper.ask("measuring a baseline")
    with work.bench.hold:
        return line.timings.time_again(assignment, work.bench.folder / "again.engine", reference_ms)


def assignment_of(work: Work, now: Standing, row: int) -> Assignment:
    """What a row of the study's evaluations was built from."""
    return work.ledger.store.evaluations.assignments(work.ledger.target.id)[int(now.table.id[row])]
