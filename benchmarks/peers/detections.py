"""Average precision as COCO has it, from what is stored of every sample: so that it can be drawn again. NumPy alone.

Of a sample its twenty best detections are stored, each with score, class and whether it is right at ten least
overlaps, and how many objects of each class there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.samples import DETECTED

Floats = NDArray[np.float64]
OVERLAPS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0, 1, 101)
_MOST = 20
_CANDIDATES = 200
_LEAST_SCORE, _MOST_OVERLAP = 0.01, 0.7
_COLUMNS = 2 + len(OVERLAPS)


def judge_detections(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """(n, 20 * 12 + classes) what average precision is made of.

    Args:
        outputs: `detections` (n, 4 + classes, places): centre, width, height and scores, as YOLOv8 gives them.
        labels: (n, objects, 5) left, top, right, bottom and class; class -1 fills up.
    """
    array = outputs["detections"]  # Quark leaves tensors of its own among the outputs
    return np.stack([_judged(output, wanted) for output, wanted in zip(array.astype(float), labels, strict=True)])


class Detections:
    """Detections of all samples, sorted once.

    Args:
        rows: from `judge_detections`.
    """

    def __init__(self, rows: Floats) -> None:
        detections = rows[:, :-DETECTED].reshape(-1, _COLUMNS)
        order = np.argsort(-detections[:, 0], kind="stable")
        order = order[detections[order, 0] > 0]
        classes = [order[detections[order, 1] == number] for number in range(DETECTED)]
        self._objects = rows[:, -DETECTED:]
        self._owners = [chosen // _MOST for chosen in classes]
        self._right = [detections[chosen, 2:] for chosen in classes]

    def average_precision(self, weights: NDArray[Any] | None = None) -> float:
        """Mean over least overlaps and over the classes that any object has; 0 where there are no objects.

        Args:
            weights: (n,) how often each sample counts; once where none are given.
        """
        weights = np.ones(len(self._objects)) if weights is None else weights
        counts = weights @ self._objects
        each = [
            _average(right, weights[owner], objects)
            for right, owner, objects in zip(self._right, self._owners, counts, strict=True)
            if objects > 0
        ]
        return float(np.mean(each)) if each else 0.0


def _average(hits: Floats, times: Floats, objects: float) -> float:
    """Mean precision of one class over least overlaps and recalls.

    Args:
        hits: (k, overlaps) whether each detection is right, the best first.
        times: (k,) how often each counts.
    """
    hits, times = hits[times > 0], times[times > 0]
    right = (times[:, None] * hits).cumsum(0)
    precision = right / times.cumsum()[:, None]
    best_from = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    best_from = np.concatenate([best_from, np.zeros((1, len(OVERLAPS)))])
    places = [np.searchsorted(recall, _RECALLS) for recall in (right / objects).T]
    return float(np.mean([best_from[place, number] for number, place in enumerate(places)]))


def _judged(output: Floats, wanted: NDArray[Any]) -> Floats:
    """The row of one sample."""
    rows = np.zeros((_MOST, _COLUMNS))
    objects = wanted[wanted[:, 4] >= 0].astype(float)
    boxes, scores, classes = _best(output)
    for number in range(DETECTED):
        own = classes == number
        right = _right(boxes[own], objects[objects[:, 4] == number, :4])
        rows[np.flatnonzero(own)] = np.column_stack([scores[own], classes[own], right])
    counts = np.bincount(objects[:, 4].astype(int), minlength=DETECTED)
    return np.concatenate([rows.reshape(-1), counts])


def _best(output: Floats) -> tuple[Floats, Floats, NDArray[Any]]:
    """Boxes by their edges, scores and classes of the best detections; of those that overlap much one is left."""
    classes, places = np.nonzero(output[4:] > _LEAST_SCORE)
    scores = output[4 + classes, places]
    order = np.argsort(-scores, kind="stable")[:_CANDIDATES]
    classes, places, scores = classes[order], places[order], scores[order]
    middle, half = output[:2, places].T, output[2:4, places].T / 2
    boxes = np.concatenate([middle - half, middle + half], axis=1)
    rivals = (_overlap(boxes, boxes) > _MOST_OVERLAP) & (classes[:, None] == classes)
    kept: list[int] = []
    for place in range(len(boxes)):
        if len(kept) < _MOST and not rivals[place, kept].any():
            kept.append(place)
    return boxes[kept], scores[kept], classes[kept]


def _right(boxes: Floats, objects: Floats) -> Floats:
    """(k, overlaps) 1 where a detection finds an object that no better one has found."""
    right = np.zeros((len(boxes), len(OVERLAPS)))
    overlap = _overlap(boxes, objects)
    for column, least in enumerate(OVERLAPS):
        free = np.ones(len(objects), bool)
        for row in np.flatnonzero(overlap.max(1, initial=0) >= least):
            fits = np.where(free, overlap[row], -1)
            if fits.max(initial=-1) >= least:
                right[row, column] = 1
                free[fits.argmax()] = False
    return right


def _overlap(boxes: Floats, others: Floats) -> Floats:
    """(a, b) intersection over union of boxes by their edges."""
    sides = np.minimum(boxes[:, None, 2:], others[None, :, 2:]) - np.maximum(boxes[:, None, :2], others[None, :, :2])
    inner = np.maximum(sides, 0).prod(2)
    areas, more = ((each[:, 2:] - each[:, :2]).prod(1) for each in (boxes, others))
    union = areas[:, None] + more - inner
    return np.divide(inner, union, out=np.zeros_like(inner), where=inner > 0)
