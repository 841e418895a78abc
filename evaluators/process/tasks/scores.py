"""Engines on the final split."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.diagnose.compare_run import refusals
from evaluators.measure import accuracy
from evaluators.measure.scoring import NonFiniteError
from evaluators.process.results import FinalScores
from evaluators.process.tasks.float_baseline import FloatBaseline
from evaluators.process.tasks.latency_meter import LatencyMeter
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel

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
        data = self._data
        with refusals("measuring the finalists"), ExitStack() as stack:
            sessions = {name: stack.enter_context(closing(self._opened.builder.load(e))) for name, e in engines.items()}
            measured = self._meter.measure_finalists(sessions, rounds, reference_ms)
            reference = self._baseline.reference("final")
            scores, failed = {}, {}
            for done, (label, session) in enumerate(sessions.items(), start=1):
                self._opened.tell_progress(done, len(sessions))
                try:
                    with closing(data.scored_batches("final")) as batches:
                        scores[label] = accuracy.evaluate(
                            session, data.metric, batches, reference, clusters=data.score_orders["final"].clusters
                        )
                except NonFiniteError as error:
                    failed[label] = str(error)
        return FinalScores(measured, scores, reference.value, failed)

    def run_final(self, engine: Path) -> dict[str, NDArray[Any]]:
        results: list[dict[str, NDArray[Any]]] = []
        with refusals(f"running the engine {engine.name}"), closing(self._opened.builder.load(engine)) as session:
            for batch in self._data.final_batches(_CHECK_ROWS):
                results.append({name: _row_wise(array) for name, array in session.run(batch.inputs).items()})
                if sum(array.nbytes for result in results for array in result.values()) >= _CHECK_BYTES:
                    break
        return {name: np.concatenate([result[name] for result in results]) for name in results[0]}


def _row_wise(array: NDArray[Any]) -> NDArray[Any]:
    return np.atleast_1d(array.astype(str) if array.dtype.kind == "O" else array)
