"""The calibration samples in batches, with the progress of all passes over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Batch, Dataset, batches
from search.graph.model import Model

Progress = Callable[[int, int], None]


def runs_of(model: Model, indices: NDArray[np.int64]) -> int:
    """Runs of the model in one pass over the samples."""
    return math.ceil(len(indices) / model.batch)


@dataclass
class Steps:
    """Counts runs for the caller's progress display."""

    progress: Progress | None
    total: int
    done: int = 0

    def step(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)


@dataclass(frozen=True)
class SampleRuns:
    """What every pass needs."""

    model: Model
    dataset: Dataset
    indices: NDArray[np.int64]
    threads: int
    steps: Steps

    def batches(self) -> Generator[Batch, None, None]:
        for batch in batches(self.dataset, self.indices, self.model.batch):
            yield batch
            self.steps.step()

    def real(self, array: NDArray[Any], batch: Batch) -> NDArray[Any]:
        """The array without its padded rows; rows of a tensor that mixes batch and another axis are told apart."""
        rows = len(array) if array.ndim else 0
        return array[: rows // self.model.batch * batch.count] if rows and rows % self.model.batch == 0 else array
