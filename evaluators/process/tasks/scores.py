"""Scoring engines on the final split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.diagnose.compare_run import refusals
from evaluators.engine import Session
from evaluators.measure import accuracy
from evaluators.measure.flips import ClassRecorder, count_flips
from evaluators.measure.scoring import NonFiniteError
from evaluators.process.results import FinalScores
from evaluators.process.tasks.float_baseline import FloatBaseline
from evaluators.process.tasks.latency_meter import LatencyMeter
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from search.values import Accuracy, Latency

OPENINGS = 3  # of each finalist on a GPU: other addresses of its buffers moved the latency of one plan by 3 to 5 %
_CHECK_ROWS = 64
_CHECK_BYTES = 64 * 2**20


class Scores:
    """Implements `ScoreRequests`."""

    def __init__(self, opened: OpenModel, data: OpenData, baseline: FloatBaseline, meter: LatencyMeter) -> None:
        self._opened = opened
        self._data = data
        self._baseline = baseline
        self._meter = meter

    def score_finalists(
        self, engines: Mapping[str, Path], rounds: int, reference_ms: float | None = None
    ) -> FinalScores:
        openings = 1 if self._opened.target.relative else OPENINGS
        with refusals("measuring the finalists"):
            earlier = [self._measure(engines, -(-rounds // openings), reference_ms) for _ in range(openings - 1)]
            with self._open_engines(engines) as sessions:
                last = self._meter.measure_finalists(sessions, -(-rounds // openings), reference_ms)
                measured = {label: _middle([*(each[label] for each in earlier), last[label]]) for label in engines}
                return self._score_sessions(sessions, measured)

    def _measure(self, engines: Mapping[str, Path], rounds: int, reference_ms: float | None) -> dict[str, Latency]:
        with self._open_engines(engines) as sessions:
            return self._meter.measure_finalists(sessions, rounds, reference_ms)

    def score_engines(self, engines: Mapping[str, Path]) -> FinalScores:
        with refusals("scoring engines"), self._open_engines(engines) as sessions:
            return self._score_sessions(sessions, {})

    @contextmanager
    def _open_engines(self, engines: Mapping[str, Path]) -> Iterator[dict[str, Session]]:
        load = self._opened.builder.load
        with ExitStack() as stack:
            yield {name: stack.enter_context(closing(load(engine))) for name, engine in engines.items()}

    def _score_sessions(self, sessions: Mapping[str, Session], measured: Mapping[str, Latency]) -> FinalScores:
        reference = self._baseline.reference("final")
        scores: dict[str, Accuracy] = {}
        failed: dict[str, str] = {}
        for done, (label, session) in enumerate(sessions.items(), start=1):
            self._opened.tell_progress(done, len(sessions))
            try:
                scores[label] = self._score_final(session, reference)
            except NonFiniteError as error:
                failed[label] = str(error)
        return FinalScores(measured, scores, reference.value, failed, tuple(reference.counts))

    def _score_final(self, session: Session, reference: accuracy.ReferenceScores) -> Accuracy:
        """Score an engine on the final split; where classes are scored, count the samples whose class it changes."""
        order, recorder = self._data.score_orders["final"], ClassRecorder(session)
        with closing(self._data.scored_batches("final")) as batches:
            scored = accuracy.evaluate(
                recorder, self._data.metric, batches, reference, clusters=order.clusters, is_final=True
            )
        exact, mine = self._baseline.classes(reference), recorder.classes(reference.counts)
        if exact is None or mine is None or not self._data.scores_classes:
            return scored
        labels = self._data.final_data.labels(order.indices) if self._data.final_data.has_labels else None
        return replace(scored, flips=count_flips(exact, mine, labels, order.indices))

    def final_rows(self) -> NDArray[np.int64]:
        return np.sort(self._data.final_data.source_rows(self._data.final_indices))

    def run_final(self, engine: Path) -> dict[str, NDArray[Any]]:
        results: list[dict[str, NDArray[Any]]] = []
        with refusals(f"running the engine {engine.name}"), closing(self._opened.builder.load(engine)) as session:
            for batch in self._data.final_batches(_CHECK_ROWS):
                results.append({name: _row_wise(array) for name, array in session.run(batch.inputs).items()})
                if sum(array.nbytes for result in results for array in result.values()) >= _CHECK_BYTES:
                    break
        return {name: _join([result[name] for result in results]) for name in results[0]}


def _middle(latencies: Sequence[Latency]) -> Latency:
    """The one in the middle of an odd number; its conditions name all, in milliseconds, where there are several."""
    middle = sorted(latencies, key=lambda latency: latency.value_ms)[len(latencies) // 2]
    if len(latencies) == 1:
        return middle
    return replace(middle, conditions={**middle.conditions, "openings_ms": [each.raw_ms for each in latencies]})


def _join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All rows; where they have several shapes, as what a detector finds, their values, one after the other."""
    several = len({part.shape[1:] for part in parts}) > 1
    return np.concatenate([part.reshape(-1) for part in parts] if several else parts)


def _row_wise(array: NDArray[Any]) -> NDArray[Any]:
    return np.atleast_1d(array.astype(str) if array.dtype.kind == "O" else array)
