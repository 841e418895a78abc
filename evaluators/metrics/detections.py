"""Boxes from the outputs of a detector, by a known layout or by a decode function of the user.

A decoder takes the outputs of a batch of n samples and gives n arrays (k, 6), a row per detection: x1, y1, x2, y2,
score, class. Detections stand in any order. Rows with a class below 0 are padding.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.classification import scored_output
from evaluators.metrics.contract import Outputs
from search.errors import ConfigError, DataError, MetricError
from search.references import import_function, short

Boxes = NDArray[np.float64]
Decoder = Callable[[Outputs, int], Sequence[Boxes]]  # outputs and the number of samples

COLUMNS = 6
_LEAST_SCORE = 0.001  # as the networks' own validation has it: average precision reads the whole curve
_CANDIDATES = 3000  # of a sample, the best; more are the far end of the curve
_KEPT = 300
_AT_ONCE = 64  # compared with one another at once, which is quicker than one after the other


def box_overlap(boxes: Boxes, others: Boxes, crowd: NDArray[np.bool_] | None = None) -> Boxes:
    """Intersection over union of boxes (a, 4) and others (b, 4), each x1, y1, x2, y2: (a, b) float64.

    Args:
        crowd: (b,) others that stand for many objects: the intersection is divided by the box's own area there.
    """
    inner = _shared_length(boxes, others, 0)
    inner *= _shared_length(boxes, others, 1)
    own = box_areas(boxes)[:, None]
    whole = own + box_areas(others)[None] - inner
    if crowd is not None:
        whole = np.where(crowd[None], own, whole)
    shares: Boxes = np.divide(inner, whole, out=np.zeros_like(inner), where=inner > 0)
    return shares


def _shared_length(boxes: Boxes, others: Boxes, axis: int) -> Boxes:
    """(a, b) how much of an axis each pair of boxes shares; 0 for x and 1 for y."""
    shared = np.minimum(boxes[:, axis + 2, None], others[None, :, axis + 2])
    shared -= np.maximum(boxes[:, axis, None], others[None, :, axis])
    return np.maximum(shared, 0.0, out=shared)


def box_areas(boxes: Boxes) -> Boxes:
    """(n, 4) boxes to (n,) areas."""
    areas: Boxes = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def suppress_overlaps(detections: Boxes, most_overlap: float) -> Boxes:
    """Of detections (k, 6) of one class that overlap by more than this, the best; at most 300, the best first."""
    left = detections[np.argsort(-detections[:, 4], kind="stable")[:_CANDIDATES]]
    kept, count = [left[:0]], 0
    while len(left) and count < _KEPT:
        head, left = left[:_AT_ONCE], left[_AT_ONCE:]
        best = head[_best_of_rivals(head, most_overlap)]
        kept.append(best)
        count += len(best)
        left = left[~_overlapped(left, best, most_overlap)]
    return np.concatenate(kept)[:_KEPT]


def _best_of_rivals(detections: Boxes, most_overlap: float) -> NDArray[np.bool_]:
    """(k,) which of (k, 6) detections, the best first, overlap no better one that is kept itself."""
    same = detections[:, None, 5] == detections[None, :, 5]
    rivals = (box_overlap(detections, detections) > most_overlap) & same
    kept = np.ones(len(detections), np.bool_)
    for place in np.flatnonzero(rivals.sum(axis=1) > 1):
        if kept[place]:
            kept[place + 1 :] &= ~rivals[place, place + 1 :]
    return kept


def _overlapped(detections: Boxes, best: Boxes, most_overlap: float) -> NDArray[np.bool_]:
    """(k,) which of (k, 6) detections overlap one of (b, 6) better ones of their class."""
    found = np.zeros(len(detections), np.bool_)
    for number in np.unique(best[:, 5]):
        rows = np.flatnonzero(detections[:, 5] == number)
        overlap = box_overlap(best[best[:, 5] == number], detections[rows])
        found[rows] = (overlap > most_overlap).any(axis=0)
    return found


def _decode_boxes(outputs: Outputs, count: int) -> Sequence[Boxes]:
    name, array = scored_output(outputs)
    if array.ndim != 3 or array.shape[2] != COLUMNS:
        raise DataError(
            f"metric map reads detections from the first float output and needs shape (n, boxes, 6), a row being x1, "
            f"y1, x2, y2, score, class, but {name!r} has shape {array.shape}; name its layout by --decode yolov5 or "
            "yolov8, or decode it by a function of your own, --decode package.module:function"
        )
    return list(array.astype(np.float64))


def _decode_yolov5(outputs: Outputs, count: int) -> Sequence[Boxes]:
    name, array = scored_output(outputs)
    if array.ndim != 3 or array.shape[2] < 6 or array.shape[1] < array.shape[2]:
        raise _other_layout("yolov5", "(n, boxes, 5 + classes)", name, array.shape)
    return [_best_boxes(rows[:, :4], rows[:, 4:5] * rows[:, 5:], 0.6) for rows in array.astype(np.float64)]


def _decode_yolov8(outputs: Outputs, count: int) -> Sequence[Boxes]:
    name, array = scored_output(outputs)
    if array.ndim != 3 or array.shape[1] < 5 or array.shape[2] < array.shape[1]:
        raise _other_layout("yolov8", "(n, 4 + classes, boxes)", name, array.shape)
    return [_best_boxes(rows[:4].T, rows[4:].T, 0.7) for rows in array.astype(np.float64)]


def _other_layout(layout: str, wanted: str, name: str, shape: tuple[int, ...]) -> DataError:
    return DataError(
        f"--decode {layout} reads the first float output in shape {wanted} with no fewer boxes than other columns, but "
        f"{name!r} has shape {shape}; the layouts are boxes, yolov5 and yolov8, or give package.module:function"
    )


def _best_boxes(centres: Boxes, scores: Boxes, most_overlap: float) -> Boxes:
    """Detections of one sample: (boxes, 4) centre and size, (boxes, classes) scores; a box may have several classes."""
    places, classes = np.nonzero(scores > _LEAST_SCORE)
    middle, half = centres[places, :2], centres[places, 2:] / 2
    found = np.column_stack([middle - half, middle + half, scores[places, classes], classes])
    return suppress_overlaps(found, most_overlap)


DECODERS: Mapping[str, Decoder] = {"boxes": _decode_boxes, "yolov5": _decode_yolov5, "yolov8": _decode_yolov8}


def get_decoder(name: str) -> Decoder:
    """Find a decoder by the name of its layout, or the user's by `package.module:function`.

    Raises:
        ConfigError: there is none of this name, or it cannot be imported.
    """
    if name in DECODERS:
        return DECODERS[name]
    if ":" not in name:
        close = difflib.get_close_matches(name, DECODERS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ConfigError(
            f"--decode {name!r} is unknown.{hint} There are {', '.join(DECODERS)}; a function of your own is given as "
            "package.module:function."
        )
    try:
        function = import_function(name, "--decode")
    except DataError as error:
        raise ConfigError(str(error)) from error
    return OwnDecoder(name, function)


class OwnDecoder:
    """A decode function of the user's: called by one thread at a time, and what it gives is checked.

    Args:
        name: what the user wrote, for messages.
        function: `(outputs: dict[str, ndarray]) -> n arrays (k, 6)`.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function
        self._lock = threading.Lock()

    def __call__(self, outputs: Outputs, count: int) -> Sequence[Boxes]:
        """Raises MetricError where the function raises or gives something else than n arrays (k, 6) of numbers."""
        try:
            with self._lock:
                found = [np.asarray(rows, dtype=np.float64) for rows in self._function(dict(outputs))]
        except Exception as error:
            raise MetricError(
                f"--decode {self._name} raised {short(error)} on outputs "
                f"{ {name: array.shape for name, array in outputs.items()} }. Correct the function."
            ) from error
        if len(found) != count:
            raise MetricError(f"--decode {self._name} must give one array per sample, {count}, got {len(found)}")
        return [self._check_rows(rows) for rows in found]

    def _check_rows(self, rows: Boxes) -> Boxes:
        if not rows.size:
            return np.empty((0, COLUMNS))
        if rows.ndim != 2 or rows.shape[1] != COLUMNS or not np.isfinite(rows).all():
            raise MetricError(
                f"--decode {self._name} must give arrays of shape (k, 6) with finite numbers, x1, y1, x2, y2, score, "
                f"class in a row; got shape {rows.shape}"
            )
        return rows
