"""The agreement of the outputs of two engines on one request."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.guard.options import BOXES, CLASSES, THRESHOLDS, VALUES, Decoder, GuardError

Arrays = Mapping[str, NDArray[Any]]
_USUAL = 50  # samples that the usual size of an output is taken from
_LEAST_SCORE = 0.25  # of a box that the other engine must have found too
_LEAST_PARTNER_SCORE = 0.125  # of what the other has found: a score that crosses a limit by a little changes nothing
_LEAST_OVERLAP = 0.5
_USUAL_FACTOR = 10  # samples whose middle one is the factor between two engines
COLUMNS = 6


class Agreement:
    """Compares two answers to one request. For one thread.

    Args:
        kind, decode: see `GuardOptions.outputs` and `GuardOptions.decode`.

    Attributes:
        kind: None until it is known.
    """

    def __init__(self, kind: str | None, decode: Decoder | None) -> None:
        self.kind, self._said = kind, kind is not None
        self._decode = decode or _boxes_of
        self._factors: dict[str, deque[float]] = {}
        self._sizes: dict[str, deque[float]] = {}

    @property
    def default_threshold(self) -> float:
        """Least mean agreement of a window where the user names none."""
        return THRESHOLDS[self.kind or VALUES]

    def measure(self, fast: Arrays, safe: Arrays) -> float:
        """Agreement of two answers with the same names, 0 to 1.

        `classes`: the share of rows with the same largest score along the last axis. Where nobody said that outputs are
        classes, rows of numbers look the same, so agreement is at most 1 − how far the scale of the outputs is off.
        `boxes`: see `agree_on_boxes`.
        `values`: 1 − the relative error of the worst float output: the root mean square of the differences over that
        of the safe output, or over the usual one of the last samples where that is larger. Where no output is a float
        one, the least share of equal elements.

        Fast outputs that are not finite, or of another shape, agree 0; empty ones of one shape agree. Safe outputs
        have to be finite.
        """
        self.kind = self.kind or kind_of(safe)
        if not all_finite(fast):
            return 0.0
        if (self.kind or BOXES) == BOXES:
            return self._agree_on_boxes(fast, safe)
        floats = [name for name in safe if is_float(safe[name])]
        names = floats or list(safe)
        if any(fast[n].shape != safe[n].shape or is_float(fast[n]) != is_float(safe[n]) for n in names):
            return 0.0
        if self.kind == CLASSES:
            shares = (_share_of_classes(fast[name], safe[name]) for name in names)
            return min(shares) if self._said else min(*shares, *(self._agree_in_scale(n, fast, safe) for n in names))
        if not floats:
            return min(_share_of_equal(fast[name], safe[name]) for name in names)
        return min(max(0.0, 1.0 - self._relative_error(name, fast[name], safe[name])) for name in names)

    def _agree_on_boxes(self, fast: Arrays, safe: Arrays) -> float:
        count = len(next(iter(safe.values())))
        wanted = self._read_boxes(safe, count)
        try:
            boxes = self._read_boxes(fast, count)
        except Exception:  # what can be read from the safe engine's outputs and not from these is of another shape
            return 0.0
        return agree_on_boxes(boxes, wanted)

    def _read_boxes(self, outputs: Arrays, count: int) -> list[NDArray[np.float64]]:
        samples = [np.asarray(rows, np.float64) for rows in self._decode(outputs, count)]
        if len(samples) != count or any(rows.ndim != 2 or rows.shape[1] != COLUMNS for rows in samples):
            raise GuardError(
                f"comparing boxes: expected `decode` to give {count} arrays of shape (k, {COLUMNS}), got shapes "
                f"{[rows.shape for rows in samples]}."
            )
        return samples

    def _agree_in_scale(self, name: str, fast: Arrays, safe: Arrays) -> float:
        """1 − how far the usual factor of the last samples is from 1: of one sample alone, rounding moves it too."""
        factors = self._factors.setdefault(name, deque(maxlen=_USUAL_FACTOR))
        factor = _factor_between(fast[name], safe[name])
        if factor is not None:
            factors.append(factor)
        return max(0.0, 1.0 - abs(median(factors) - 1.0)) if factors else 1.0

    def _relative_error(self, name: str, fast: NDArray[Any], safe: NDArray[Any]) -> float:
        """Over the usual size, lest an output that is nearly zero for once, as where nothing is detected, counts."""
        wanted = safe.astype(np.float64)
        with np.errstate(over="ignore"):
            error = root_mean_square(fast.astype(np.float64) - wanted)
        sizes = self._sizes.setdefault(name, deque(maxlen=_USUAL))
        sizes.append(root_mean_square(wanted))
        size = max(sizes[-1], median(sizes))
        if error == 0:
            return 0.0
        return error / size if size > 0 else sys.float_info.max


def kind_of(outputs: Arrays) -> str | None:
    """What outputs are by their form.

    `classes`: there is one float output (batch, classes) with two classes or more. `boxes`: there is one float output
    (n, k, 6) that holds boxes; None where they would be of that shape and are empty. Else `values`.
    """
    if len(outputs) == 1:
        (array,) = outputs.values()
        if is_float(array) and array.ndim == 2 and array.shape[1] > 1:
            return CLASSES
        if is_float(array) and looks_like_boxes(array):
            return BOXES if array.any() else None
    return VALUES


def _boxes_of(outputs: Arrays, count: int) -> Sequence[NDArray[Any]]:
    array = next((array for array in outputs.values() if is_float(array)), None)
    if array is None or array.ndim != 3 or array.shape[2] != COLUMNS:
        raise GuardError(
            "comparing boxes: expected a float output of shape (n, k, 6), a row being x1, y1, x2, y2, score, class. "
            "Give GuardOptions(decode=...), a function that makes such rows of the outputs."
        )
    return list(array.astype(np.float64))


def _share_of_classes(fast: NDArray[Any], safe: NDArray[Any]) -> float:
    return _share_of_equal(fast.argmax(axis=-1), safe.argmax(axis=-1)) if fast.size else 1.0


def _factor_between(fast: NDArray[Any], safe: NDArray[Any]) -> float | None:
    """What makes the fast outputs of the safe ones (least squares); None where all of those are zero."""
    largest = float(np.abs(safe.astype(np.float64)).max(initial=0.0))
    if largest == 0:
        return None
    wanted = safe.astype(np.float64) / largest
    with np.errstate(over="ignore"):
        return float((fast.astype(np.float64) / largest * wanted).sum() / np.square(wanted).sum())


def _share_of_equal(fast: NDArray[Any], safe: NDArray[Any]) -> float:
    return float(np.mean(fast == safe)) if fast.size else 1.0


def root_mean_square(array: NDArray[np.float64]) -> float:
    """0 for an empty array. It is scaled by its largest value first, lest squares overflow."""
    largest = float(np.abs(array).max(initial=0.0))
    if largest == 0 or not np.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.mean(np.square(array / largest))))


def agree_on_boxes(fast: Sequence[NDArray[Any]], safe: Sequence[NDArray[Any]]) -> float:
    """The mean overlap of each engine's boxes with those of the other, 0 to 1; 1 where neither has found one.

    A box with a score of at least 0.25 takes the box of the other engine that it overlaps most, of the same class, with
    a score of at least 0.125, that no better box has taken. It counts with its intersection over union, or with 0 if
    that is below 0.5.

    Args:
        fast, safe: for each sample rows (k, 6) of x1, y1, x2, y2, score and class; those with a class below 0 are
            padding.
    """
    if len(fast) != len(safe):
        return 0.0
    overlaps: list[float] = []
    for one, two in zip(fast, safe, strict=True):
        overlaps += _overlaps(one, two) + _overlaps(two, one)
    return float(np.mean(overlaps)) if overlaps else 1.0


def _overlaps(boxes: NDArray[Any], others: NDArray[Any]) -> list[float]:
    """The overlap of each good box with its partner, 0 where it has none."""
    boxes, others = _above(boxes, _LEAST_SCORE), _above(others, _LEAST_PARTNER_SCORE)
    shares = _intersections_over_unions(boxes, others)
    shares[(boxes[:, None, 5] != others[None, :, 5]) | (shares < _LEAST_OVERLAP)] = 0.0
    overlaps = []
    for row in shares:
        best = int(row.argmax()) if row.size else 0
        overlaps.append(float(row[best]) if row.size else 0.0)
        if row.size and row[best] > 0:
            shares[:, best] = 0.0
    return overlaps


def _above(boxes: NDArray[Any], least: float) -> NDArray[Any]:
    """The best first."""
    chosen = boxes[(boxes[:, 4] >= least) & (boxes[:, 5] >= 0)]
    return chosen[np.argsort(-chosen[:, 4], kind="stable")]


def _intersections_over_unions(boxes: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """(k, m) shares; two boxes without area that are the same overlap fully."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:4], others[None, :, 2:4])
    inner = np.maximum(high - low, 0.0).prod(axis=2)
    areas, other_areas = ((each[:, 2:4] - each[:, :2]).prod(axis=1) for each in (boxes, others))
    whole = areas[:, None] + other_areas[None, :] - inner
    same = (boxes[:, None, :4] == others[None, :, :4]).all(axis=2)
    return np.where(same, 1.0, np.divide(inner, whole, out=np.zeros_like(inner), where=whole > 0))


