"""Labels as metrics receive them: one array, or several by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data.checks import LABELS, SEVERAL


def label_names(arrays: Iterable[str]) -> tuple[str, ...]:
    """Which arrays are labels: `labels`, or those whose names begin with `labels.`."""
    return tuple(sorted(name for name in arrays if name == LABELS or name.startswith(SEVERAL)))


def join_labels(arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Labels of some samples in one array.

    Args:
        arrays: those that `label_names` names, each (n, …).

    Returns:
        The array `labels`, (n, …); or where there are several, (n,) with one field for each: of `labels.price` the
        field `price`, so that `joined["price"]` is (n, …).
    """
    if LABELS in arrays:
        return arrays[LABELS]
    fields = [(name.removeprefix(SEVERAL), array.dtype, array.shape[1:]) for name, array in arrays.items()]
    joined = np.empty(len(next(iter(arrays.values()))), fields)
    for name, array in arrays.items():
        joined[name.removeprefix(SEVERAL)] = array
    return joined
