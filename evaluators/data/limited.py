"""A data set with only some of its samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data.dataset import Arrays, Dataset, Indices
from search.values import digest_of


def limit(dataset: Dataset, most: int | None) -> Dataset:
    """The data set, or where it has more samples than `most` so many of them, drawn by its content alone."""
    if most is None or len(dataset) <= most:
        return dataset
    random = np.random.RandomState(int(dataset.digest[:8], 16))
    return LimitedDataset(dataset, np.sort(random.permutation(len(dataset))[:most]).astype(np.int64))


class LimitedDataset:
    """Some samples of another data set, which are counted again from 0.

    Args:
        whole: the other one.
        kept: (samples,) numbers of the samples, ascending.
    """

    def __init__(self, whole: Dataset, kept: Indices) -> None:
        self._whole = whole
        self._kept = kept
        self._digest = digest_of({"of": whole.digest, "kept": kept.tolist()})

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def has_labels(self) -> bool:
        return self._whole.has_labels

    @property
    def clusters(self) -> NDArray[Any] | None:
        found = self._whole.clusters
        return None if found is None else found[self._kept]

    @property
    def forms(self) -> Indices | None:
        found = self._whole.forms
        return None if found is None else found[self._kept]

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        return self._whole.batch(self._kept[indices])

    def labels(self, indices: Indices) -> NDArray[Any] | None:
        return self._whole.labels(self._kept[indices])

    def source_rows(self, indices: Indices) -> Indices:
        return self._whole.source_rows(self._kept[indices])
