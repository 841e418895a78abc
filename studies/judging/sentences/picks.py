"""Sentences about the picks: the meaning of `best`, its numbers, its ties, and the tie band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from studies.judging.points import Point
from studies.judging.rounding import (
    half_width,
    latency_text,
    score_name,
    score_verb,
    shown_score_text,
    value_text,
)
from studies.judging.rules.candidates import Aim
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.cautions import MARK
from studies.judging.sentences.final_split import final_shown_text, final_text
from studies.judging.standing import Standing, best_point, table_points
from studies.options.quantities import format_percent

_MOST_TIES = 2
DOUBTFUL = "doubtful"  # stands beside a latency or a speed-up


def best_label(now: Standing) -> str:
    """What is shown as the best is called: by the limits, by the knee where they leave that open, or as failing."""
    label = "best" if not now.limits else "best within the limits"
    if (best := best_point(now)) is not None and best.final.verdict is Verdict.FAILS:
        label = "best of the search, which misses the limits on the final split"
    return f"{label}, the knee of the front" if now.picks.aim is Aim.KNEE else label


def best_text(now: Standing) -> str:
    """The recommended evaluation with its loss in the search and on the final split; `none yet` where there is none."""
    best = best_point(now)
    if best is None:
        return "none yet"
    broken = f", {MARK}" if best.is_unrelated else ""
    return f"trial {best.trial}: {numbers_text(now, best)}{broken}"


def numbers_text(now: Standing, point: Point) -> str:
    """Latency, loss in the search and on the final split of an evaluation, and what that says of the limits."""
    doubt = " (not sure)" if point.not_sure else ""
    loss = shown_score_text(point.loss_interval, now.metric)
    took = latency_text(point.latency_ms, now.target.band) + (f" ({DOUBTFUL})" if point.latency_doubtful else "")
    searched = f"{took}, {score_name(now.metric)} {loss}{doubt}"
    final = final_text(now, point)
    return f"{searched}; on the final split {final}" if final else searched


def ties_text(now: Standing, point: Point, name: str) -> str:
    """What a pick beats by noise alone: `ties with all FP32 (trial 0) and trial 7`.

    If one of them loses less by more than noise, it is named with the difference, as you may prefer it. The text is
    empty if the pick beats all others clearly.
    """
    rows = point.ties.get(name, ())
    if not rows:
        return ""
    named = [_name(now, row, numbered=True) for row in rows[:_MOST_TIES]]
    named += [f"{len(rows) - _MOST_TIES} more"] * (len(rows) > _MOST_TIES)
    head = f"{', '.join(named[:-1])} and " if len(named) > 1 else ""
    return f"ties with {head}{named[-1]}{_less_loss_text(now, point, rows)}"


def _less_loss_text(now: Standing, point: Point, rows: Sequence[int]) -> str:
    """How much less the one loses that loses least of these, if that is more than noise; else empty."""
    losses = {row: loss for row in rows if (loss := now.point(row).loss) is not None}
    if not losses or point.loss is None:
        return ""
    least = min(losses, key=losses.__getitem__)
    other, difference = now.point(least), point.loss - losses[least]
    noise = [half_width(each.loss_low, each.loss_high) for each in (point, other)]
    if not all(difference > half for half in noise):
        return ""
    return f"; {_name(now, least)} loses {value_text(difference, max(noise), now.metric)} less"


def _name(now: Standing, row: int, *, numbered: bool = False) -> str:
    """`trial 7`; of a baseline `all FP32`, in a list of several `all FP32 (trial 0)`."""
    kind, _, precision = str(now.table.role[row]).partition(":")
    trial = f"trial {now.table.trial[row]}"
    return trial if kind != "baseline" else f"all {precision.upper()}{f' ({trial})' * numbered}"


def is_faster(point: Point, other: Point, band: float) -> bool:
    """Whether one is faster than another by more than the tie band; False where either was not measured."""
    times = point.latency_ms, other.latency_ms
    return times[0] is not None and times[1] is not None and times[0] * (1 + band) < times[1]


def faster_text(now: Standing) -> str:
    """Why a faster evaluation than the recommended one is not recommended: of several the one that loses least.

    Returns:
        The sentence without its full stop; empty where nothing in the tables is faster by more than the tie band.
    """
    best = best_point(now)
    if best is None:
        return ""
    faster = [point for point in table_points(now) if is_faster(point, best, now.target.band)]
    known = [point for point in faster if point.loss is not None and not point.mismatch]
    known = [point for point in known if point.row != now.near_int8 or not point.final.scored]  # has its own sentence
    if not known:
        return ""
    other = min(known, key=lambda point: (point.loss or 0.0, point.latency_ms or 0.0))
    took = latency_text(other.latency_ms, now.target.band)
    return f"{_name(now, other.row)} is faster than the best ({took}), but {_why_not(now, best, other)}"


def _why_not(now: Standing, best: Point, other: Point) -> str:
    searched, loses = shown_score_text(other.loss_interval, now.metric), score_verb(now.metric)
    if other.final.failure:
        return "its outputs on the final samples hold NaN or infinity"
    if other.is_unrelated:
        return "its outputs have nothing in common with those of FP32"
    if other.final.scored and other.final.verdict is Verdict.FAILS:
        return f"misses the limits on the final samples: it {loses} {final_shown_text(now, other)} there"
    if not other.feasible:
        return f"misses the limits: it {loses} {searched} on the search samples"
    if now.picks.aim is Aim.FASTEST:
        return f"is less sure to keep the limits: it {loses} {searched} on the search samples"
    mine = shown_score_text(best.loss_interval, now.metric)
    return f"it {loses} {searched} on the search samples, the best {mine}"


def band_text(now: Standing) -> str:
    """How far two latencies may differ and count as equal, and whether the study has measured that itself."""
    text = f"latencies within {format_percent(now.target.band, digits=2)} of each other count as a tie"
    if not now.target.band_is_provisional:
        return text
    return f"{text}. This band is provisional, because the study has not finished measuring its own"


def other_pick_text(now: Standing, pick: str, before: Point, row: int) -> str:
    """That another evaluation is exported than the one that was the pick before it was confirmed, and why.

    Args:
        now: the study after the confirmation.
        pick: `best`, `accurate` and so on.
        before: the evaluation that was the pick, with its figures of then.
        row: the row that is the pick now.

    Returns:
        The sentence without its full stop; empty if the pick is the same.
    """
    if now.table.id[row] == before.id:
        return ""
    label = "the best" if pick == "best" else f"the pick {pick!r}"
    why = _why(now, before)
    return f"trial {before.trial} was {label} so far, but {why}; trial {now.table.trial[row]} is exported instead"


def _why(now: Standing, before: Point) -> str:
    """Why an evaluation that was the pick is not the pick any more."""
    point = now.point(int(np.flatnonzero(now.table.id == before.id)[0]))
    if now.final.unscorable[point.row]:
        return "its outputs on the final samples hold NaN or infinity"
    if point.final.verdict is Verdict.FAILS:
        return "it misses the limits on the final samples"
    return "its figures on the final samples are worse"
