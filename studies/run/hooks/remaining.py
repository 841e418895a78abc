"""Telling how long a run will still take, after every evaluation."""

from __future__ import annotations

import time
from collections import deque

from studies.judging.search_events import RunTime
from studies.judging.standing import Standing
from studies.run.hooks.closing import Closing
from studies.run.hooks.hook import Hook
from studies.run.noise.tie_band import TieBand
from studies.run.stop import Stop
from studies.run.work import Work
from studies.store.records import StoredEvaluation

_RECENT = 12  # mixes that say how long the next ones take


class Remaining(Hook):
    """Learns how much time goes by from one mix to the next, all that is done between them included."""

    def __init__(self, work: Work, stop: Stop, band: TieBand) -> None:
        self._work = work
        self._stop = stop
        self._band = band
        self._closing = Closing(work)
        self._last_end = time.monotonic()
        self._mixes_s: deque[float] = deque(maxlen=_RECENT)

    def follow(self, record: StoredEvaluation, now: Standing) -> None:
        moment, took_s = time.monotonic(), record.evaluation.total_s or 0.0
        since_s, self._last_end = moment - self._last_end, moment
        if not record.role:  # before the first one sensitivities were measured, which happens once
            self._mixes_s.append(since_s if self._mixes_s else min(since_s, took_s or since_s))
        elif self._work.ledger.target.target.relative and not self._mixes_s:
            self._mixes_s.append(took_s)  # on a processor uniform engines take as long as mixes
        self._tell(now)

    def _tell(self, now: Standing) -> None:
        left_s, pace = self._left_s(now), self._work.pace
        ends = None if left_s is None else time.monotonic() + left_s
        self._work.events.report_time(RunTime(pace.began, pace.limit_s, ends))

    def _left_s(self, now: Standing) -> float | None:
        """Expected seconds until the end of this run; None while no mix was evaluated and there is no limit."""
        pace = self._work.pace
        limit_s = None if pace.limit_s is None else max(0.0, pace.limit_s - pace.passed_s)
        if not self._mixes_s:
            return limit_s
        each_s = sum(self._mixes_s) / len(self._mixes_s) / (1 + len(self._work.crew.others()))
        count = max(0, self._stop.trials - now.measures.finished_count)
        needed_s = count * each_s + self._closing.expected_s(now, self._band.repeats_left)
        return needed_s if limit_s is None else min(needed_s, limit_s)
