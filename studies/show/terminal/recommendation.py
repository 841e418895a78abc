"""The recommended evaluation in one sentence, beside FP32."""

from __future__ import annotations

from studies.judging.point_lists import best_point
from studies.judging.points import Point
from studies.judging.rounding import estimate_text, half_width, latency_text, speedup_text, value_text
from studies.judging.rules.candidates import Aim
from studies.judging.sentences.cautions import MARK
from studies.judging.sentences.final_split import final_loss_text
from studies.judging.sentences.picks import DOUBTFUL
from studies.judging.standing import Standing


def recommendation_text(now: Standing) -> str:
    """`Best: trial 22 takes 0.83 ms, 2.65 × FP32; top1 95.9 %, it loses 0.08 ± 0.15 % on the final samples.`

    Empty where nothing is recommended.
    """
    best = best_point(now)
    if best is None:
        return ""
    broken = f" {MARK}: see the warning." if best.is_unrelated else ""
    return f"{_name(now)}: {point_text(now, best)}.{broken}"


def point_text(now: Standing, point: Point) -> str:
    """One evaluation: its latency, speed-up, metric and loss, of the final samples where it was scored there."""
    times = f"trial {point.trial} takes {latency_text(point.latency_ms, now.target.band)}"
    if point.speedup_doubtful:
        times += f" ({DOUBTFUL})"
    elif speedup := speedup_text(point.speedup):
        times += f", {speedup} × FP32"
    final = point.final
    if final.scored and final.loss is not None:
        value = value_text(final.value, half_width(final.low, final.high), now.metric)
        loss, samples = final_loss_text(now, point), "final"
    else:
        value = value_text(point.value, half_width(point.loss_low, point.loss_high), now.metric)
        loss, samples = estimate_text(point.loss, point.loss_low, point.loss_high, now.metric), "search"
    return f"{times}; {now.metric.name} {value}, loss {loss} on the {samples} samples"


def _name(now: Standing) -> str:
    if now.picks.aim is Aim.KNEE:
        return "Best, the knee of the front"
    return "Best within the limits" if now.limits else "Best"
