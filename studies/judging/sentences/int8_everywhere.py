"""Whether what users bring or try first is good enough: the file as given, and INT8 everywhere."""

from __future__ import annotations

from search.values import REFERENCE
from studies.judging.point_lists import best_point
from studies.judging.points import Point
from studies.judging.rounding import estimate_text, latency_text, speedup_text
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.final_split import final_loss_text
from studies.judging.sentences.picks import is_faster
from studies.judging.standing import Standing
from studies.store.records import AS_GIVEN

_JUDGED = {
    Verdict.SURELY: "it keeps the limits there with 95 % certainty, which the search samples left open",
    Verdict.HOLDS: "that keeps the limits by the estimate, but not with 95 % certainty: it is likely good enough, "
    "not surely",
    Verdict.FAILS: "that misses the limits",
}


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


def int8_everywhere_text(now: Standing) -> str:
    """What the final samples say of uniform INT8, beside the recommended mix.

    Returns:
        The sentence without its full stop; empty where INT8 is not faster by more than the tie band, is what is
        recommended, or was not scored on the final samples.
    """
    row, best = now.near_int8, best_point(now)
    if row is None or best is None or row == best.row:
        return ""
    int8 = now.point(row)
    if not int8.final.scored or not is_faster(int8, best, now.target.band):
        return ""
    judged = _JUDGED.get(int8.final.verdict)
    if judged is None:
        return ""
    take = "" if int8.final.verdict is Verdict.FAILS else f"; --trial {int8.trial} exports it"
    return (
        f"All INT8 (trial {int8.trial}) is faster than the best: {latency_text(int8.latency_ms, now.target.band)} "
        f"against {latency_text(best.latency_ms, now.target.band)}. On the final samples it loses "
        f"{final_loss_text(now, int8)}{_beside(now, best)}; {judged}{take}"
    )


def _beside(now: Standing, best: Point) -> str:
    return f", the best {final_loss_text(now, best)}" if best.final.scored else ""
