"""Cautions about results: outputs that are unrelated to those of FP32, metrics that lack labels."""

from __future__ import annotations

import math

from evaluators.backends.registry import known_kind
from evaluators.measure.latency_scale import BUSY
from search.values import REFERENCE, Target
from studies.judging.points import UNRELATED_BELOW, Point
from studies.judging.standing import Standing, front_points
from studies.options.limits import Limit, Limits, MetricScale
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
    """What must not be missed: the caution of the target's backend, that the machine is busy, `unlike_float_text`, and
    `unrelated_text` of every pick that needs it, fastest first."""
    busy = BUSY if now.details.busy else ""
    broken = (unrelated_text(now, point) for point in front_points(now) if point.picks)
    return [text for text in (caution_text(now.target.target), busy, unlike_float_text(now), *broken) if text]


def unlike_float_text(now: Standing) -> str:
    """That all FP32 is another function than the float model, and what to do; empty if nothing says so."""
    row = now.measures.row_of(REFERENCE.role)
    if row is None or not now.details.fp32_doubts:
        return ""
    option = now.details.target_option
    compare = suggestions.command(
        "compare", now.study.name, str(now.table.trial[row]), *option, storage=now.details.storage
    )
    return (
        "all FP32 on this target, against which losses are measured, is unlike the float model in ONNX Runtime: "
        f"{'; '.join(now.details.fp32_doubts)}. A model that draws random numbers or sorts its outputs may do so; "
        f"of any other the engine is wrong: see where they part with `{compare}`."
    )


def format_resemblance(value: float | None) -> str:
    """A correlation with two digits, never `-0.00`; a dash where it is not known."""
    return "–" if value is None or math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"


def caution_text(target: Target) -> str:
    """The caution of a target's backend; empty if its numbers were measured, or where it is not known here."""
    kind = known_kind(target.backend)
    return "" if kind is None else kind.caution


def unlabelled_text(limits: Limits, metric: MetricScale) -> str:
    """What the limits mean where FP32 itself is compared with; empty if there are none, or for another metric.

    Args:
        metric: chosen by default for data without labels.
    """
    meant = [_explain_limit(limit, bound, metric) for limit, bound in limits.rows() if limit.bounds_accuracy]
    if not meant or not (metric.relative and metric.ratio):
        return ""
    return (
        f"WARNING: the data have no labels, so nobody knows which answers are right. {' '.join(meant)} To limit the "
        "loss of accuracy, add an array 'labels' with the class number of every sample to the data, or sort an image "
        f"folder into one sub-folder per class. If you mean the limit that way, --metric {metric.name} says so"
    )


def _explain_limit(limit: Limit, bound: float, metric: MetricScale) -> str:
    shares = f"at most {metric.text(bound)}" if limit.difference else f"at most {metric.text(1 - bound)}"
    return f"Your limit --{limit.option} now means that {shares} of the samples get another answer than from FP32."
