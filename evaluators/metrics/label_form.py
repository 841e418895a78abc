"""The form of labels in messages: their shape for any number of samples, and how to make class numbers of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray


def rows_shape(shape: Sequence[int]) -> str:
    """The shape of labels in words, without how many samples there happen to be: `(n,)`, `(n, 10)`."""
    return "(" + ", ".join(["n", *map(str, shape[1:])]) + (",)" if len(shape) == 1 else ")")


def class_number_advice(labels: NDArray[Any], axes: int = 1) -> str:
    """How to make class numbers of labels that have another form; empty if that is not known.

    Args:
        labels: (n, …), with the classes along the second axis where there are too many axes.
        axes: how many axes class numbers have: 1 for a number per sample, 3 for a number per pixel.
    """
    if labels.ndim == axes and labels.dtype.kind in "fb":
        return 'Convert them with .astype("int64").'
    if labels.ndim != axes + 1:
        return ""
    if labels.shape[1] > 1:
        return "If they are one-hot or probabilities, convert them with .argmax(1)."
    if labels.dtype.kind in "iu":
        return "Remove the second axis with [:, 0]."
    return 'Convert them with [:, 0].astype("int64").'
