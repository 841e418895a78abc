"""Timing a baseline again: for the tie band, and for drift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluators.process.job import discard
from evaluators.stopwatch import time_spent
from search.values import Assignment, Latency
from studies.judging.standing import Standing

if TYPE_CHECKING:
    from studies.run.work import Bench, Work
from studies.trials.ledger import Ledger


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
