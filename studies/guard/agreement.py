"""The agreement of the outputs of two engines on one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.guard.options import AGREEMENT, COSINE

Arrays = Mapping[str, NDArray[Any]]


def looks_like_classes(outputs: Arrays) -> bool:
    """Whether there is one float output (batch, classes) with two classes or more."""
    arrays = list(outputs.values())
    return len(arrays) == 1 and arrays[0].dtype.kind == "f" and arrays[0].ndim == 2 and arrays[0].shape[1] > 1


def default_threshold(classes: bool) -> float:
    """Least mean agreement of a window where the user names none."""
    return AGREEMENT if classes else COSINE


def agreement(fast: Arrays, safe: Arrays, *, classes: bool) -> float:
    """Agreement of two answers to one request, at most 1.

    With `classes` the share of rows with the same largest score along the last axis, else the least cosine of all float
    outputs. Fast outputs that are not finite, or of another shape, agree 0; empty ones of one shape agree. Safe outputs
    have to be finite.
    """
    if fast.keys() != safe.keys():
        return 0.0
    pairs = [(fast[name], safe[name]) for name in safe if safe[name].dtype.kind == "f"]
    pairs = pairs or [(fast[name], safe[name]) for name in safe]
    if any(one.shape != two.shape or not np.isfinite(one).all() for one, two in pairs):
        return 0.0
    return min((_classes(*pair) if classes else _cosine(*pair)) for pair in pairs)


def _classes(fast: NDArray[Any], safe: NDArray[Any]) -> float:
    return float((fast.argmax(axis=-1) == safe.argmax(axis=-1)).mean()) if fast.size else 1.0


def _cosine(fast: NDArray[Any], safe: NDArray[Any]) -> float:
    one, two = _unit(fast), _unit(safe)
    if not one.any() or not two.any():
        return float(not one.any() and not two.any())
    return min(1.0, float(one @ two))


def _unit(array: NDArray[Any]) -> NDArray[np.float64]:
    """The array as a vector of length 1, or zeros. It is scaled by its largest value first, lest squares overflow."""
    vector = array.ravel().astype(np.float64)
    largest = np.abs(vector).max(initial=0.0)
    if largest == 0:
        return vector
    vector /= largest
    return np.asarray(vector / np.linalg.norm(vector))


def all_finite(outputs: Arrays) -> bool:
    """Whether no float output holds NaN or Inf."""
    return all(bool(np.isfinite(array).all()) for array in outputs.values() if array.dtype.kind == "f")
