"""The keeper's end: scoring shared outputs with the function that this process was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.contract import Gathering, Metric, MetricFacts
from evaluators.process.handed_metric.metric_calls import MetricCalls, SharedBatch
from evaluators.process.handed_metric.shared_arrays import ArrayReader


class Scorer:
    """Implements `KeeperLine` for one evaluator process.

    Args:
        metric: what the user handed in, see `handed_metric.find_metric`.

    Attributes:
        facts: what the evaluator process is told of it.
    """

    def __init__(self, metric: Metric) -> None:
        self.facts = MetricFacts(**metric.meaning(), needs_labels=metric.needs_labels)
        self._calls = _MetricAnswers(metric)

    @property
    def metric(self) -> MetricCalls:
        return self._calls


class _MetricAnswers:
    """Implements `MetricCalls`."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._reader = ArrayReader()
        self._gatherings: dict[int, Gathering] = {}
        self._made = 0

    def score(self, batch: SharedBatch) -> NDArray[np.float64]:
        outputs, labels = self._arrays(batch)
        return self._metric.scores(outputs, labels, count=batch.count, first=batch.first)

    def start(self, dropped: Sequence[int]) -> int:
        for number in dropped:
            self._gatherings.pop(number, None)
        self._made += 1
        self._gatherings[self._made] = self._metric.accumulator()
        return self._made

    def add(self, number: int, batch: SharedBatch) -> float:
        outputs, labels = self._arrays(batch)
        return self._gatherings[number].add(outputs, labels, count=batch.count, first=batch.first)

    def compute(self, number: int) -> float:
        return self._gatherings[number].compute()

    def _arrays(self, batch: SharedBatch) -> tuple[dict[str, NDArray[Any]], NDArray[Any] | None]:
        outputs = {name: self._reader.read(batch.file, place) for name, place in batch.outputs.items()}
        labels = None if batch.labels is None else self._reader.read(batch.file, batch.labels)
        return outputs, labels
