"""The steps at the end of a search, which are told before they begin, with the time that they take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from studies.judging.standing import Standing
from studies.options.quantities import format_duration_s
from studies.run.finalists import finalist_rows
from studies.run.noise.remeasurement import TRIES, doubtful_rows, rows_that_matter
from studies.run.work import Work
from studies.store.records import CLOSING

_WORTH_TELLING_S = 5.0  # what is over sooner needs no announcement
_USUAL_TRIES = 2  # of a latency that is doubtful: the second is mostly clean


@dataclass(frozen=True)
class Step:
    """Something that is done at the end: what, and how many seconds it takes."""

    text: str
    seconds: float


class Closing:
    """Tells what remains to be done, to whoever follows the run, and to `status` through the database."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def announce(self, now: Standing, repeats: int) -> tuple[Step, Step, Step]:
        """Say what remains and how long all of it takes.

        Args:
            repeats: measurements that the tie band still needs.

        Returns:
            The tie band, doubtful latencies, finalists; a step with nothing to do takes no time.
        """
        steps = self.of_band(now, repeats), self.of_doubts(now), self.of_finalists(now)
        texts = [step.text for step in steps if step.seconds > 0]
        seconds = sum(step.seconds for step in steps)
        if seconds >= _WORTH_TELLING_S:
            about = format_duration_s(round(seconds))
            self._work.events.note(f"what remains takes about {about}: {', then '.join(texts)}")
        return steps

    def of_band(self, now: Standing, repeats: int) -> Step:
        """Measuring how far latencies may differ and count as equal."""
        return Step("measuring repeatability", repeats * self._work.pace.repeat_s(now))

    def of_doubts(self, now: Standing) -> Step:
        """Measuring doubtful latencies again."""
        limited = self._work.pace.limit_s is not None
        count = len(doubtful_rows(self._work.ledger.store, now, rows_that_matter(now)))
        tries = 0 if not TRIES or not count or (limited and now.only_fp32) else 1 if limited else _USUAL_TRIES
        many = "one doubtful latency" if count == 1 else f"{count} doubtful latencies"
        return Step(f"measuring {many} again", tries * self._work.pace.timing_s(now, count))

    def of_finalists(self, now: Standing) -> Step:
        """Correcting the biases of the picks, and measuring and scoring the finalists."""
        pace, rows = self._work.pace, [row for row in finalist_rows(now) if not now.final.tried[row]]
        picks = 0.0 if pace.pick_s is None else pace.pick_s + pace.evaluation_s(now)
        many = "one finalist" if len(rows) == 1 else f"{len(rows)} finalists"
        seconds = pace.finalists_s(now, len(rows)) + len(now.picks.rows()) * picks if rows else 0.0
        return Step(f"measuring and scoring {many} on the final samples", seconds)

    def begin(self, *steps: Step) -> None:
        """Let `status` know that the first of these steps begins, and how long all of them take."""
        store = self._work.ledger.store
        until = store.statistics.now() + timedelta(seconds=sum(step.seconds for step in steps))
        store.targets.add_details(
            self._work.ledger.target.id, **{CLOSING: {"step": steps[0].text, "until": until.isoformat()}}
        )
