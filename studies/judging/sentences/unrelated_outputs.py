"""The warning about engines whose outputs are unrelated to those of FP32."""

from __future__ import annotations

import math

from evaluators.measure.latency_scale import BUSY
from studies.judging.point_lists import front_points
from studies.judging.points import UNRELATED_BELOW, Point
from studies.judging.sentences.cautions import caution_text
from studies.judging.standing import Standing
from studies.store import suggestions

MARK = "UNRELATED TO FP32"


def unrelated_text(now: Standing, point: Point) -> str:
    """What is wrong with the outputs of an evaluation, and what to do; empty if nothing is known to be."""
    if not point.is_unrelated:
        return ""
    named = f"trial {point.trial}" if point.trial >= 0 else "the engine built again for this export"
    picked = f" ({', '.join(point.picks)})" if point.picks else ""
    compare = suggestions.command("compare", now.study.name, str(point.trial), storage=now.details.storage)
    advice = f" Look at it with `{compare}` before you use it." if point.trial >= 0 else ""
    return (
        f"{named}{picked} is probably broken: its outputs have nothing in common "
        f"with FP32's (correlation {format_resemblance(point.correlation)}; 1 is equal, below "
        f"{UNRELATED_BELOW} is unrelated), whatever the metric {now.metric.name} says.{advice}"
    )


def pick_warnings(now: Standing) -> list[str]:
    """What must not be missed: the caution of the target's backend, that the machine is busy, and `unrelated_text` of
    every pick that needs it, fastest first."""
    broken = (unrelated_text(now, point) for point in front_points(now) if point.picks)
    return [text for text in (caution_text(now.target.target), BUSY if now.details.busy else "", *broken) if text]


def format_resemblance(value: float | None) -> str:
    """A correlation with two digits, never `-0.00`; a dash where it is not known."""
    return "–" if value is None or math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"
