"""Estimating how long the next step takes, from steps of its kind, and whether it ends before the time limit."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from evaluators.measure.blocks import BLOCK_MS, rounds_worth
from studies.store.records import PROCESS, REBUILD, RUNNING

if TYPE_CHECKING:
    from search.values import Evaluation
    from studies.judging.standing import Standing

_RECENT = 10  # steps of a kind that say how long the next one takes
_LAST_MIXES = 3  # mixes that say so: builders learn, so earlier ones took longer
_UNTIL_LEARNT = 6  # mixes, until those that come are expected to take as long as the last ones
_LONG = 0.9  # quantile of what those took
_END_S = 0.5  # to end processes and to print
_MOST_RESERVED = 1 / 3  # of the time limit, for the finalists
_CONFIRMED = 2  # finalists that time is kept for: `best` and the next in line, or all INT8
_ROUNDS = 20  # blocks of each finalist that are timed
_WARM_UP_S = 0.2  # of one engine
_REPEATS = 1.5  # a doubtful measurement of finalists is repeated
_SLOWEST_FIRST = 3.0  # first builds of precisions differ by so much: 27, 76 and 25 s for FP32, FP16, INT8 on an H200
_FEW = 1.5  # times as long as the first one or two mixes took, the next may take
_MIXES_FIRST = 4  # mixes that are evaluated before anything is done that only says how sure a number is
_FRESH_START = 1 / 3  # of what the run took to start, a fresh process takes: 6 to 8 of 24 s on an H200
_SURE_SHARE = 0.05  # of the time so far, that repeatability may take under a time limit, and of the limit at its end


class Pace:
    """The time that a run has left, and what it needs it for. What steps take is learnt by their kind.

    Args:
        limit_s: of the run; None for none.
        began: when it began to count, on the clock of `time.monotonic`; None for now.
        splits: samples of the splits `search` and `final`.
        later_builds: share of its first build that a builder takes which has learnt from it, as `BackendKind` has it.

    Attributes:
        start_s: seconds that the run took before it searched.
        first_build_s: seconds that building FP32 took while nothing was learnt of the model; 0 where nobody knows.
        pick_s: seconds that correcting the biases of a pick takes beside evaluating it; None if none is corrected.
        cuts_builds: whether builds that take too long are ended, so that one that may end in time costs nothing.
    """

    def __init__(
        self,
        limit_s: float | None = None,
        began: float | None = None,
        splits: Mapping[str, int] | None = None,
        later_builds: float = 1.0,
    ) -> None:
        self.limit_s = limit_s
        self.began = time.monotonic() if began is None else began
        sizes = splits or {}
        self._final = sizes.get("final", 0) / max(1, sizes.get("search", 0))
        self._later_builds = later_builds
        self._took_s: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self._stretch: deque[float] = deque([1.0], _RECENT)  # wall time of inferences over their processor time
        self._ended_s: deque[float] = deque(maxlen=_RECENT)
        self._sure_s = 0.0
        self.start_s = 0.0
        self.first_build_s = 0.0
        self.pick_s: float | None = None
        self.cuts_builds = False

    @property
    def has_learnt(self) -> bool:
        """Whether this run has evaluated anything."""
        return bool(self._took_s["load"])

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

    # -- learning --------------------------------------------------------------------------------------------------

    def note(self, evaluation: Evaluation, took_s: float, *, uniform: bool = False) -> None:
        """Learn from an evaluation.

        Args:
            took_s: seconds from asking the sampler until all was stored.
            uniform: whether it is a uniform assignment: its build may be the first one of its precision.
        """
        stage_s = evaluation.stage_s
        build_s = stage_s.get("build", 0.0)
        if uniform:
            self._took_s["first build"].append(build_s)
            self._took_s["uniform"].append(took_s - build_s)
            self._took_s["whole build"].append(evaluation.build_s or 0.0)  # also where it was built beforehand
        else:
            self._took_s["mix"].append(took_s)
            self._ended_s.append(self.passed_s)
        self._took_s["load"].append(stage_s.get("load", 0.0))
        if (latency := evaluation.latency) is not None and latency.wall_ms:
            self._stretch.append(latency.wall_ms / latency.raw_ms)
        self._took_s["wait"].append(stage_s.get("wait", 0.0))
        if evaluation.accuracy is not None and evaluation.accuracy.complete:
            self._took_s["scoring"].append(stage_s.get("run", 0.0) + stage_s.get("score", 0.0))

    def note_repeat(self, took_s: float, kind: str) -> None:
        """Learn from an engine that was built or opened again, and timed; `kind` as `RepeatRecord` has it."""
        self._took_s["repeat"].append(took_s)
        self._took_s[f"repeat {kind}"].append(took_s)
        self._sure_s += took_s

    # -- expecting -------------------------------------------------------------------------------------------------

    def evaluation_s(self, now: Standing) -> float:
        """Seconds that the next mix takes; 0 while nothing is finished.

        Once mixes were evaluated it is what the last ones took, here or in an earlier run. Before, it is what uniform
        assignments took, whose builds were the first ones.
        """
        finished = (now.table.status != RUNNING) & (now.table.total_s > 0)
        mixes = now.table.total_s[finished & (now.table.role == "")]
        if self._took_s["mix"] or len(mixes):
            own = [*self._took_s["mix"]]
            return max(_quantile(own[-_LAST_MIXES:]), _quantile(mixes[-_LAST_MIXES:]))
        if self._took_s["uniform"]:
            return self._most("uniform") + self._later_builds * self._most("first build")
        return self._later_builds * _quantile(now.table.total_s[finished])

    def _uniform_s(self, now: Standing) -> float:
        """Seconds that the next uniform assignment takes, whose precision may be the slowest to build."""
        if not self._took_s["uniform"]:
            return self.evaluation_s(now)
        longest = 1.0 if self._later_builds == 1 else _SLOWEST_FIRST
        return self._most("uniform") + longest * self._most("first build")

    def repeat_s(self, now: Standing, kind: str) -> float:
        """Seconds that building or opening an engine again takes, and timing it: nothing is scored.

        Before the first one of its kind that is as long as evaluations take without that, but for opening: builders
        that keep what they have learnt are quicker.
        """
        if self._took_s[f"repeat {kind}"]:
            return self._most(f"repeat {kind}")
        if kind != REBUILD and self._took_s["repeat"]:
            return self._most("repeat")
        return max(0.0, self.evaluation_s(now) - self._most("scoring"))

    def repeats_s(self, now: Standing, left: Mapping[str, int], start_s: float) -> float:
        """Seconds that all repetitions take that are left.

        Args:
            left: how many of each kind.
            start_s: what this run took to start, a share of which repetitions in fresh processes are expected to take
                beside their timing, until the first one has shown it.
        """
        unknown_s = {PROCESS: 0.0 if self._took_s[f"repeat {PROCESS}"] else _FRESH_START * start_s}
        return sum(count * (self.repeat_s(now, kind) + unknown_s.get(kind, 0.0)) for kind, count in left.items())

    def finalists_s(self, now: Standing, count: int) -> float:
        """Seconds that measuring and scoring so many finalists takes, side by side and on the final split."""
        scoring_s = self._most("scoring") if self._took_s["scoring"] else self.evaluation_s(now)
        return self.timing_s(now, count) + count * self._most("load") + (count + 1) * scoring_s * self._final

    def as_given_s(self, now: Standing) -> float:
        """Seconds that measuring the file as it was given takes, whose build is a first one."""
        return max(self.first_build_s, self._most("whole build")) + self.finalists_s(now, 1)

    def timing_s(self, now: Standing, count: int) -> float:
        """Seconds that measuring so many engines takes, in turn with each other and the baseline.

        Waiting for other processes that measure on the device is part of that, as long as for recent evaluations. On a
        busy machine processor time takes longer on the wall: beside eight busy processes on two cores, six times.
        """
        raw_ms = now.table.raw_ms[np.isfinite(now.table.raw_ms)]
        block_ms = max(BLOCK_MS, float(raw_ms.max(initial=0.0)))
        blocks_s = rounds_worth(_ROUNDS, block_ms) * block_ms / 1000
        each_s = _quantile(self._stretch) * (_WARM_UP_S + _REPEATS * blocks_s)
        return (count + 1) * each_s + self._most("wait")

    def _most(self, kind: str) -> float:
        return _quantile(self._took_s[kind])

    # -- deciding --------------------------------------------------------------------------------------------------

    def allows_evaluation(self, now: Standing, *, uniform: bool = False) -> bool:
        """Whether another evaluation would end in time and leave enough to confirm `best`.

        Args:
            uniform: whether a uniform assignment is next.
        """
        if self.limit_s is None:
            return True
        needed_s = (self._uniform_s(now) if uniform else self._next_mix_s(now)) + self.reserve_s(now)
        return self.left_s > 0 and (needed_s == 0 or self.left_s >= needed_s)

    def _next_mix_s(self, now: Standing) -> float:
        """Seconds that must be left for a mix to be begun: the longest it may take.

        Where builds are cut off the shortest, until builders have learnt: a build that does not end costs nothing.
        """
        count, usual_s = _count_mixes(now), self.evaluation_s(now)
        if self.cuts_builds and 0 < count < _UNTIL_LEARNT:
            return self._later_builds * usual_s
        return _FEW * usual_s if 0 < count < 3 else usual_s

    def evaluations_left(self, now: Standing) -> float:
        """How many more evaluations of this process end in time, as often as a mix ended lately.

        Infinite without a limit, and while nothing is known. With processes that only build, evaluations end more
        often than one takes.
        """
        if self.limit_s is None or not self.has_learnt:
            return math.inf
        between_s = np.diff(list(self._ended_s))
        each_s = float(between_s.mean()) if between_s.sum() else self.evaluation_s(now)
        return max(self.left_s - self.reserve_s(now), 0.0) / max(each_s, 1e-3)

    def build_s(self, now: Standing) -> float:
        """Seconds that builds under way may take, so that they can be scored before the finalists need the time."""
        return max(0.0, self.left_s - self.reserve_s(now) - self._most("scoring"))

    def reserve_s(self, now: Standing) -> float:
        """Seconds to keep for confirming `best`, while there is something to confirm.

        Once several mixes were evaluated, a little is kept for what says how sure that is: more finalists, biases of
        the picks, repeatability. What evaluations do not take goes to that too.
        """
        count = min(_CONFIRMED, now.measures.finished_count)
        if self.limit_s is None or not count or now.only_fp32:  # another evaluation says more than a confirmed FP32
            return 0.0
        sure_s = _SURE_SHARE * self.limit_s if _count_mixes(now) >= _MIXES_FIRST else 0.0
        return min(self.finalists_s(now, count) + sure_s, _MOST_RESERVED * self.limit_s)

    def allows_repeat(self, now: Standing, kind: Callable[[Standing], str]) -> bool:
        """Whether an engine may be timed again between evaluations, to see how far latencies differ by chance.

        Never before mixes are under way; under a time limit that takes a small share of the time.

        Args:
            kind: gives that of the next one, which is asked for under a time limit.
        """
        if _count_mixes(now) < _MIXES_FIRST:
            return False
        return self.limit_s is None or (
            self._sure_s <= _SURE_SHARE * self.passed_s
            and self.left_s >= self.repeat_s(now, kind(now)) + self.evaluation_s(now) + self.reserve_s(now)
        )

    def enough_s(self, now: Standing, count: int) -> float:
        """A time limit in whole minutes, in seconds, within which so many more evaluations end, and the finalists."""
        needed_s = (self.start_s + count * self.evaluation_s(now)) / (1 - _MOST_RESERVED)
        return 60.0 * math.ceil((needed_s + _END_S) / 60)

    def finalists_in_time(self, now: Standing, lacking: Sequence[bool]) -> int:
        """How many of the finalists can be confirmed in the time that is left, the first ones first.

        Args:
            lacking: for each whether its engine was not kept, and has to be built again.
        """
        if self.limit_s is None:
            return len(lacking)
        counts = range(1, len(lacking) + 1)
        needed_s = {n: self.finalists_s(now, n) + sum(lacking[:n]) * self.evaluation_s(now) for n in counts}
        return max((n for n in counts if needed_s[n] <= self.left_s), default=0)


def _count_mixes(now: Standing) -> int:
    """Finished evaluations that are no uniform assignments."""
    return int(((now.table.status != RUNNING) & (now.table.role == "")).sum())


def _quantile(seconds: object) -> float:
    values = np.array(seconds, dtype=float)
    return float(np.quantile(values, _LONG)) if values.size else 0.0
