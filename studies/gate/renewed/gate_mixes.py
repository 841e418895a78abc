"""Judging the mixes of a renewed study against the old ones, on the final split of the fresh data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice, permutations
from pathlib import Path

import numpy as np

from evaluators.process.results import FinalScores
from search.values import Accuracy
from studies.events import Events
from studies.gate.check import GateCheck, GateLimits, GateVerdict, divide_level
from studies.gate.latency import ProcessTimes, judge_latency
from studies.gate.loss import PairedScores, fail_loss, judge_loss
from studies.options.limits import MetricScale
from studies.run.session.setup import Checked

ROUNDS = 40  # in which the engines of one process take turns
_LABELS = ("candidate", "baseline", "copy")


@dataclass(frozen=True)
class MixPair:
    """The engines of one mix before and after it was renewed.

    Attributes:
        trial: of the study before; `again` of the renewed one, None if it has none.
        before, now: their engines; `now` is None if the mix could not be evaluated again.
        reason: why it could not be; empty if it was.
        best: whether these are the picks `best` of the two studies.
    """

    trial: int
    again: int | None
    before: Path
    now: Path | None
    reason: str = ""
    best: bool = False


@dataclass(frozen=True)
class RenewedMix:
    """What the gate says of one mix.

    Attributes:
        before, now: on the final split of the fresh data; None if an engine cannot be scored there.
        check: whether it loses no more than it did, within what is allowed.
    """

    pair: MixPair
    before: Accuracy | None
    now: Accuracy | None
    check: GateCheck


@dataclass(frozen=True)
class GatedMixes:
    """All mixes, and the latency of the pick `best` where that was asked for."""

    mixes: tuple[RenewedMix, ...]
    latency: GateCheck | None


def gate_mixes(pairs: Sequence[MixPair], good: Checked, limits: GateLimits, limit: float, events: Events) -> GatedMixes:
    """Score the engines of each pair on the final split, and hold the renewed one to what is allowed.

    One level counts for all checks together.

    Args:
        good: the inputs of the renewed study, its ranges adopted.
        limits: `max_slowdown`, and in how many processes latencies are measured.
        limit: the most drop that is allowed, in the unit of the metric.

    Raises:
        EvaluatorError: an engine cannot be loaded, or the evaluator process dies.
    """
    level = divide_level(len(pairs) + (limits.max_slowdown is not None))
    engines = {str(path): path for pair in pairs for path in (pair.before, pair.now) if path is not None}
    line = good.keeper.ask("scoring old and renewed engines", partial(events.step, "scoring old and renewed engines"))
    scores = line.scores.score_engines(engines)
    judge = _LossJudge(good, scores, limit, level)
    mixes = tuple(judge.judge(pair) for pair in pairs)
    best = next((pair for pair in pairs if pair.best), None)
    if limits.max_slowdown is None or best is None or best.now is None:
        return GatedMixes(mixes, None)
    times = _time(good, best.before, best.now, limits.processes, events)
    return GatedMixes(mixes, judge_latency(times, limits.max_slowdown, level))


class _LossJudge:
    """Losses of pairs whose engines have been scored."""

    def __init__(self, good: Checked, scores: FinalScores, limit: float, level: float) -> None:
        self._metric = MetricScale.of(good.metric)
        self._gathers = good.metric["kind"] == "accumulating"
        self._clusters = good.keeper.description.score_clusters.get("final")
        self._scores = scores
        self._limit = limit
        self._level = level

    def judge(self, pair: MixPair) -> RenewedMix:
        before, now = (self._scores.accuracy.get(str(path)) for path in (pair.before, pair.now))
        if before is not None and now is not None:
            return RenewedMix(pair, before, now, self._compare(before, now))
        if now is not None:
            reason = f"the old engine cannot be scored on the fresh data: {self._scores.failed[str(pair.before)]}"
            return RenewedMix(pair, None, now, replace(self._fail(reason), verdict=GateVerdict.HOLDS))
        reason = pair.reason or f"the renewed engine cannot be scored: {self._scores.failed[str(pair.now)]}"
        return RenewedMix(pair, before, None, self._fail(reason))

    def _fail(self, reason: str) -> GateCheck:
        return fail_loss(self._limit, self._level, reason)

    def _compare(self, before: Accuracy, now: Accuracy) -> GateCheck:
        sign = 1.0 if self._metric.higher_is_better else -1.0
        paired = PairedScores(
            candidate=now.scores,
            baseline=before.scores,
            ratio=self._metric.ratio,
            higher_is_better=self._metric.higher_is_better,
            clusters=self._clusters,
            counts=np.asarray(self._scores.counts, np.int64) if self._gathers else None,
            whole_drop=sign * (before.value - now.value) if self._gathers else None,
        )
        return judge_loss(paired, self._limit, self._level, self._metric.text)


def _time(good: Checked, before: Path, now: Path, processes: int, events: Events) -> list[ProcessTimes]:
    """The renewed engine and two copies of the old one, in turn, in fresh processes."""
    engines: Mapping[str, Path] = dict(zip(_LABELS, (now, before, before), strict=True))
    times = []
    for number, order in enumerate(islice(cycle(permutations(_LABELS)), processes), start=1):
        events.step("timing the engines in turn, in fresh processes", number, processes)
        good.keeper.close()
        line = good.keeper.ask("timing old and renewed engines")
        timings = line.timings.time_together({label: engines[label] for label in order}, ROUNDS)
        times.append(ProcessTimes(*(timings[label].raw_ms for label in _LABELS)))
    return times
