"""What no mix can be expected to reach: an accuracy that FP32 itself misses, a latency below every forecast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search.errors import RunError
from studies import suggestions
from studies.standing import Standing
from studies.units import format_metric

if TYPE_CHECKING:
    from studies.runner import Work


class UnreachableLimitError(RunError):
    """FP32 itself misses a limit. The message says how to go on; the same command would end in the same way."""


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


def _float_misses(work: Work, now: Standing, value: float, limit: float) -> str:
    metric = now.study.metric
    reached, asked = (format_metric(each, metric["unit"], metric["ratio"]) for each in (value, limit))
    bound = "at least" if now.higher_is_better else "at most"
    way = suggestions.command("resume", now.study.name, "--accuracy-limit", "VALUE", storage=work.config.storage)
    return (
        f"searching study {now.study.name!r}: FP32 itself misses --accuracy-limit. It reaches {metric['name']} "
        f"{reached} on the search samples, and {bound} {asked} is asked for, so that no mix of lower precisions can be "
        f"expected to keep it. Nothing else is evaluated. Go on with a limit that FP32 keeps: {way}"
    )
