"""The order and the batches in which samples of a split are scored, and the scores that belong together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Batch, Dataset, Indices, batches


@dataclass(frozen=True)
class ScoreOrder:
    """The samples of one split as a metric sees them.

    Attributes:
        dataset: that they are in.
        indices: (n,) of the samples, in the order in which they are scored.
        sizes: real samples of each batch; None for batches that are full but for the last.
        clusters: one integer code per score, the same for scores that belong together: (n,) clusters of samples, or
            for an accumulating metric (batches,) blocks of batches that share no cluster with others. None without
            clusters.
    """

    dataset: Dataset
    indices: Indices
    sizes: tuple[int, ...] | None = None
    clusters: NDArray[np.int64] | None = None

    def left_over(self, batch: int) -> int:
        """Real samples of a batch that is not full; 0 if all are full."""
        sizes = self.sizes or (len(self.indices) % batch,)
        return next((size for size in sizes if size < batch), 0)

    def batches(self, batch: int) -> Iterator[Batch]:
        """The samples, in batches of that many rows."""
        return batches(self.dataset, self.indices, batch, self.sizes)


def order_scores(dataset: Dataset, indices: Indices, batch: int, *, accumulating: bool) -> ScoreOrder:
    """How the samples at `indices` are scored.

    An accumulating metric gives one value per batch, so no batch may hold a part of a cluster and samples of another
    one: clusters that fit share a batch, larger ones fill batches of their own, which are one block then. What is left
    of a batch stays empty.

    Args:
        indices: in random order, or sorted; kept for metrics that score each sample.
        batch: rows of a batch.
        accumulating: whether the metric gives one value per batch.
    """
    ids = dataset.clusters
    if ids is None:
        return ScoreOrder(dataset, indices)
    codes = np.unique(ids, return_inverse=True)[1][indices]
    if not accumulating:
        return ScoreOrder(dataset, indices, clusters=codes)
    groups = [np.flatnonzero(codes == code) for code in _by_appearance(codes)]
    packed = list(_pack([len(group) for group in groups], batch))
    order = np.concatenate(groups)
    blocks = np.repeat(np.arange(len(packed)), [len(sizes) for sizes in packed])
    return ScoreOrder(dataset, indices[order], tuple(size for sizes in packed for size in sizes), blocks)


def _by_appearance(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    known, first = np.unique(codes, return_index=True)
    return known[np.argsort(first)]


def _pack(clusters: list[int], batch: int) -> Iterator[list[int]]:
    """Sizes of the batches of each block, given the sizes of the clusters in their order."""
    filled = 0
    for size in clusters:
        if filled and filled + size > batch:
            yield _batch_sizes(filled, batch)
            filled = 0
        filled += size
    yield _batch_sizes(filled, batch)


def _batch_sizes(samples: int, batch: int) -> list[int]:
    rest = samples % batch
    return [batch] * (samples // batch) + [rest] * (rest > 0)
