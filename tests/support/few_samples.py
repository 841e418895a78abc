"""Random samples for a model, as a sensitivity pass asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from evaluators import data
from search.graph.model import Model
from tests.support.networks import feeds


class Few:
    """Batches of random samples for a model, and which of them a pass asks for."""

    def __init__(self, model: Model, batches: int = 4) -> None:
        parts = [feeds(model, seed) for seed in range(batches)]
        self.arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.pool = np.arange(batches * model.batch)
        self.size = model.batch

    def __call__(self, indices: NDArray[np.int64]) -> Iterator[data.Batch]:
        for start in range(0, len(indices), self.size):
            rows = indices[start : start + self.size]
            padded = np.pad(rows, (0, self.size - len(rows)), mode="edge")
            yield data.Batch({name: array[padded] for name, array in self.arrays.items()}, None, len(rows))
