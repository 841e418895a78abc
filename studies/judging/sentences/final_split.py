"""Sentences about the final split: for tables, summaries, reports and manifests."""

from __future__ import annotations

import math

from studies.judging.points import Point
from studies.judging.rounding import bounded_text, estimate_text, score_name, value_text, worst_text
from studies.judging.rules.verdicts import Verdict
from studies.judging.standing import Standing, best_point, table_points
from studies.options.limits import METRIC_VALUE

_MOST_NAMED = 3


def final_loss_text(now: Standing, point: Point) -> str:
    """Loss on the final split with the bound that is judged; empty if it was not scored.

    Where a limit bounds the metric itself, so does what it is at worst: `0.2 %, ≤ 0.9 %, top1 ≥ 93.1 %`.
    """
    final = point.final
    if not final.scored:
        return ""
    text = bounded_text(final.loss, final.bound, now.metric)
    bounds_value = any(limit.column == METRIC_VALUE for limit, _ in now.limits.rows())
    if not bounds_value or final.value is None or final.value_bound is None or math.isinf(final.value_bound):
        return text
    return f"{text}, {now.metric.name} {worst_text(final.value, final.value_bound, now.metric)}"


def final_score_text(now: Standing, point: Point) -> str:
    """`loss 0.2 %, ≤ 0.9 %` on the final split; of a metric that compares with FP32 `sqnr 42.5 dB, ≥ 41.0 dB`.

    Empty if it was not scored.
    """
    text = final_shown_text(now, point)
    return text and f"{score_name(now.metric)} {text}"


def final_shown_text(now: Standing, point: Point) -> str:
    """`final_loss_text`, or `final_value_text` of a metric that compares with FP32."""
    return final_value_text(now, point) if now.metric.relative else final_loss_text(now, point)


def final_value_text(now: Standing, point: Point) -> str:
    """The metric on the final split and what it is at worst: `42.5 dB, ≥ 41.0 dB`.

    The value alone where there are too few samples for a bound; empty if it was not scored.
    """
    final, metric = point.final, now.metric
    if not final.scored or final.value is None:
        return ""
    if final.value_bound is None or not math.isfinite(final.value_bound):
        return metric.text(final.value, 3)
    half = abs(final.value - final.value_bound)
    if not half:
        return metric.text(final.value)
    return f"{value_text(final.value, half, metric)}, {worst_text(final.value, final.value_bound, metric)}"


def final_text(now: Standing, point: Point) -> str:
    """`final_shown_text`, and what it says of the limits; empty if it was not scored."""
    final = point.final
    if now.final.unscorable[point.row]:
        return "NaN or infinity"
    if not final.scored:
        return ""
    text = final_shown_text(now, point)
    if final.verdict is Verdict.UNLIMITED:
        return text
    tried = f", {final.tries} tried" if "best" in point.picks and final.tries > 1 else ""
    return f"{text} ({final.verdict.value}{tried})"


def final_notes(now: Standing) -> list[str]:
    """Sentences about the final split: what was recommended instead of what failed there, and what disagrees."""
    texts = [_instead_text(now), *_disagreements(now)]
    return [text for text in texts if text]


def _instead_text(now: Standing) -> str:
    """What is recommended where all that stood in line for the best fail on the final split; empty elsewhere."""
    line, best = now.points(now.picks.line), best_point(now)
    if best is None or not line or not all(point.final.verdict is Verdict.FAILS for point in line):
        return ""
    many = f"none of the {len(line)} candidates keeps" if len(line) > 1 else "the only candidate does not keep"
    head = f"{many} the limits on the final split"
    if best.final.verdict is Verdict.FAILS:
        return f"{head}; trial {best.trial}, of which the search was most certain, is shown as the best but fails too"
    return f"{head}; trial {best.trial} is recommended instead ({best.final.verdict.value})"


def _disagreements(now: Standing) -> list[str]:
    """`disagreement_text` of the evaluations that a table names, a few of them, picks first."""
    points = {point.row: point for point in [*now.points(now.picks.rows()), *table_points(now)]}
    texts = [text for point in points.values() if (text := disagreement_text(now, point))]
    more = len(texts) - _MOST_NAMED
    return texts[:_MOST_NAMED] + ([f"so do {more} more of those shown"] if more > 0 else [])


def disagreement_text(now: Standing, point: Point) -> str:
    """Two losses that differ by more than chance explains, and what both say together; empty if they do not.

    Of a metric that compares with FP32 they are values.
    """
    disagreement = point.final.disagreement
    if disagreement is None:
        return ""
    numbers, half = [disagreement.search, disagreement.final, disagreement.pooled], disagreement.half
    what = "a loss of"
    if now.metric.relative and point.value is not None:
        sign, what = -1 if now.metric.higher_is_better else 1, now.metric.name
        numbers = [point.value + sign * (loss - disagreement.search) for loss in numbers]
    searched, final, _ = (value_text(number, half, now.metric) for number in numbers)
    pooled = estimate_text(numbers[2], numbers[2] - half, numbers[2] + half, now.metric)
    named = f"trial {point.trial}" if point.trial >= 0 else "the exported engine"
    return (
        f"{named}: the search saw {what} {searched}, the final split {final}. They differ by more than chance "
        f"explains. Both together: {pooled}"
    )