def looks_like_boxes(array: NDArray[Any]) -> bool:
    """Whether an output is (n, k, 6) with rows of x1 <= x2, y1 <= y2, a score from 0 to 1, and a whole class.

    Rows with a class below 0 are padding.
    """
    if array.ndim != 3 or array.shape[2] != COLUMNS:
        return False
    rows = array.reshape(-1, COLUMNS).astype(np.float64)
    rows = rows[rows[:, 5] >= 0]
    ordered = (rows[:, 0] <= rows[:, 2]) & (rows[:, 1] <= rows[:, 3])
    scored = (rows[:, 4] >= 0) & (rows[:, 4] <= 1) & (rows[:, 5] == np.floor(rows[:, 5]))
    return bool((ordered & scored).all())


def is_float(array: NDArray[Any]) -> bool:
    """Whether it holds floating-point numbers, those included that NumPy knows from `ml_dtypes` alone, as bfloat16."""
    return array.dtype.kind == "f" or (array.dtype.kind == "V" and array.dtype.name.startswith(("bfloat", "float")))


def all_finite(outputs: Arrays) -> bool:
    """Whether no output of numbers holds NaN or Inf."""
    numbers = (array for array in outputs.values() if is_float(array) or array.dtype.kind == "c")
    return all(bool(np.isfinite(array).all()) for array in numbers)
