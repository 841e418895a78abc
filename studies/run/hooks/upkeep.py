"""Hooks for upkeep: drift, engines that are not needed, trials of lost workers, and the record of time."""

from __future__ import annotations

import time

from search.values import REFERENCE
from studies.crew.crew import Crew
from studies.judging.standing import Standing
from studies.run.engines import prune
from studies.run.hooks.hook import Hook
from studies.run.noise.tie_band import measure_drift
from studies.run.work import Work
from studies.store.records import StoredEvaluation
from studies.trials.ledger import Ledger
from studies.trials.open_trials import OpenTrials

DRIFT_EVERY = 20
_PRUNE_EVERY = 10
_MOST_DRIFT = 0.1


class DriftCheck(Hook):
    """Times the FP32 baseline again now and then, and says where the device has become slower or faster."""

    optional = "timing FP32 again, to see whether the device has become slower"

    def __init__(self, work: Work) -> None:
        self._work = work
        self._evaluated = 0

    def follow(self, record: StoredEvaluation, now: Standing) -> None:
        self._evaluated += 1
        row = now.measures.row_of(REFERENCE.role) if self._evaluated % DRIFT_EVERY == 0 else None
        if row is None:
            return
        drift, relative = measure_drift(self._work, now, row), self._work.ledger.target.target.relative
        if abs(drift) > _MOST_DRIFT:
            others = (
                "what slows the baseline and the mixes alike is corrected for, other work on this processor is not: "
            )
            how = f"{others if relative else ''}latencies measured during that time may be wrong"
            usual = "its usual time" if relative else "the start"
            self._work.events.note(f"the FP32 baseline runs {drift:+.0%} against {usual}; {how}")


class Pruning(Hook):
    """Lets go of engines that are on no front any more now and then; one worker does it for all.

    Args:
        keep: as `--keep-engines`.
    """

    def __init__(self, ledger: Ledger, crew: Crew, *, keep: str) -> None:
        self._ledger = ledger
        self._crew = crew
        self._keep = keep
        self._evaluated = 0

    def follow(self, record: StoredEvaluation, now: Standing) -> None:
        self._evaluated += 1
        if self._evaluated % _PRUNE_EVERY:
            return
        with self._crew.try_hold("prune") as mine:
            if mine:
                prune(self._ledger.store, self._ledger.artifacts, now, keep=self._keep)


class LostTrials(Hook):
    """Sees to the trials of lost workers twice in a lease."""

    def __init__(self, crew: Crew, trials: OpenTrials) -> None:
        self._crew = crew
        self._trials = trials
        self._next = 0.0

    def prepare(self, now: Standing) -> None:
        if not self._crew.alone and self._crew.steady and time.monotonic() >= self._next:
            self._trials.settle()
            self._next = time.monotonic() + self._crew.lease_s / 2


class TimeKeeping(Hook):
    """Stores where the time of this worker goes."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def notice(self, now: Standing) -> Standing:
        self._crew.store_time()
        return now
