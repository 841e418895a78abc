"""The calls that an evaluator process makes to its keeper while it answers a request, as typed Protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ArrayPlace:
    """The place of an array in a file that both processes map.

    Attributes:
        offset: of its first byte.
        dtype: as numpy writes it: `<f4`; of several labels their names and dtypes as JSON.
        objects: whether it is one of Python texts, which lies there as one of texts of equal length.
    """

    offset: int
    shape: Sequence[int]
    dtype: str
    objects: bool = False


@dataclass(frozen=True)
class SharedBatch:
    """Outputs and labels of one batch in shared memory.

    Attributes:
        file: that both processes map.
        outputs: name of an output → where it lies.
        labels: where the labels lie; None if the data have none.
        count: how many samples there are.
        first: number of the first of them, for messages.
    """

    file: Path
    outputs: Mapping[str, ArrayPlace]
    labels: ArrayPlace | None
    count: int
    first: int


class MetricCalls(Protocol):
    """The metric of the keeper's process. All raise MetricError as `Metric` does."""

    def score(self, batch: SharedBatch) -> NDArray[np.float64]:
        """One score per sample, (count,) float64."""

    def start(self, dropped: Sequence[int]) -> int:
        """Make an accumulator; its number.

        Args:
            dropped: numbers of those that are not needed any more.
        """

    def add(self, number: int, batch: SharedBatch) -> float:
        """Let an accumulator take in a batch; the metric over that batch alone."""

    def compute(self, number: int) -> float:
        """The metric over everything that an accumulator took in."""


class KeeperLine(Protocol):
    """All calls, by kind of work."""

    @property
    def metric(self) -> MetricCalls: ...
