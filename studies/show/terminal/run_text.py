"""What a run is doing, its time that has passed and is left, and its recommendation, in words."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from search.values import Stage
from studies.judging.points import Point
from studies.judging.rounding import half_width, latency_text, scores_text, speedup_text, value_text
from studies.judging.search_events import RunTime
from studies.judging.sentences.cautions import MARK
from studies.judging.sentences.final_split import final_score_text
from studies.judging.sentences.picks import DOUBTFUL, best_label
from studies.judging.standing import Standing, best_point
from studies.options.quantities import format_duration_s

_STAGES: Mapping[str, str] = {
    Stage.LOWER.value: "writing the mix into the graph",
    Stage.BUILD.value: "building",
    Stage.AUDIT.value: "reading the precisions that layers run in",
    Stage.LATENCY.value: "measuring latency",
    Stage.ACCURACY.value: "scoring",
}
_FEWEST_ALIKE = 10  # parts of a step; fewer are steps of their own, as those of recovery, and take unequal times
_SHORT_S = 2.0  # of what takes less nobody wants to know for how long
_MOST_SHOWN = 4


def clock_text(run: RunTime) -> str:
    """The time that passed, of the limit where there is one: `2:31 of 8:00`."""
    passed = _clock(time.monotonic() - run.began)
    return passed if run.limit_s is None else f"{passed} of {_clock(run.limit_s)}"


def left_text(run: RunTime) -> str:
    """`about 5m20s left`, or `at most 5m20s left`; empty while that is not known, and where the end is overdue."""
    left_s = 0.0 if run.ends is None else run.ends - time.monotonic()
    how = "at most" if run.may_end else "about"
    return f"{how} {format_duration_s(_rough_s(left_s))} left" if left_s > 0 else ""


def lasting_text(text: str, since: float) -> str:
    """What is being done, and for how long where that is worth telling: `calibrating, for 42s`."""
    lasted_s = time.monotonic() - since
    return f"{text}, for {format_duration_s(round(lasted_s))}" if lasted_s >= _SHORT_S else text


def step_text(text: str, done: int, total: int) -> str:
    """What is being done, and how far it is, where that can be counted."""
    return f"{text} {done}/{total}" if total > 1 else text


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rough_s(seconds: float) -> int:
    """An estimate in as many seconds as it may be known to."""
    step_s = 1 if seconds < 10 else 5 if seconds < 60 else 10 if seconds < 600 else 60
    return max(1, round(seconds / step_s) * step_s)


class Doing:
    """What a run is doing at the moment: its step, or its trials, of which several may be under way.

    Another thread draws it while it changes: what belongs together is one attribute, and is read once.

    Attributes:
        step: what is done, how much of it, and of how much; zeros where that is not counted.
    """

    def __init__(self, text: str = "starting") -> None:
        self.step = text, 0, 0
        self._since = time.monotonic()
        self._counted = self._since, 0  # since when steps are counted, and from which number
        self._trials: dict[int, tuple[str, float]] = {}

    def note_step(self, text: str, done: int, total: int) -> None:
        """A step goes on; it lasts since it was first named."""
        known, before, _ = self.step
        if text != known or done < before:
            self._since = time.monotonic()
        if text != known or done <= before:
            self._counted = time.monotonic(), done
        self.step = text, done, total

    def note_stage(self, trial: int, stage: str) -> None:
        """A trial reaches a stage, or waits for something."""
        self.step = "", 0, 0
        text = _STAGES.get(stage, stage)
        if self._trials.get(trial, ("",))[0] != text:
            self._trials[trial] = text, time.monotonic()

    def note_end(self, trials: Sequence[int]) -> None:
        """Trials ended."""
        for trial in trials:
            self._trials.pop(trial, None)

    def step_left_s(self) -> float:
        """Seconds that the step still takes, by what of it was done since it began; 0 while nobody can say."""
        (_, done, total), (since, first) = self.step, self._counted
        if total < _FEWEST_ALIKE or not first < done < total:
            return 0.0
        return (time.monotonic() - since) / (done - first) * (total - done)

    def texts(self) -> list[str]:
        """The step with its duration, then the trials with theirs, the oldest first."""
        return [*filter(None, [self.step_text()]), *self.trial_texts()]

    def step_text(self) -> str:
        """The step with its duration; empty where there is none."""
        text, done, total = self.step
        return lasting_text(step_text(text, done, total), self._since) if text else ""

    def trial_texts(self) -> list[str]:
        """The trials with their durations, the oldest first."""
        trials = sorted(list(self._trials.items()), key=lambda item: item[1][1])[:_MOST_SHOWN]  # noqa: C414 - a copy
        return [f"trial {trial}: {lasting_text(what, since)}" for trial, (what, since) in trials]


def recommendation_text(now: Standing) -> str:
    """`Best: trial 22 takes 0.83 ms, 2.65 × FP32; top1 95.9 %, it loses 0.08 ± 0.15 % on the final samples.`

    Empty where nothing is recommended.
    """
    best = best_point(now)
    if best is None:
        return ""
    broken = f" {MARK}: see the warning." if best.is_unrelated else ""
    label = best_label(now)
    return f"{label[0].upper()}{label[1:]}: {point_text(now, best)}.{broken}"


def point_text(now: Standing, point: Point) -> str:
    """One evaluation: its latency, speed-up, metric and loss, of the final samples where it was scored there."""
    times = f"trial {point.trial} takes {latency_text(point.latency_ms, now.target.band)}"
    if point.speedup_doubtful:
        times += f" ({DOUBTFUL})"
    elif speedup := speedup_text(point.speedup):
        times += f", {speedup} × FP32"
        times += f" and {over_file} × the file as given" if (over_file := speedup_text(point.over_file)) else ""
    final = point.final
    if not final.scored or final.loss is None:
        scores = scores_text(point.value, point.loss, point.loss_low, point.loss_high, now.metric)
        return f"{times}; {scores} on the search samples"
    scores = final_score_text(now, point)
    if not now.metric.relative:
        scores = f"{now.metric.name} {value_text(final.value, half_width(final.low, final.high), now.metric)}, {scores}"
    return f"{times}; {scores} on the final samples"
