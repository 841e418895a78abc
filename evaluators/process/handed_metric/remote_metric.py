"""The evaluator process's stand-in for a metric of the keeper's process."""

from __future__ import annotations

import weakref
from dataclasses import asdict, dataclass
from pathlib import Path

from evaluators.metrics.contract import Gathering, Labels, Metric, MetricFacts, Outputs, Scores
from evaluators.process.handed_metric.metric_calls import KeeperLine, MetricCalls, SharedBatch
from evaluators.process.handed_metric.shared_arrays import ArrayWriter


def make_remote_metric(facts: MetricFacts, line: KeeperLine, folder: Path) -> Metric:
    """A metric whose scores the keeper's process computes.

    Args:
        facts: what the keeper says of it.
        line: to the keeper.
        folder: where outputs are shared, see `ArrayWriter`.
    """
    return _RemoteMetric(**asdict(facts), needs_reference=False, is_own=True, remote=_Remote(line.metric, folder))


class _Remote:
    """Outputs in shared memory, and calls about them."""

    def __init__(self, calls: MetricCalls, folder: Path) -> None:
        self.calls = calls
        self.dropped: list[int] = []
        self._writer = ArrayWriter(folder)

    def share(self, outputs: Outputs, labels: Labels, count: int, first: int) -> SharedBatch:
        places = self._writer.write([*outputs.values(), *([] if labels is None else [labels])])
        where = None if labels is None else places.pop()
        return SharedBatch(self._writer.file, dict(zip(outputs, places, strict=True)), where, count, first)

    def start(self) -> int:
        number = self.calls.start(list(self.dropped))
        self.dropped.clear()
        return number


@dataclass(frozen=True, kw_only=True)
class _RemoteMetric(Metric):
    remote: _Remote

    def scores(
        self, outputs: Outputs, labels: Labels, reference: Outputs | None = None, *, count: int, first: int = 0
    ) -> Scores:
        return self._check_shares(self.remote.calls.score(self.remote.share(outputs, labels, count, first)), first)

    def accumulator(self) -> Gathering:
        return _RemoteGathering(self, self.remote)


class _RemoteGathering(Gathering):
    """An accumulator of the keeper's process, which is dropped there after it is here."""

    def __init__(self, metric: Metric, remote: _Remote) -> None:
        self._number = remote.start()
        self._remote = remote
        weakref.finalize(self, remote.dropped.append, self._number)

    def add(self, outputs: Outputs, labels: Labels, *, count: int, first: int = 0) -> float:
        return self._remote.calls.add(self._number, self._remote.share(outputs, labels, count, first))

    def update(self, outputs: Outputs, labels: Labels, *, count: int, first: int = 0) -> None:
        self.add(outputs, labels, count=count, first=first)

    def merge(self, other: Gathering) -> None:
        raise TypeError("accumulators of the keeper's process are merged there: add batches")

    def compute(self) -> float:
        return self._remote.calls.compute(self._number)
