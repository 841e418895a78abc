"""Estimating whether a step ends before the time limit, from the time of similar steps."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from evaluators.measure.latency import BLOCK_MS
from studies.store.records import RUNNING

if TYPE_CHECKING:
    from search.values import Evaluation
    from studies.judging.standing import Standing

_RECENT = 20  # evaluations that say how long the next one takes
_LONG = 0.9  # quantile of what those took
_END_S = 0.5  # to end processes and to print
_MOST_RESERVED = 1 / 3  # of the time limit, for the finalists
_FINALISTS, _ROUNDS = 6, 20  # at most, and blocks of each that are timed
_PICKS = 4  # at most, of which each is evaluated once more with biases of its own
_WARM_UP_S = 0.2  # of one engine
_REPEATS = 1.5  # a doubtful measurement of finalists is repeated


class Pace:
    """The time that a run has left, and what it needs it for.

    Args:
        limit_s: of the run; None for none.
        began: when it began to count, on the clock of `time.monotonic`; None for now.
        splits: samples of the splits `search` and `final`.

    Attributes:
        start_s: seconds that the run took before it searched.
        pick_s: seconds that correcting the biases of a pick takes beside evaluating it; None if none is corrected.
    """

    def __init__(
        self, limit_s: float | None = None, began: float | None = None, splits: Mapping[str, int] | None = None
    ) -> None:
        self.limit_s = limit_s
        self.began = time.monotonic() if began is None else began
        sizes = splits or {}
        self._final = sizes.get("final", 0) / max(1, sizes.get("search", 0))
        self._took_s: deque[float] = deque(maxlen=_RECENT)
        self._scoring_s: deque[float] = deque(maxlen=_RECENT)
        self._load_s: deque[float] = deque(maxlen=_RECENT)
        self._wait_s: deque[float] = deque(maxlen=_RECENT)
        self._repeat_s: deque[float] = deque(maxlen=_RECENT)
        self._ended_s: deque[float] = deque(maxlen=_RECENT)
        self.start_s = 0.0
        self.pick_s: float | None = None

    @property
    def has_learnt(self) -> bool:
        """Whether this run has evaluated anything."""
        return bool(self._took_s)

    @property
    def passed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        """Seconds until the time limit, less the time that ending takes; infinite without a limit."""
        return math.inf if self.limit_s is None else self.limit_s - _END_S - self.passed_s

    @property
    def over(self) -> bool:
        """Whether the time limit is reached."""
        return self.limit_s is not None and self.passed_s >= self.limit_s

    def note(self, evaluation: Evaluation, took_s: float) -> None:
        """Learn from an evaluation.

        Args:
            took_s: seconds from asking the sampler until all was stored.
        """
        self._took_s.append(took_s)
        self._ended_s.append(self.passed_s)
        self._load_s.append(evaluation.stage_s.get("load", 0.0))
        self._wait_s.append(evaluation.stage_s.get("wait", 0.0))
        if evaluation.accuracy is not None and evaluation.accuracy.complete:
            self._scoring_s.append(evaluation.stage_s.get("run", 0.0) + evaluation.stage_s.get("score", 0.0))

    def note_repeat(self, took_s: float) -> None:
        """Learn from an engine that was built or opened again, and timed."""
        self._repeat_s.append(took_s)

    def repeat_s(self, now: Standing) -> float:
        """Seconds that building or opening an engine again takes, and timing it: nothing is scored.

        Before the first one that is as long as evaluations take without that; builders that keep what they have learnt
        are quicker.
        """
        if self._repeat_s:
            return _most(self._repeat_s)
        return max(0.0, self.evaluation_s(now) - _most(self._scoring_s))

    def allows_evaluation(self, now: Standing) -> bool:
        """Whether another evaluation would end in time and leave enough for the finalists."""
        if self.limit_s is None:
            return True
        needed_s = self.evaluation_s(now) + self.reserve_s(now)
        return self.left_s > 0 and (needed_s == 0 or self.left_s >= needed_s)

    def evaluations_left(self, now: Standing) -> float:
        """How many more evaluations of this process end in time, as often as one ended lately.

        Infinite without a limit, and until two have ended. With processes that only build, evaluations end more often
        than one takes.
        """
        between_s = np.diff(list(self._ended_s))
        if self.limit_s is None or not between_s.sum():
            return math.inf
        return max(self.left_s - self.reserve_s(now), 0.0) / float(between_s.mean())

    def evaluation_s(self, now: Standing) -> float:
        """Seconds that most evaluations take here; 0 while none is finished."""
        finished = now.table.status != RUNNING
        mixes = now.table.total_s[finished & (now.table.role == "") & (now.table.total_s > 0)]
        stored = mixes if len(mixes) else now.table.total_s[finished & (now.table.total_s > 0)]
        return max(_most(self._took_s), _most(stored[-_RECENT:].tolist()))

    def reserve_s(self, now: Standing) -> float:
        """Seconds to keep for the finalists, while there is something to confirm."""
        limit_s, count = self.limit_s or math.inf, min(_FINALISTS, now.measures.finished_count)
        if not count or now.only_fp32:  # the first evaluation beside FP32 says more than a confirmed FP32
            return 0.0
        picks_s = 0.0 if self.pick_s is None else min(_PICKS, count) * (self.pick_s + self.evaluation_s(now))
        return min(self.finalists_s(now, count) + picks_s, _MOST_RESERVED * limit_s)

    def finalists_s(self, now: Standing, count: int) -> float:
        """Seconds that measuring and scoring so many finalists takes, side by side and on the final split."""
        timing_s = self.timing_s(now, count)
        scoring_s = _most(self._scoring_s) if self._scoring_s else self.evaluation_s(now)
        return timing_s + count * _most(self._load_s) + (count + 1) * scoring_s * self._final

    def timing_s(self, now: Standing, count: int) -> float:
        """Seconds that measuring so many engines takes, in turn with each other and the baseline.

        Waiting for other processes that measure on the device is part of that, as long as for recent evaluations.
        """
        raw_ms = now.table.raw_ms[np.isfinite(now.table.raw_ms)]
        block_s = max(BLOCK_MS, float(raw_ms.max(initial=0.0))) / 1000
        return (count + 1) * (_WARM_UP_S + _REPEATS * _ROUNDS * block_s) + _most(self._wait_s)

    def enough_s(self, now: Standing, count: int) -> float:
        """A time limit in whole minutes, in seconds, within which so many more evaluations end, and the finalists."""
        needed_s = (self.start_s + count * self.evaluation_s(now)) / (1 - _MOST_RESERVED)
        return 60.0 * math.ceil((needed_s + _END_S) / 60)

    def finalists_in_time(self, now: Standing, wanted: int) -> int:
        """How many of the finalists can be confirmed in the time that is left."""
        if self.limit_s is None:
            return wanted
        return max((n for n in range(1, wanted + 1) if self.finalists_s(now, n) <= self.left_s), default=0)


def _most(seconds: deque[float] | list[float]) -> float:
    return float(np.quantile(np.array(seconds), _LONG)) if len(seconds) else 0.0
