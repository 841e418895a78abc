"""The sentence about the user's own file, where it is quantized or in half precision: a baseline of its own."""

from __future__ import annotations

from search.values import REFERENCE
from studies.judging.point_lists import best_point
from studies.judging.rounding import estimate_text, latency_text, speedup_text
from studies.judging.standing import Standing
from studies.store.records import AS_GIVEN


def as_given_text(now: Standing) -> str:
    """How fast and how good the file as given is, beside FP32 and the best, without the full stop; empty if unknown."""
    told = now.target.details.get(AS_GIVEN)
    if told is None:
        return ""
    latency_ms = told.get("latency_ms")
    if latency_ms is None:
        return f"The file as given was not measured: {told['failure']}"
    base, best = now.measures.row_of(REFERENCE.role), best_point(now)
    fp32 = "" if base is None else f" ({speedup_text(now.measures.latency_ms[base] / latency_ms)} × FP32)"
    loss = estimate_text(told.get("loss"), told.get("loss_low"), told.get("loss_high"), now.metric)
    lost = f"loses {loss} on the final samples" if loss else f"gives no finite outputs there: {told['failure']}"
    beside = "" if best is None else f"; the best is {speedup_text(latency_ms / best.latency_ms)} times as fast"
    return f"The file as given takes {latency_text(latency_ms, now.target.band)}{fp32} and {lost}{beside}"
