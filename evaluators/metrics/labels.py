"""Checking all labels against a built-in metric before anything is built."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Dataset, Indices
from evaluators.metrics.contract import Metric, Outputs
from search.errors import DataError

_SOME = 256  # label maps of a whole split may be larger than memory


def check_labels(
    metric: Metric, run: Callable[[Indices], Outputs], dataset: Dataset, indices: Indices, split: str
) -> None:
    """Refuse labels that a built-in metric would refuse later, one sample among many perhaps.

    Args:
        run: gives outputs by name of a batch with the first of some samples of one form; only their shapes count.
        indices: of the samples that are scored.
        split: what they are for, for messages.

    Raises:
        DataError: naming the first such sample by its number in the dataset; or no sample has anything to score.
    """
    if metric.fit is None:
        return
    has_content = metric.has_content is None
    for part in _by_form(dataset, np.sort(indices)):  # sorted, every part of the data is read once
        has_content |= _check_form(metric, run(part), dataset, part, split)
    if not has_content:
        raise DataError(
            f"checking the labels of the {split} samples: metric {metric.name} finds nothing to score in any of the "
            f"{len(indices)}; give samples whose labels hold some"
        )


def _by_form(dataset: Dataset, indices: Indices) -> list[Indices]:
    """The samples of each form, whose outputs and labels have one shape."""
    forms = dataset.forms
    return [indices] if forms is None else [indices[forms[indices] == form] for form in np.unique(forms[indices])]


def _check_form(metric: Metric, outputs: Outputs, dataset: Dataset, ordered: Indices, split: str) -> bool:
    """Whether labels of samples of one form, which must be what the metric reads, hold anything to score."""
    has_content = metric.has_content is None
    for start in range(0, len(ordered), _SOME):
        some = ordered[start : start + _SOME]
        try:
            has_content |= _check(metric, outputs, dataset, some)
        except DataError:
            for number in some:
                _check_one(metric, outputs, dataset, number, split)
            raise
    return has_content


def _check_one(metric: Metric, outputs: Outputs, dataset: Dataset, number: np.int64, split: str) -> None:
    try:
        _check(metric, outputs, dataset, np.array([number]))
    except DataError as error:
        raise DataError(f"checking the labels of the {split} samples: sample {number}: {error}") from error


def _check(metric: Metric, outputs: Outputs, dataset: Dataset, indices: NDArray[np.int64]) -> bool:
    """Whether the labels, which must be what the metric reads, hold anything to score."""
    labels = dataset.labels(indices)
    if metric.fit is None or labels is None:
        return True
    metric.fit(outputs, labels)
    return metric.has_content is None or metric.has_content(labels)
