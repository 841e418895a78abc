"""Whether labels are what a built-in metric reads: all of them, before anything is built."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Dataset, Indices
from evaluators.metrics.contract import Metric, Outputs
from search.errors import DataError

_SOME = 256  # label maps of a whole split may be larger than memory


def check_labels(metric: Metric, outputs: Outputs, dataset: Dataset, indices: Indices, split: str) -> None:
    """Refuse labels that a built-in metric would refuse later, one sample among many perhaps.

    Args:
        outputs: of any batch, by name; only their form counts.
        indices: of the samples that are scored.
        split: what they are for, for messages.

    Raises:
        DataError: naming the first such sample by its number in the dataset.
    """
    if metric.fit is None:
        return
    ordered = np.sort(indices)  # every part of the data is read once
    for start in range(0, len(ordered), _SOME):
        some = ordered[start : start + _SOME]
        try:
            _check(metric, outputs, dataset, some)
        except DataError:
            for number in some:
                _check_one(metric, outputs, dataset, number, split)
            raise


def _check_one(metric: Metric, outputs: Outputs, dataset: Dataset, number: np.int64, split: str) -> None:
    try:
        _check(metric, outputs, dataset, np.array([number]))
    except DataError as error:
        raise DataError(f"checking the labels of the {split} samples: sample {number}: {error}") from error


def _check(metric: Metric, outputs: Outputs, dataset: Dataset, indices: NDArray[np.int64]) -> None:
    labels = dataset.labels(indices)
    if metric.fit is not None and labels is not None:
        metric.fit(outputs, labels)
