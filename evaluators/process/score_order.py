"""The order and the batches in which samples of a split are scored, and the scores that belong together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Batch, Dataset, Indices, batches
from evaluators.data.dataset import batch_sizes


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
        sizes = self.sizes or batch_sizes(self.dataset.forms, self.indices, batch)
        return next((size for size in sizes if size < batch), 0)

    def batches(self, batch: int) -> Iterator[Batch]:
        """The samples, in batches of that many rows."""
        return batches(self.dataset, self.indices, batch, self.sizes)


def order_scores(dataset: Dataset, indices: Indices, batch: int, *, accumulating: bool) -> ScoreOrder:
    """How the samples at `indices` are scored.

    An accumulating metric gives one value per batch, so no batch may hold a part of a cluster and samples of another
    one: clusters that fit share a batch, larger ones fill batches of their own, which are one block then. What is left
    of a batch stays empty. A block whose samples have several forms has a batch for each.

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
    packed = [_by_form(dataset, indices[block]) for block in _pack(groups, batch)]
    sizes = [list(batch_sizes(dataset.forms, block, batch)) for block in packed]
    blocks = np.repeat(np.arange(len(packed)), [len(each) for each in sizes])
    return ScoreOrder(dataset, np.concatenate(packed), tuple(size for each in sizes for size in each), blocks)


def _by_form(dataset: Dataset, indices: Indices) -> Indices:
    """Samples of one form together, otherwise in their order."""
    return indices if dataset.forms is None else indices[np.argsort(dataset.forms[indices], kind="stable")]


def _by_appearance(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    known, first = np.unique(codes, return_index=True)
    return known[np.argsort(first)]


def _pack(clusters: list[Indices], batch: int) -> Iterator[Indices]:
    """The samples of each block, given those of the clusters in their order."""
    block: list[Indices] = []
    for cluster in clusters:
        if block and sum(map(len, block)) + len(cluster) > batch:
            yield np.concatenate(block)
            block = []
        block.append(cluster)
    yield np.concatenate(block)
