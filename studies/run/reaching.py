"""Limits out of reach: an accuracy that FP32 misses, a latency below every forecast, a time too short for anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search.errors import RunError
from studies.judging.standing import Standing
from studies.options.quantities import format_duration_s, format_metric, format_ms
from studies.store import suggestions

if TYPE_CHECKING:
    from studies.run.pace import Pace
    from studies.run.work import Work
    from studies.trials.proposals import Proposals


class UnreachableLimitError(RunError):
    """A limit cannot be kept. The message says how to go on; the same command would end in the same way."""


def check_float(work: Work, now: Standing) -> None:
    """Refuse an accuracy limit that uniform FP32 itself misses on the search split, once FP32 has been evaluated.

    Raises:
        UnreachableLimitError: naming what FP32 reaches and the limit.
    """
    limit, row = now.limits.accuracy_limit, now.row_of("baseline:fp32")
    if limit is None or row is None:
        return
    value = float(now.table.metric_value[row])
    missed = value < limit if now.higher_is_better else value > limit  # a perfect sqnr is infinite, stored as NaN
    if missed:
        raise UnreachableLimitError(_float_misses(work, now, value, limit))


def warn_of_budget(work: Work, proposals: Proposals, now: Standing) -> None:
    """Say where the latency budget is below what forecasts call reachable, by what the uniform assignments showed."""
    budget_ms, measured_ms = now.limits.latency_budget_ms, now.latency_ms[now.complete]
    if budget_ms is None or not len(measured_ms) or measured_ms.min() <= budget_ms:
        return
    from studies.run.guidance.guidance import make_guidance  # takes a while, and a search without a budget does without

    least_ms = proposals.least_ms(lambda: make_guidance(work))
    if least_ms is not None and budget_ms < (least_ms := min(least_ms, float(measured_ms.min()))):
        work.progress.note(
            f"warning: the budget {format_ms(budget_ms)} is below {format_ms(least_ms)}, the least that the forecasts "
            "call reachable on this target; the search goes on, and shows the nearest mixes if none keeps it"
        )


def check_time(work: Work, now: Standing) -> None:
    """Refuse a time limit that is over before anything was evaluated.

    Raises:
        UnreachableLimitError: naming the limit, and what the start took.
    """
    if not len(now.table):
        refuse_late(work.pace, work.ledger.study.name, work.problem.config.storage)


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
        f"running study {study!r}: --time-limit {limit} is too short to evaluate anything: starting, checking the "
        f"inputs and calibrating took {took}. Nothing was evaluated. Go on with more time: {way}"
    )


def _float_misses(work: Work, now: Standing, value: float, limit: float) -> str:
    metric = now.study.metric
    reached, asked = (format_metric(each, metric["unit"], metric["ratio"]) for each in (value, limit))
    bound = "at least" if now.higher_is_better else "at most"
    way = suggestions.command(
        "resume", now.study.name, "--accuracy-limit", "VALUE", storage=work.problem.config.storage
    )
    return (
        f"searching study {now.study.name!r}: FP32 itself misses --accuracy-limit. It reaches {metric['name']} "
        f"{reached} on the search samples, and {bound} {asked} is asked for, so that no mix of lower precisions can be "
        f"expected to keep it. Nothing else is evaluated. Go on with a limit that FP32 keeps: {way}"
    )
