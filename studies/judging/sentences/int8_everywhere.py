"""The sentence that says whether INT8 everywhere is good enough, where it is faster than what is recommended."""

from __future__ import annotations

from studies.judging.point_lists import best_point
from studies.judging.points import Point
from studies.judging.rounding import latency_text
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.final_split import final_loss_text
from studies.judging.sentences.picks import is_faster
from studies.judging.standing import Standing

_JUDGED = {
    Verdict.SURELY: "it keeps the limits there with 95 % certainty, which the search samples left open",
    Verdict.HOLDS: "that keeps the limits by the estimate, but not with 95 % certainty: it is likely good enough, "
    "not surely",
    Verdict.FAILS: "that misses the limits",
}


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
