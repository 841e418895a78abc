"""The steps at the end of a search, which are told before they begin, with the time that they take."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from evaluators.stopwatch import current_stopwatch
from studies.judging.search_events import RunTime
from studies.judging.standing import Standing
from studies.options.quantities import format_duration_s
from studies.run.finalists import finalist_rows
from studies.run.noise.remeasurement import TRIES, rows_that_matter
from studies.run.recovery.pick_biases import rows_to_correct
from studies.run.work import Work
from studies.store.records import CLOSING

_WORTH_TELLING_S = 5.0  # what is over sooner needs no announcement
_BROUGHT_FORWARD = (
    0.75  # finalists that confirmed latencies bring forward, of each: 0.25 to 1.4 in four searches on an H200
)
_USUAL_TRIES = 2  # of a latency that is doubtful: the second is mostly clean


@dataclass(frozen=True)
class Step:
    """Something that is done at the end.

    Attributes:
        text: what is done.
        seconds: how long that takes; 0 if nothing is.
        left_out: what of it the time limit leaves no time for; empty if nothing is left out.
    """

    text: str
    seconds: float
    left_out: str = ""


class Closing:
    """Tells what remains to be done, to whoever follows the run, and to `status` through the database."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def announce(self, now: Standing, repeats: Mapping[str, int]) -> tuple[Step, Step, Step]:
        """Say what remains and how long all of it takes, and what the time limit leaves no time for.

        Args:
            repeats: measurements that the tie band still needs, by kind.

        Returns:
            The tie band, doubtful latencies, finalists; a step with nothing to do takes no time.
        """
        steps = self.plan(now, repeats, self._work.pace.left_s)
        texts = [step.text for step in steps if step.seconds > 0]
        left_out = [step.left_out for step in steps if step.left_out]
        seconds = sum(step.seconds for step in steps)
        cut = f"the time limit leaves no time for {' and '.join(left_out)}" if left_out else ""
        if seconds >= _WORTH_TELLING_S:
            about = format_duration_s(round(seconds))
            self._work.events.note(f"what remains takes about {about}: {', then '.join(texts)}{cut and '; '}{cut}")
        elif cut:
            self._work.events.note(cut)
        return steps

    def expected_s(self, now: Standing, repeats: Mapping[str, int]) -> float:
        """Seconds that all of it takes where no time limit cuts it."""
        return sum(step.seconds for step in self.plan(now, repeats, math.inf))

    def plan(self, now: Standing, repeats: Mapping[str, int], left_s: float) -> tuple[Step, Step, Step]:
        """The closing steps within so many seconds: finalists first, then doubtful latencies, then the tie band."""
        finalists = self.of_finalists(now, left_s)
        doubts = self.of_doubts(now, left_s - finalists.seconds)
        return self.of_band(now, repeats, left_s - finalists.seconds - doubts.seconds), doubts, finalists

    def of_band(self, now: Standing, repeats: Mapping[str, int], left_s: float = math.inf) -> Step:
        """Measuring how far latencies may differ and count as equal."""
        text, count = "measuring repeatability", sum(repeats.values())
        seconds = self._work.pace.repeats_s(now, repeats, _start_s()) if count else 0.0
        if seconds <= max(0.0, left_s):
            return Step(text, seconds)
        fitting = max(0, int(count * left_s / seconds))
        left_out = f"{count - fitting} of the {count} repetitions that measure repeatability"
        return Step(f"{text} with {fitting} of {count} repetitions", seconds * fitting / count, left_out)

    def of_doubts(self, now: Standing, left_s: float = math.inf) -> Step:
        """Measuring doubtful latencies again."""
        limited = self._work.pace.limit_s is not None
        count = int(now.measures.doubtful[rows_that_matter(now)].sum())
        tries = 0 if not TRIES or not count or (limited and now.only_fp32) else 1 if limited else _USUAL_TRIES
        many = "one doubtful latency" if count == 1 else f"{count} doubtful latencies"
        text, seconds = f"measuring {many} again", tries * self._work.pace.timing_s(now, count)
        return Step(text, seconds) if seconds <= max(0.0, left_s) else Step(text, 0.0, text)

    def of_finalists(self, now: Standing, left_s: float = math.inf) -> Step:
        """Correcting the biases of the picks, and measuring and scoring the finalists."""
        pace, wanted = self._work.pace, len([row for row in finalist_rows(now) if not now.final.tried_rows[row]])
        count = next((n for n in range(wanted, 0, -1) if pace.finalists_s(now, n) <= left_s), 0)
        seconds = pace.finalists_s(now, count) if count else 0.0
        more_s = pace.finalists_s(now, round(_BROUGHT_FORWARD * count)) if count > 1 else 0.0
        seconds += more_s if seconds + more_s <= left_s else 0.0
        picks = 0.0 if pace.pick_s is None else len(rows_to_correct(now)) * (pace.pick_s + pace.evaluation_s(now))
        seconds += picks if count and seconds + picks <= left_s else 0.0
        left_out = "" if count == wanted else f"confirming {_finalists_text(wanted - count)}"
        return Step(f"measuring and scoring {_finalists_text(count)} on the final samples", seconds, left_out)

    def begin(self, *steps: Step) -> None:
        """Let `status` know that the first of these steps begins, and how long all of them take.

        Nothing of one that has nothing to do.
        """
        if not steps[0].seconds:
            return
        store = self._work.ledger.store
        seconds, pace = sum(step.seconds for step in steps), self._work.pace
        self._work.events.report_time(RunTime(pace.began, pace.limit_s, time.monotonic() + seconds))
        until = store.statistics.now() + timedelta(seconds=seconds)
        store.targets.add_details(
            self._work.ledger.target.id, **{CLOSING: {"step": steps[0].text, "until": until.isoformat()}}
        )


def _finalists_text(count: int) -> str:
    return "one finalist" if count == 1 else f"{count} finalists"


def _start_s() -> float:
    """What this run took to start: its evaluator process, with the kernels that its builder loads, and the inputs."""
    watch = current_stopwatch()
    return 0.0 if watch is None else watch.seconds().get("start", 0.0)
