"""The summary of a study at the top of the report: FP32, all INT8 and the best mix side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from search.values import REFERENCE
from search.values.precision import Precision
from studies.judging.points import Point
from studies.judging.rounding import half_width, latency_text, score_verb, value_text, worst_text
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.final_split import final_shown_text, final_value_text
from studies.judging.sentences.picks import DOUBTFUL
from studies.judging.standing import Standing, best_point

_WORDS = {
    Verdict.SURELY: "The limits are kept there, with 95 % certainty",
    Verdict.HOLDS: "The limits are likely kept there, but that may be chance",
    Verdict.FAILS: "The limits are MISSED there",
}


@dataclass(frozen=True)
class StoryRow:
    """One engine of the story.

    Attributes:
        name: `FP32`, `INT8` or `bitfront`.
        value: of the metric on the search data, in words.
        share: of the longest latency shown, 0 to 1.
        speedup: against FP32, in words; empty for FP32 itself.
        colour: of its bar.
    """

    name: str
    value: str
    latency_ms: float
    share: float
    speedup: str
    colour: str


@dataclass(frozen=True)
class Story:
    """The first lines of the report; `sentence` says what the final data say of the best.

    Attributes:
        headline: `1.97 × as fast as FP32; loses at most 0.9 % of top1`.
    """

    rows: tuple[StoryRow, ...] = ()
    sentence: str = ""
    headline: str = ""


def build_story(now: Standing) -> Story:
    """FP32, all INT8 and the best mix; those that were not measured are left out."""
    named = [(name, point, point.latency_ms) for name, point in _points(now) if point.latency_ms is not None]
    if not named:
        return Story()
    longest = max(latency_ms for _, _, latency_ms in named)
    rows = tuple(_row(now, name, point, latency_ms, longest) for name, point, latency_ms in named)
    return Story(rows, _final_sentence(now), _headline(now))


def _points(now: Standing) -> Iterator[tuple[str, Point]]:
    for precision, row in now.measures.uniform_rows:
        yield precision.label.upper(), now.point(row)
    best = best_point(now)
    if best is not None:
        yield "bitfront", best


def _row(now: Standing, name: str, point: Point, latency_ms: float, longest_ms: float) -> StoryRow:
    colour = "var(--accent)" if name == "bitfront" else Precision.parse(name).colour
    speedup = "" if name == REFERENCE.name or point.speedup is None else f"{point.speedup:.2f} ×"
    if point.speedup_doubtful and name != REFERENCE.name:
        speedup = f"latency {DOUBTFUL}"
    return StoryRow(name, _value(now, name, point), latency_ms, latency_ms / longest_ms, speedup, colour)


def _value(now: Standing, name: str, point: Point) -> str:
    """The metric in words; FP32 is what metrics of likeness compare with, so it has no value of its own there."""
    if name == REFERENCE.name and now.metric.relative:
        return "reference"
    return value_text(point.value, half_width(point.loss_low, point.loss_high), now.metric, missing="–")


def _headline(now: Standing) -> str:
    """How fast the best mix is and what it loses at most, in words; empty where there is none."""
    best = best_point(now)
    if best is None or best.latency_ms is None:
        return ""
    file = f", {best.over_file:.2f} × as fast as the file as given" if best.over_file else ""
    if best.baseline == REFERENCE.label:
        return f"Stay with {REFERENCE.label.upper()}: nothing faster is recommended{file}"
    if best.speedup is None or best.speedup_doubtful:
        speed = f"{latency_text(best.latency_ms)}, {DOUBTFUL}"
    elif best.speedup <= 1 + now.target.band:
        speed = f"Not measurably faster than FP32 ({best.speedup:.2f} ×)"
    else:
        speed = f"{best.speedup:.2f} × as fast as FP32"
    final, speed = best.final, speed + file
    if final.loss is None or final.bound is None or not math.isfinite(final.bound):
        return speed
    if now.metric.relative:
        return f"{speed}; {now.metric.name} {final_value_text(now, best)}"
    most = worst_text(final.loss, final.bound, now.metric).removeprefix("≤ ")
    return f"{speed}; loses at most {most} of {now.metric.name}"


def _final_sentence(now: Standing) -> str:
    """What the data that the search never saw say of the best; empty if there is none, it is FP32 or was not scored."""
    best = best_point(now)
    if best is None or not best.final.scored or best.baseline == REFERENCE.label:
        return ""
    who = f"all {best.baseline.upper()}" if best.baseline else "bitfront's mix"
    final, samples = best.final, now.study.data.get("final")
    of = f"{samples:,} samples" if samples else "samples"
    verdict = _WORDS.get(final.verdict, "")
    against = "" if now.metric.relative else f" of {now.metric.name} against FP32"
    scored = f"{score_verb(now.metric)} {final_shown_text(now, best)}{against}"
    head = f"On {of} that the search never saw, {who} {scored}."
    return f"{head} {verdict}." if verdict else head
