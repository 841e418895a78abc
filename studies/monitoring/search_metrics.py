"""The metrics of a search for Prometheus, counted from its events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from search.values import Stage
from studies.judging.points import Point
from studies.judging.rules.picks import NAMES
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.standing import Standing, pick_points
from studies.judging.status.study_status import StudyStatus
from studies.store.records import FAILED, FinishedEvaluation, StoredEvaluation

_BUCKETS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_OK = "ok"


class SearchMetrics:
    """Events of a search that are counted before they are handed on.

    Counters are of this run; what was evaluated in earlier ones is in `bitfront_search_finished_evaluations`.

    Args:
        events: told the same.
        client: the module `prometheus_client`.
        registry: of it, for these metrics.
    """

    def __init__(self, events: SearchEvents, client: Any, registry: Any) -> None:
        self._events = events

        def gauge(name: str, text: str, *labels: str) -> Any:
            return client.Gauge(f"bitfront_search_{name}", text, labels, registry=registry)

        self._evaluations = client.Counter(
            "bitfront_search_evaluations_total",
            "Evaluations that ended in this run; an empty stage and kind where they went well.",
            ["outcome", "stage", "kind"],
            registry=registry,
        )
        self._evaluations.labels(_OK, "", "")
        self._duration = client.Histogram(
            "bitfront_search_evaluation_duration_seconds",
            "Of evaluations of this process.",
            registry=registry,
            buckets=_BUCKETS_S,
        )
        self._finished = gauge("finished_evaluations", "Evaluations that are finished.", "target")
        self._wanted = gauge("wanted_evaluations", "Evaluations in total that are wanted.", "target")
        self._front = gauge("front_points", "Points on the front within the limits.", "target")
        self._latency = gauge("pick_latency_seconds", "Latency of a pick.", "target", "pick")
        self._loss = gauge("pick_loss", "Loss of a pick in the unit of the metric.", "target", "pick")
        self._workers = gauge("live_workers", "Workers that were heard of within a lease.", "target")
        self._stage = gauge("stage", "1 for the stage of the evaluation under way.", "stage")
        self._temperature = gauge("temperature_celsius", "Of the device after the last measurement.", "target")

    # -- events ----------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self._events.note(text)

    def detail(self, text: str) -> None:
        self._events.detail(text)

    def step(self, text: str, done: int, total: int) -> None:
        self._events.step(text, done, total)

    def announce(self, text: str) -> None:
        self._events.announce(text)

    def stage(self, trial: int, stage: str) -> None:
        for each in Stage:
            self._stage.labels(each.value).set(each.value == stage)
        self._events.stage(trial, stage)

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:
        failure = record.evaluation.failure
        self._count(None if failure is None else (failure.stage.value, failure.kind.value))
        if record.evaluation.total_s is not None:
            self._duration.observe(record.evaluation.total_s)
        described = standing.target.target
        target = f"{described.backend} {described.device}"
        latency = record.evaluation.latency
        after = {} if latency is None else latency.conditions.get("after") or {}
        if "temperature_c" in after:
            self._temperature.labels(target).set(after["temperature_c"])
        self._tell_standing(
            target,
            standing.measures.finished_count,
            total,
            int(standing.judgement.front.sum()),
            pick_points(standing),
        )
        self._events.evaluation(record, standing, total)

    def report_time(self, run: RunTime) -> None:
        self._events.report_time(run)

    def overview(self, status: StudyStatus, new: Sequence[FinishedEvaluation]) -> None:
        for row in new:
            self._count((row.stage or "", row.kind or "") if row.status == FAILED else None)
        for target in status.targets:
            described = target.target.target
            name = f"{described.backend} {described.device}"
            self._tell_standing(name, target.tally.finished, target.wanted, target.front, target.picks)
            self._workers.labels(name).set(len(target.alive))
        self._events.overview(status, new)

    def wants_end(self) -> bool:
        return self._events.wants_end()

    # -- metrics ---------------------------------------------------------------------------------------------------

    def _count(self, failure: tuple[str, str] | None) -> None:
        labels: Iterable[str] = (_OK, "", "") if failure is None else ("failed", *failure)
        self._evaluations.labels(*labels).inc()

    def _tell_standing(self, target: str, finished: int, wanted: int, front: int, picks: Mapping[str, Point]) -> None:
        self._finished.labels(target).set(finished)
        self._wanted.labels(target).set(wanted)
        self._front.labels(target).set(front)
        for name in NAMES:
            if name in picks:
                point = picks[name]
                self._latency.labels(target, name).set(_or_nan(point.latency_ms) / 1000)
                self._loss.labels(target, name).set(_or_nan(point.loss))
            else:
                # What was picked before may be none under what is known now.
                for metric in (self._latency, self._loss):
                    with suppress(KeyError):
                        metric.remove(target, name)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
