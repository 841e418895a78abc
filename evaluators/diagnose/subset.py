"""The few samples of a sensitivity pass: half at random, half those with the largest error of quantization."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Batch
from evaluators.engine import Arrays
from evaluators.measure.output_noise import sample_noise

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Batches = Callable[[Indices], Iterable[Batch]]
Run = Callable[[Batch], Arrays]


@dataclass(frozen=True)
class Subset:
    """Samples and what each stands for: a mean with these weights is one over the whole pool.

    Attributes:
        indices: (n,) of the data, hard and random ones in turn.
        weights: (n,) float64, which sum to 1.
    """

    indices: Indices
    weights: Floats


def choose(pool: Indices, wanted: int, batches: Batches, exact: Run, rough: Run, enough: Callable[[], bool]) -> Subset:
    """Take `wanted` samples of a pool.

    Args:
        pool: indices in random order.
        batches: the samples at indices, in this order.
        exact, rough: outputs of the float network and of the one in its lowest precisions.
        enough: whether to look at no further batch; what has been seen is the pool then.
    """
    if len(pool) <= wanted:
        return _even(pool)
    noise: list[Floats] = []
    for batch in batches(pool):
        rows = len(next(iter(batch.inputs.values())))
        noise.append(sample_noise(rough(batch), exact(batch), rows)[: batch.count])
        if enough():
            break
    seen = np.concatenate(noise)
    return _half_hard(pool[: len(seen)], seen, wanted) if len(seen) > wanted else _even(pool[:wanted])


def _even(indices: Indices) -> Subset:
    return Subset(indices, np.full(len(indices), 1 / len(indices)))


def _half_hard(pool: Indices, noise: Floats, wanted: int) -> Subset:
    """Hard samples stand for themselves, the random ones for all others of the pool."""
    hard = np.argsort(-noise, kind="stable")[: wanted // 2]
    others = np.setdiff1d(np.arange(len(pool)), hard)[: wanted - len(hard)]
    weights = np.zeros(len(pool))
    weights[hard] = 1 / len(pool)
    weights[others] = (len(pool) - len(hard)) / len(pool) / len(others)
    # Both mixed, so that every batch has some of each.
    places = np.concatenate([np.arange(len(hard)) / len(hard), np.arange(len(others)) / len(others)])
    turns = np.concatenate([hard, others])[np.argsort(places, kind="stable")]
    return Subset(pool[turns], weights[turns])
