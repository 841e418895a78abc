"""Scoring the outputs of an engine batch by batch, large outputs in parallel threads, with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evaluators import cores
from evaluators.metrics.array_passes import count_non_finite
from evaluators.metrics.contract import Gathering, Metric
from search.errors import BitfrontError, DataError

Floats = NDArray[np.float64]
Outputs = Mapping[str, NDArray[Any]]

_SMALL_BYTES = 2**18  # outputs of a batch below which handing them to a thread costs more than scoring them
_AHEAD_BYTES = 2**27  # outputs that may wait for being scored, where they are more than one batch


class NonFiniteError(BitfrontError):
    """An engine's outputs hold NaN or infinity. The caller records a failure of kind `non_finite`.

    Attributes:
        counts: how many such values each output has, in the batch where they were first seen.
    """

    def __init__(self, counts: dict[str, int], first: int, rows: int) -> None:
        self.counts = counts
        named = ", ".join(f"{name}: {count}" for name, count in counts.items())
        super().__init__(f"outputs hold NaN or infinite values on samples {first} to {first + rows - 1} ({named})")


class SampleBatch(Protocol):
    """Samples as the model takes them; the last batch may be filled up with rows beyond `count` that do not count."""

    @property
    def inputs(self) -> Mapping[str, NDArray[Any]]:
        """Every model input by name, all with the same first axis."""

    @property
    def labels(self) -> NDArray[Any] | None:
        """Labels, `count` of them or more; None if the data have none."""

    @property
    def count(self) -> int:
        """How many of the rows are real."""


class ScoreTally:
    """Scores so far, in the order in which batches were added; accumulating metrics have one accumulator over all.

    Large outputs are scored in threads of their own, while the caller runs the next batch. What a batch raises is
    raised by `add` or `settle` of a later moment, of the first such batch first. Metrics of the user's own are called
    by the caller's thread alone, at once. Use it as a context manager: leaving it settles it, and then what an earlier
    batch raised goes before the error that it is left by.

    Args:
        metric: scores every batch.

    Attributes:
        counts: samples of every batch that was added.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._whole = metric.accumulator() if metric.kind == "accumulating" else None
        self._scores: list[Floats] = []
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[tuple[Future[_Scored], int]] = deque()
        self.counts: list[int] = []

    def __enter__(self) -> ScoreTally:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or issubclass(kind, Exception):
                self.settle()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    @property
    def samples(self) -> int:
        """Samples of all batches that were added."""
        return sum(self.counts)

    @property
    def scores(self) -> Floats:
        """Per sample, or per batch for accumulating metrics; of the batches that are settled."""
        return np.concatenate([np.empty(0), *self._scores])

    @property
    def value(self) -> float:
        """The metric over the batches that are settled."""
        return float(np.mean(self.scores)) if self._whole is None else self._whole.compute()

    def add(self, batch: SampleBatch, outputs: Outputs, reference: Callable[[], Outputs | None]) -> None:
        """Score one batch, now or beside what the caller does next.

        Args:
            outputs: of the real rows; not to be changed any more.
            reference: gives FP32's outputs on them; called where they are scored.

        Raises:
            NonFiniteError, MetricError, DataError: of this batch or an earlier one.
        """
        job = partial(self._score, batch, outputs, reference, self.samples)
        size = sum(array.nbytes for array in outputs.values())
        self.counts.append(batch.count)
        if self._metric.is_own or size < _SMALL_BYTES:
            self.settle()
            self._take(job())
            return
        self._pending.append((self._threads().submit(job), size))
        while len(self._pending) > 1 and sum(size for _, size in self._pending) > _AHEAD_BYTES:
            self._take_oldest()
        while self._pending and (self._pending[0][0].done() or len(self._pending) > 2 * self._metric.threads):
            self._take_oldest()

    def settle(self) -> None:
        """Wait until every batch that was added is scored; raises what one of them raised."""
        while self._pending:
            self._take_oldest()

    def _take_oldest(self) -> None:
        future, _ = self._pending.popleft()
        try:
            self._take(future.result())
        except BaseException:
            self._pending.clear()  # what comes after the first error is of no interest
            raise

    def _take(self, scored: _Scored) -> None:
        if isinstance(scored, Gathering):
            if self._whole is not None:
                self._whole.merge(scored)
            scored = np.array([scored.compute()])
        self._scores.append(scored)

    def _score(
        self, batch: SampleBatch, outputs: Outputs, reference: Callable[[], Outputs | None], first: int
    ) -> _Scored:
        check_finite(outputs, first, batch.count)
        labels, count = _labels(self._metric, batch), batch.count
        if self._whole is None:
            return self._metric.scores(outputs, labels, reference(), count=count, first=first)
        if self._metric.is_own:
            return np.array([self._whole.add(outputs, labels, count=count, first=first)])
        alone = self._metric.accumulator()
        alone.update(outputs, labels, count=count, first=first)
        return alone

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            spare = cores.spare_cpus()
            threads = max(1, min(self._metric.threads, len(spare)))
            self._pool = ThreadPoolExecutor(threads, "scoring", initializer=cores.bind_thread, initargs=(spare,))
        return self._pool


_Scored = Floats | Gathering


def check_finite(outputs: Outputs, first: int, count: int) -> None:
    """Refuse outputs with NaN or infinity; raises NonFiniteError with their numbers."""
    floats = {name: array for name, array in outputs.items() if array.dtype.kind == "f"}
    bad = {name: bad_values for name, array in floats.items() if (bad_values := count_non_finite(array))}
    if bad:
        raise NonFiniteError(bad, first, count)


def _labels(metric: Metric, batch: SampleBatch) -> NDArray[Any] | None:
    if batch.labels is None and metric.needs_labels:
        raise DataError(
            f"metric {metric.name} needs labels, but the data have none; add labels, choose agreement, cosine or sqnr, "
            "or set needs_labels = False on a metric of your own"
        )
    return None if batch.labels is None else batch.labels[: batch.count]
