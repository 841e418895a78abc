"""Metrics of classes: whether the label is among the best, and agreement with FP32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.array_passes import comparable, largest_class, row_blocks
from evaluators.metrics.contract import Labels, Metric, Outputs, Scores, given_reference
from evaluators.metrics.label_form import class_number_advice, rows_shape
from search.errors import DataError


def scored_output(outputs: Outputs) -> tuple[str, NDArray[Any]]:
    """The one output that metrics over classes read: the first float output, or the first where none is float."""
    floats = (item for item in outputs.items() if item[1].dtype.kind == "f")
    return next(floats, next(iter(outputs.items())))


def _class_scores(outputs: Outputs, metric: str) -> NDArray[Any]:
    """The first float output, which must be (n, classes) with two classes or more."""
    name, scores = scored_output(outputs)
    if scores.ndim != 2:
        raise DataError(
            f"metric {metric} reads class scores from the first float output and needs shape (n, classes), "
            f"but {name!r} has shape {scores.shape}; choose another --metric, for example sqnr, or write one of your "
            "own"
        )
    check_classes(metric, name, scores.shape)
    return scores


def check_classes(metric: str, name: str, shape: tuple[int, ...]) -> None:
    """The largest of one class is always the same, so that any output would pass for right."""
    if shape[1] < 2:
        raise DataError(
            f"metric {metric} compares classes and needs two or more, but output {name!r} has shape {shape}: with "
            f"{shape[1]} class every output would count as right. Use --metric sqnr or mse, which compare values with "
            "FP32's, or a metric of your own that reads the labels"
        )


def _class_labels(labels: Labels, rows: int, classes: int, metric: str) -> NDArray[np.int64]:
    """Labels as (rows,) int64 within the classes."""
    if labels is None:
        raise DataError(f"metric {metric} needs labels, but the data have none; use agreement, or add labels")
    if labels.shape != (rows,) or labels.dtype.kind not in "iu":
        raise DataError(
            f"metric {metric}: expected labels that are class numbers, integers of shape (n,), got {labels.dtype} of "
            f"shape {rows_shape(labels.shape)}. {class_number_advice(labels)}".rstrip()
        )
    outside = labels[(labels < 0) | (labels >= classes)]
    if outside.size:
        raise DataError(
            f"metric {metric}: label {outside[0]} is not one of the model's {classes} classes, which are "
            f"numbered from 0 to {classes - 1}"
        )
    return labels.astype(np.int64)


def _top(outputs: Outputs, labels: Labels, k: int) -> Scores:
    """1 where the label is among the k best classes; ties go to the lower class, as argmax has it.

    Without that rule a broken candidate that scores all classes alike would count as right everywhere.
    """
    metric = f"top{k}"
    scores = _class_scores(outputs, metric)
    rows, classes = scores.shape
    if classes < k:
        raise DataError(f"metric {metric} needs at least {k} classes, the model has {classes}; use top1")
    wanted = _class_labels(labels, rows, classes, metric)[:, None]
    if k == 1:
        return np.asarray(largest_class(scores) == wanted[:, 0], dtype=np.float64)
    right = np.empty(rows)
    for part in row_blocks(scores):
        right[part] = _count_ahead(comparable(scores[part]), wanted[part]) < k
    return right


def _count_ahead(scores: NDArray[Any], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) how many classes come before the wanted one, (n, 1), by (n, classes) scores."""
    own = np.take_along_axis(scores, wanted, axis=1)
    lower = np.arange(scores.shape[1]) < wanted
    ahead: NDArray[np.int64] = np.count_nonzero((scores > own) | ((scores == own) & lower), axis=1)
    return ahead


def _top1(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    return _top(outputs, labels, 1)


def _top5(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    return _top(outputs, labels, 5)


def _fit_classes(metric: str) -> Callable[[Outputs, NDArray[Any]], object]:
    def fit(outputs: Outputs, labels: NDArray[Any]) -> object:
        return _class_labels(labels, len(labels), _class_scores(outputs, metric).shape[1], metric)

    return fit


def _agreement(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    mine = largest_class(_class_scores(outputs, "agreement"))
    theirs = largest_class(_class_scores(given_reference(reference), "agreement"))
    return np.asarray(mine == theirs, dtype=np.float64)


def _metric(name: str, score: Callable[..., Scores], *, labels: bool, reference: bool) -> Metric:
    fit = _fit_classes(name) if labels else None
    return Metric(name, "share", True, True, "per_sample", labels, reference, score, fit=fit, compares_classes=True)


METRICS = (
    _metric("top1", _top1, labels=True, reference=False),
    _metric("top5", _top5, labels=True, reference=False),
    _metric("agreement", _agreement, labels=False, reference=True),
)
