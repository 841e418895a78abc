"""Mean intersection over union of class maps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.array_passes import largest_class, row_blocks
from evaluators.metrics.classification import check_classes, scored_output
from evaluators.metrics.contract import Labels, Metric, Outputs
from evaluators.metrics.label_form import class_number_advice, rows_shape
from search.errors import DataError

IGNORED_LABEL = 255


class MeanIoU:
    """Mean over classes of intersection ÷ union of predicted and labelled pixels.

    The first float output is (n, C, H, W) scores of two classes or more, labels are (n, H, W) integers. Classes absent
    from both prediction and labels are left out. Label 255 marks pixels that count for nothing (the custom of PASCAL
    VOC and Cityscapes) where the model has no such class.
    """

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] | None = None  # (C, C): label by prediction

    def update(self, outputs: Outputs, labels: Labels) -> None:
        """Add one batch; raises DataError where shapes or labels do not fit."""
        name, scores = scored_output(outputs)
        if scores.ndim != 4:
            raise DataError(
                f"metric miou reads class maps from the first float output and needs shape (n, C, H, W), "
                f"but {name!r} has shape {scores.shape}; choose another --metric"
            )
        check_classes("miou", name, scores.shape)
        counts = _count_cells(_class_maps(labels, scores.shape), scores)
        self._counts = counts if self._counts is None else self._counts + counts

    def merge(self, other: MeanIoU) -> None:
        """Take in all that another one has taken in."""
        if other._counts is not None:
            self._counts = other._counts if self._counts is None else self._counts + other._counts

    def compute(self) -> float:
        """The mean over classes seen; 0 if no pixel counted, as in a batch all of whose labels are 255."""
        counts = np.zeros((1, 1)) if self._counts is None else self._counts
        both = np.diag(counts)
        union = counts.sum(axis=0) + counts.sum(axis=1) - both
        if not union.any():
            return 0.0
        return float(np.mean(both[union > 0] / union[union > 0]))


def _count_cells(wanted: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.int64]:
    """(C, C) positions by label and by the class of the largest score; those labelled as no class are left out."""
    classes = scores.shape[1]
    cell = np.min_scalar_type((classes + 1) * classes)
    counts = np.zeros((classes + 1) * classes, np.int64)
    for part in row_blocks(wanted):
        cells = wanted[part].astype(cell)
        np.minimum(cells, cell.type(classes), out=cells)  # all that are no class become one row, the last
        cells *= cell.type(classes)
        cells += largest_class(scores[part])
        counts += np.bincount(cells.ravel(), minlength=len(counts))
    return counts.reshape(classes + 1, classes)[:classes]


def _class_maps(labels: Labels, shape: tuple[int, ...]) -> NDArray[Any]:
    """Labels, (n, H, W) integers, each a class or 255."""
    rows, classes, height, width = shape
    if labels is None:
        raise DataError("metric miou needs labels, but the data have none")
    if labels.shape != (rows, height, width) or labels.dtype.kind not in "iu":
        raise DataError(
            f"metric miou: expected labels that are class numbers, integers of shape (n, {height}, {width}), got "
            f"{labels.dtype} of shape {rows_shape(labels.shape)}. {class_number_advice(labels, 3, classes)}".rstrip()
        )
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        outside = labels[((labels < 0) | (labels >= classes)) & (labels != IGNORED_LABEL)]
        if outside.size:
            raise DataError(
                f"metric miou: label {outside[0]} is neither one of {classes} classes, which are numbered from 0 to "
                f"{classes - 1}, nor 255 (ignored)"
            )
    return labels


def _fit_class_maps(outputs: Outputs, labels: NDArray[Any]) -> object:
    return _class_maps(labels, (len(labels), *scored_output(outputs)[1].shape[1:]))


def _has_pixels(labels: NDArray[Any]) -> bool:
    return bool((labels != IGNORED_LABEL).any())


METRICS = (
    Metric(
        "miou",
        "share",
        higher_is_better=True,
        ratio=True,
        needs_labels=True,
        needs_reference=False,
        kind="accumulating",
        make=MeanIoU,
        fit=_fit_class_maps,
        has_content=_has_pixels,
    ),
)
