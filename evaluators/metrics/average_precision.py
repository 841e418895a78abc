"""Average precision of detected boxes, as COCO defines it."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.boxes.matching import (
    IGNORED,
    RIGHT,
    WRONG,
    Boxes,
    Detections,
    Objects,
    States,
    box_areas,
    match,
)
from evaluators.metrics.contract import Labels, Metric, Outputs
from evaluators.metrics.detections import DECODERS, Decoder, OwnDecoder, get_decoder
from search.errors import ConfigError, DataError

_RECALLS = np.linspace(0.0, 1.0, 101)
_AREAS = {
    "map": (0.0, 1e10),
    "map_small": (0.0, 32.0**2),
    "map_medium": (32.0**2, 96.0**2),
    "map_large": (96.0**2, 1e10),
}


class AveragePrecision:
    """Mean over classes and least overlaps of the precision at 101 recalls, as pycocotools has it.

    Args:
        decode: boxes of outputs.
        areas: least and most area of the objects that count; others are ignored.
    """

    def __init__(self, decode: Decoder, areas: tuple[float, float]) -> None:
        self._decode = decode
        self._areas = areas
        # By class, of each batch: (k,) scores and (overlaps, k) whether they are right, wrong or ignored.
        self._detections: defaultdict[float, list[tuple[Boxes, States]]] = defaultdict(list)
        self._objects: Counter[float] = Counter()  # by class, those that count

    def update(self, outputs: Outputs, labels: Labels) -> None:
        """Add one batch; raises DataError where shapes or labels do not fit."""
        if labels is None:
            raise DataError("metric map needs labels, but the data have none")
        check_boxes(labels)
        decoded = self._decode(outputs, len(labels))
        if len(decoded) != len(labels):
            raise ValueError(f"outputs have {len(decoded)} samples and labels {len(labels)}")
        detections, objects = Detections.of(decoded), Objects.of(labels.astype(np.float64), self._areas)
        states, areas = match(detections, objects), box_areas(detections.rows)
        states[(states == WRONG) & ((areas < self._areas[0]) | (areas > self._areas[1]))] = IGNORED
        for number, some in detections.of_each_class():
            self._detections[number].append((detections.rows[some, 4], states[:, some]))
        self._objects.update(objects.classes[~objects.ignored].tolist())

    def merge(self, other: AveragePrecision) -> None:
        """Take in all that another one has taken in."""
        for number, batches in other._detections.items():
            self._detections[number] += batches
        self._objects += other._objects

    def compute(self) -> float:
        """The mean over classes with objects; 0 if there is none, as in a batch without objects."""
        if not self._objects:
            return 0.0
        return float(np.mean([self._average(number, count) for number, count in self._objects.items()]))

    def _average(self, number: float, objects: int) -> float:
        """Mean precision of one class."""
        batches = self._detections.get(number)
        if batches is None:
            return 0.0
        order = np.argsort(-np.concatenate([scores for scores, _ in batches]), kind="stable")  # equal: the first sample
        return _mean_precision(np.concatenate([states for _, states in batches], axis=1)[:, order], objects)


def _mean_precision(states: States, objects: int) -> float:
    """Mean precision of one class over least overlaps and recalls.

    Args:
        states: (overlaps, k) of its detections, the best first.
        objects: how many there are to find.
    """
    hits = states == RIGHT
    some = np.flatnonzero(hits.any(axis=0))  # precision and recall are largest there
    right, seen = hits[:, some].cumsum(axis=1), (some + 1) - (states == IGNORED).cumsum(axis=1)[:, some]
    precision = right / (seen + np.spacing(1))
    best_from = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    best_from = np.column_stack([best_from, np.zeros(len(best_from))])  # recalls that are not reached
    recall = right / objects
    return float(np.mean([best[np.searchsorted(row, _RECALLS)] for best, row in zip(best_from, recall, strict=True)]))


def check_boxes(labels: NDArray[Any]) -> None:
    """Refuse labels that are not (n, m, 5 to 7): x1, y1, x2, y2, class, and perhaps crowd and area.

    Raises:
        DataError: another shape or type, a box that is inside out, or a class that is no whole number.
    """
    if labels.ndim != 3 or labels.shape[2] not in (5, 6, 7) or labels.dtype.kind not in "iuf":
        raise DataError(
            "metric map needs labels of shape (n, most boxes, 5), a row being x1, y1, x2, y2, class, with class -1 in "
            f"rows that fill up; columns crowd (0 or 1) and area may follow; got {labels.dtype} of shape {labels.shape}"
        )
    rows = labels[labels[..., 4] >= 0].astype(np.float64)
    bad = ~np.isfinite(rows).all(axis=1) | (rows[:, 2] < rows[:, 0]) | (rows[:, 3] < rows[:, 1])
    bad |= rows[:, 4] != np.floor(rows[:, 4])
    if bad.any() or not (labels[..., 4] >= -1).all():
        shown = rows[bad][:1].tolist() or "a class below -1 or NaN"
        raise DataError(f"metric map: expected x1 <= x2, y1 <= y2 and a whole class in every label, got {shown}")


def _fit_boxes(outputs: Outputs, labels: NDArray[Any]) -> None:
    check_boxes(labels)


def _has_objects(areas: tuple[float, float], labels: NDArray[Any]) -> bool:
    """Whether there is an object that counts: none that stands for many, and of a size that is looked at."""
    return not Objects.of(labels.astype(np.float64), areas).ignored.all()


def _metric(name: str, decode: Decoder) -> Metric:
    return Metric(
        name,
        unit="share",
        higher_is_better=True,
        ratio=True,
        needs_labels=True,
        needs_reference=False,
        kind="accumulating",
        make=partial(AveragePrecision, decode, _AREAS[name]),
        reads="all" if isinstance(decode, OwnDecoder) else "one",
        fit=_fit_boxes,
        has_content=partial(_has_objects, _AREAS[name]),
        threads=2,
    )


METRICS = tuple(_metric(name, DECODERS["boxes"]) for name in _AREAS)


def make_decoding_metric(name: str, decoder: str) -> Metric:
    """The metric of this name with boxes from a decoder of that name, see `get_decoder`.

    Raises:
        ConfigError: the metric reads no boxes, or there is no such decoder.
    """
    if name not in _AREAS:
        raise ConfigError(
            f"--decode {decoder}: only {', '.join(_AREAS)} read boxes, got --metric {name}; leave it out."
        )
    return _metric(name, get_decoder(decoder))
