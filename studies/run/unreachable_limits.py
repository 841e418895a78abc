"""Unreachable limits: an accuracy that FP32 misses, a latency below all forecasts, or too little time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search.errors import RunError
from search.values import REFERENCE
from studies.judging.standing import Standing
from studies.options.limits import LATENCY_MS, METRIC_VALUE, Limit
from studies.options.quantities import format_duration_s, format_ms
from studies.store import suggestions

if TYPE_CHECKING:
    from studies.run.pace import Pace
    from studies.run.work import Work
    from studies.trials.proposals import Proposals


class UnreachableLimitError(RunError):
    """A limit cannot be kept. The message says how to go on; the same command would end in the same way."""


def check_float(now: Standing, storage: str) -> None:
    """Refuse an accuracy limit that uniform FP32 itself misses on the search split, once FP32 has been evaluated.

    Raises:
        UnreachableLimitError: naming what FP32 reaches and the limit.
    """
    row = now.measures.row_of(REFERENCE.role)
    if row is None:
        return
    value = float(now.table.metric_value[row])  # a perfect sqnr is infinite, stored as NaN
    for limit, bound in now.limits.rows():
        if limit.column == METRIC_VALUE and limit.sign(now.metric.higher_is_better) * (value - bound) > 0:
            raise UnreachableLimitError(_float_misses(now, storage, limit, value, bound))


def warn_of_budget(work: Work, proposals: Proposals, now: Standing) -> None:
    """Say where the latency budget is below what forecasts call reachable, by what the uniform assignments showed."""
    budget_ms, measured_ms = now.limits.most(LATENCY_MS), now.measures.latency_ms[now.measures.complete]
    if budget_ms is None or not len(measured_ms) or measured_ms.min() <= budget_ms:
        return
    from studies.run.guidance.guidance import make_guidance  # takes a while, and a search without a budget does without

    least_ms = proposals.least_ms(lambda: make_guidance(work))
    if least_ms is not None and budget_ms < (least_ms := min(least_ms, float(measured_ms.min()))):
        work.events.note(
            f"warning: the budget {format_ms(budget_ms)} is below {format_ms(least_ms)}, which the forecasts call the "
            "least "
            "that can be reached on this target. The search continues, and shows the nearest mixes if none keeps the "
            "budget"
        )


def check_time(pace: Pace, now: Standing, storage: str) -> None:
    """Refuse a time limit that is over before anything was evaluated.

    Raises:
        UnreachableLimitError: naming the limit, and what the start took.
    """
    if not len(now.table):
        refuse_late(pace, now.study.name, storage)


def limit_advice(work: Work, now: Standing, left: int) -> str:
    """How long an evaluation takes, and the limit that leaves time for so many more."""
    each = format_duration_s(max(1, round(work.pace.evaluation_s(now))))
    limit = format_duration_s(work.pace.enough_s(now, left))
    many = "the one that is" if left == 1 else f"the {left} that are"
    return f"an evaluation takes about {each} here; to resume with --time-limit {limit} leaves time for {many} left"


def refuse_late(pace: Pace, study: str, storage: str) -> None:
    """Refuse to begin a run whose time limit is over.

    Raises:
        UnreachableLimitError: naming the limit, and what the start took.
    """
    if pace.left_s > 0:
        return
    limit, took = (format_duration_s(each) for each in (pace.limit_s or 0.0, pace.passed_s))
    way = suggestions.command("resume", study, "--time-limit", "TIME", storage=storage)
    raise UnreachableLimitError(
        f"running study {study!r}: --time-limit {limit} is too short to evaluate anything. Starting, checking the "
        f"inputs and calibrating took {took}. Nothing was evaluated. Continue with more time: {way}"
    )


def _float_misses(now: Standing, storage: str, limit: Limit, value: float, bound: float) -> str:
    metric, option = now.metric, f"--{limit.option}"
    side = "at least" if limit.sign(now.metric.higher_is_better) < 0 else "at most"
    reached, asked = limit.format(value, metric), limit.format(bound, metric)
    way = suggestions.command("resume", now.study.name, option, limit.metavar, storage=storage)
    return (
        f"searching study {now.study.name!r}: FP32 itself misses {option}. It reaches {metric.name} {reached} on the "
        f"search samples, and {side} {asked} is required, so no mix of lower precisions can be expected to keep "
        f"it. Nothing else is evaluated. Continue with a limit that FP32 keeps: {way}"
    )
