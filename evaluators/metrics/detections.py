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

from evaluators.metrics.boxes.matching import Boxes
from evaluators.metrics.boxes.suppression import BestDetections, suppress_overlaps
from evaluators.metrics.classification import scored_output
from evaluators.metrics.contract import Outputs
from search.errors import ConfigError, DataError, MetricError
from search.references import import_function, short

Decoder = Callable[[Outputs, int], Sequence[Boxes]]  # outputs and the number of samples

COLUMNS = 6
_LEAST_SCORE = 0.001  # as the networks' own validation has it: average precision reads the whole curve


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
    floats = (rows.astype(np.float64) for rows in array)
    samples = [_candidates(rows[:, 4:5] * rows[:, 5:]) for rows in floats]
    return suppress_overlaps(samples, lambda owners, boxes: _edges(array[owners, boxes, :4]), 0.6)


def _decode_yolov8(outputs: Outputs, count: int) -> Sequence[Boxes]:
    name, array = scored_output(outputs)
    if array.ndim != 3 or array.shape[1] < 5 or array.shape[2] < array.shape[1]:
        raise _other_layout("yolov8", "(n, 4 + classes, boxes)", name, array.shape)
    samples = [_candidates(rows[4:].T) for rows in array]
    return suppress_overlaps(samples, lambda owners, boxes: _edges(array[owners, :4, boxes]), 0.7)


def _other_layout(layout: str, wanted: str, name: str, shape: tuple[int, ...]) -> DataError:
    return DataError(
        f"--decode {layout} reads the first float output in shape {wanted} with no fewer boxes than other columns, but "
        f"{name!r} has shape {shape}; the layouts are boxes, yolov5 and yolov8, or give package.module:function"
    )


def _candidates(scores: NDArray[Any]) -> BestDetections:
    """What is good enough of (boxes, classes) scores; a box may have several classes."""
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float64)
    least = scores.dtype.type(_LEAST_SCORE)
    if float(least) > _LEAST_SCORE:  # in float32 it is rounded up, which would leave out a score of just as much
        least = np.nextafter(least, scores.dtype.type(0))
    boxes, classes = np.nonzero(scores > least)
    return BestDetections(scores[boxes, classes], boxes, classes)


def _edges(centred: NDArray[Any]) -> Boxes:
    """(k, 4) centre and size to left, top, right and bottom edge."""
    own = centred.astype(np.float64)
    middle, half = own[:, :2], own[:, 2:] / 2
    return np.column_stack([middle - half, middle + half])


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
                boxes = [np.asarray(rows, dtype=np.float64) for rows in self._function(dict(outputs))]
        except Exception as error:
            raise MetricError(
                f"--decode {self._name} raised {short(error)} on outputs "
                f"{ {name: array.shape for name, array in outputs.items()} }. Correct the function."
            ) from error
        if len(boxes) != count:
            raise MetricError(f"--decode {self._name} must give one array per sample, {count}, got {len(boxes)}")
        return [self._check_rows(rows) for rows in boxes]

    def _check_rows(self, rows: Boxes) -> Boxes:
        if not rows.size:
            return np.empty((0, COLUMNS))
        if rows.ndim != 2 or rows.shape[1] != COLUMNS or not np.isfinite(rows).all():
            raise MetricError(
                f"--decode {self._name} must give arrays of shape (k, 6) with finite numbers, x1, y1, x2, y2, score, "
                f"class in a row; got shape {rows.shape}"
            )
        return rows
