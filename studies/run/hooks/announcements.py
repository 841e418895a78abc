"""Hooks that announce something when it becomes known, and how long a run will still take."""

from __future__ import annotations

import time
from collections import deque

from search.values import BASELINE, REFERENCE
from studies.events import Events
from studies.judging.findings.loss_resolution import coarse_text, find_resolutions, is_measured, resolution_text
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.sentences.cautions import unlike_float_text
from studies.judging.sentences.gains import slower_texts
from studies.judging.standing import Standing
from studies.run.hooks.closing import Closing
from studies.run.hooks.hook import Hook
from studies.run.noise.tie_band import TieBand
from studies.run.stop import Stop, warn_of_budget
from studies.run.work import Work
from studies.store.records import RUNNING, StoredEvaluation
from studies.store.store import Store
from studies.trials.forecasts import poor_text, quality_text
from studies.trials.ledger import Ledger
from studies.trials.proposals import Proposals

_TOLD = "resolution_told"  # among the details of a target


def tell_resolution(store: Store, now: Standing, events: Events) -> bool:
    """Warn where the samples cannot tell losses as small as the limits; the detail is how small a loss they tell.

    What was told of a target once is not repeated, nor is a warning once it is known how much samples vary.

    Returns:
        Whether that is known.
    """
    resolutions = find_resolutions(now)
    if resolutions:
        detail, warning = resolution_text(resolutions, now), coarse_text(resolutions, now)
        known = store.targets.details(now.target.id).get(_TOLD, ["", ""])
        told, warned = [detail, warning or known[1]], known[1]
        if told != known and store.targets.add_details(now.target.id, **{_TOLD: told}):
            events.detail(detail)
            if warning and not warned:
                events.note(f"WARNING: {warning}")
    return bool(resolutions) and is_measured(now)


class ResolutionNote(Hook):
    """Tells how small a loss the samples can tell, where that was not known when the run began."""

    optional = "finding how small a loss the samples can tell"

    def __init__(self, ledger: Ledger, events: SearchEvents) -> None:
        self._ledger = ledger
        self._events = events
        self._told = False

    def notice(self, now: Standing) -> Standing:
        self._told = self._told or tell_resolution(self._ledger.store, now, self._events)
        return now


class ShareNote(Hook):
    """Says once what loss a percentage of FP32's value allows, when that is known."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._told = False

    def notice(self, now: Standing) -> Standing:
        text = "" if self._told or now.limits.share_problem() else now.limits.share_text(now.metric)
        self._told = self._told or bool(text)
        if text and self._work.crew.rank() == 0:  # one worker says it for all
            self._work.events.note(text)
        return now


class BudgetWarning(Hook):
    """Warns of a latency budget that is out of reach, once the uniform assignments are measured."""

    optional = "looking whether the latency budget can be reached"

    def __init__(self, work: Work, proposals: Proposals) -> None:
        self._work = work
        self._proposals = proposals
        self._looked = False

    def notice(self, now: Standing) -> Standing:
        running = any(now.table.status[row] == RUNNING for row in now.measures.baselines)
        if self._looked or running or now.measures.finished_count < len(self._work.problem.space.baselines):
            return now
        self._looked = True
        if self._work.crew.rank() == 0:  # one worker says it for all
            warn_of_budget(self._work, self._proposals, now)
        return now


class SlowerNote(Hook):
    """Says why a lower precision is slower as a whole, as soon as the last uniform assignment is measured.

    It does not wait for the study's own tie band: on a processor that takes more evaluations than short searches have.
    """

    optional = "finding why a lower precision is slower"

    def __init__(self, work: Work) -> None:
        self._work = work

    def follow(self, record: StoredEvaluation, now: Standing) -> None:
        rows = now.measures.baselines
        wanted = len(self._work.problem.space.baselines)
        running = any(now.table.status[row] == RUNNING for row in rows)
        if not (record.role or "").startswith(BASELINE) or running or len(rows) < wanted:
            return
        for text in slower_texts(self._work.ledger.store, now):
            self._work.events.note(text)


class UnlikeFloatNote(Hook):
    """Warns where all FP32 is another function than the float model, before more is measured against it."""

    optional = "comparing all FP32 with the float model"

    def __init__(self, events: SearchEvents) -> None:
        self._events = events

    def follow(self, record: StoredEvaluation, now: Standing) -> None:
        if record.role == REFERENCE.role and (text := unlike_float_text(now)):
            self._events.note(f"WARNING: {text}")


class ForecastNotes(Hook):
    """Says when the sampler's forecasts turn poor, when they are good again, and how good they were in the end."""

    optional = "judging the forecasts"

    def __init__(self, proposals: Proposals, events: SearchEvents) -> None:
        self._proposals = proposals
        self._events = events
        self._poor = False

    def follow(self, record: StoredEvaluation, now: Standing) -> None:
        if self._proposals.poor == self._poor:
            return
        self._poor = self._proposals.poor
        accuracy = self._proposals.quality()
        if accuracy is not None and accuracy.latency is not None:
            good = f"forecasts are good again: {quality_text(accuracy.latency)}"
            self._events.detail(poor_text(accuracy) if self._poor else good)

    def conclude(self) -> None:
        accuracy = self._proposals.quality()
        for name, each in (("latency", accuracy.latency), ("loss", accuracy.loss)) if accuracy is not None else ():
            if each is not None:
                self._events.detail(f"forecasts of the {name}: {quality_text(each)}")


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
        left_s, pace = self._left_s(now), self._work.pace
        ends = None if left_s is None else time.monotonic() + left_s
        may_end = self._work.problem.config.patience is not None
        self._work.events.report_time(RunTime(pace.began, pace.limit_s, ends, may_end))

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
