"""Average precision of detected boxes, as COCO defines it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.contract import Labels, Metric, Outputs
from evaluators.metrics.detections import (
    DECODERS,
    Boxes,
    Decoder,
    OwnDecoder,
    box_areas,
    box_overlap,
    get_decoder,
)
from search.errors import ConfigError, DataError

OVERLAPS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)
_MOST = 100  # detections of a class in one sample
_WRONG, _RIGHT, _IGNORED = np.int8(0), np.int8(1), np.int8(2)
_AREAS = {
    "map": (0.0, 1e10),
    "map_small": (0.0, 32.0**2),
    "map_medium": (32.0**2, 96.0**2),
    "map_large": (96.0**2, 1e10),
}

States = NDArray[np.int8]


@dataclass(frozen=True)
class _SampleDetections:
    """Detections of one sample, the best first.

    Attributes:
        classes, scores: (k,) float64.
        states: (overlaps, k) whether a detection is right, wrong or ignored at each least overlap.
    """

    classes: Boxes
    scores: Boxes
    states: States


class AveragePrecision:
    """Mean over classes and least overlaps of the precision at 101 recalls, as pycocotools has it.

    Args:
        decode: boxes of outputs.
        areas: least and most area of the objects that count; others are ignored.
    """

    def __init__(self, decode: Decoder, areas: tuple[float, float]) -> None:
        self._decode = decode
        self._areas = areas
        self._detections: list[_SampleDetections] = []
        self._objects: Counter[float] = Counter()  # by class, those that count

    def update(self, outputs: Outputs, labels: Labels) -> None:
        """Add one batch; raises DataError where shapes or labels do not fit."""
        if labels is None:
            raise DataError("metric map needs labels, but the data have none")
        check_boxes(labels)
        for found, wanted in zip(self._decode(outputs, len(labels)), labels.astype(np.float64), strict=True):
            self._add(found[found[:, 5] >= 0], _Objects.of(wanted[wanted[:, 4] >= 0], self._areas))

    def _add(self, found: Boxes, objects: _Objects) -> None:
        best = _best_of_each_class(found)
        areas = box_areas(best)
        states = np.full((len(OVERLAPS), len(best)), _WRONG)
        for number in np.unique(objects.classes):
            chosen = best[:, 5] == number
            states[:, chosen] = _match(best[chosen], objects.of_class(number))
        states[(states == _WRONG) & ((areas < self._areas[0]) | (areas > self._areas[1]))] = _IGNORED
        self._detections.append(_SampleDetections(best[:, 5], best[:, 4], states))
        self._objects.update(objects.classes[~objects.ignored].tolist())

    def merge(self, other: AveragePrecision) -> None:
        """Take in all that another one has taken in."""
        self._detections += other._detections
        self._objects += other._objects

    def compute(self) -> float:
        """The mean over classes with objects; 0 if there is none, as in a batch without objects."""
        if not self._objects:
            return 0.0
        scores = np.concatenate([sample.scores for sample in self._detections])
        order = np.argsort(-scores, kind="stable")  # equal scores in the order of the samples
        classes = np.concatenate([sample.classes for sample in self._detections])[order]
        states = np.concatenate([sample.states for sample in self._detections], axis=1)[:, order]
        each = [_average(states[:, classes == number], count) for number, count in self._objects.items()]
        return float(np.mean(each))


@dataclass(frozen=True)
class _Objects:
    """The labelled objects of a sample, those that count first.

    Attributes:
        boxes: (m, 4) float64.
        classes: (m,) float64.
        crowd: (m,) boxes that stand for many objects: any number of detections may lie in one.
        ignored: (m,) what is neither wanted nor wrong to find.
    """

    boxes: Boxes
    classes: Boxes
    crowd: NDArray[np.bool_]
    ignored: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Boxes, areas: tuple[float, float]) -> _Objects:
        crowd = rows[:, 5] > 0 if rows.shape[1] > 5 else np.zeros(len(rows), np.bool_)
        sizes = rows[:, 6] if rows.shape[1] > 6 else box_areas(rows)
        ignored = crowd | (sizes < areas[0]) | (sizes > areas[1])
        order = np.argsort(ignored, kind="stable")
        return cls(rows[order, :4], rows[order, 4], crowd[order], ignored[order])

    def of_class(self, number: float) -> _Objects:
        own = self.classes == number
        return _Objects(self.boxes[own], self.classes[own], self.crowd[own], self.ignored[own])


def _best_of_each_class(found: Boxes) -> Boxes:
    """At most 100 detections of each class, the best first."""
    ordered = found[np.argsort(-found[:, 4], kind="stable")]
    by_class = np.argsort(ordered[:, 5], kind="stable")
    _, starts, counts = np.unique(ordered[by_class, 5], return_index=True, return_counts=True)
    rank = np.empty(len(ordered), np.int64)
    rank[by_class] = np.arange(len(ordered)) - np.repeat(starts, counts)
    return ordered[rank < _MOST]


def _match(found: Boxes, objects: _Objects) -> States:
    """(overlaps, k) states of detections of one class: each takes the object that it overlaps most, the best first.

    Objects that count go before those that are ignored, and of equal overlaps the last wins.
    """
    overlap = box_overlap(found, objects.boxes, objects.crowd)
    least = np.minimum(OVERLAPS, 1 - 1e-10)[:, None]
    states = np.full((len(OVERLAPS), len(found)), _WRONG)
    free = np.ones((len(OVERLAPS), len(objects.boxes)), np.bool_)
    for place in np.flatnonzero(overlap.max(axis=1, initial=0.0) >= least[0]):
        fits = free & (overlap[place] >= least)
        counting = fits & ~objects.ignored
        wanted = np.where(counting.any(axis=1, keepdims=True), counting, fits)
        values = np.where(wanted, overlap[place], -1.0)
        taken = values.shape[1] - 1 - values[:, ::-1].argmax(axis=1)
        rows = np.flatnonzero(wanted.any(axis=1))
        taken = taken[rows]
        states[rows, place] = np.where(objects.ignored[taken], _IGNORED, _RIGHT)
        free[rows, taken] = objects.crowd[taken]
    return states


def _average(states: States, objects: int) -> float:
    """Mean precision of one class over least overlaps and recalls.

    Args:
        states: (overlaps, k) of its detections, the best first.
        objects: how many there are to find.
    """
    right, wrong = (states == _RIGHT).cumsum(axis=1), (states == _WRONG).cumsum(axis=1)
    precision = right / (right + wrong + np.spacing(1))
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


def _has_objects(labels: NDArray[Any]) -> bool:
    return bool((labels[..., 4] >= 0).any())


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
        has_content=_has_objects,
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
