"""The form of labels in messages: their shape for any number of samples, and how to make class numbers of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def rows_shape(shape: Sequence[int]) -> str:
    """The shape of labels in words, without how many samples there happen to be: `(n,)`, `(n, 10)`."""
    return "(" + ", ".join(["n", *map(str, shape[1:])]) + (",)" if len(shape) == 1 else ")")


def class_number_advice(labels: NDArray[Any], axes: int = 1, classes: int | None = None) -> str:
    """How to make class numbers of labels that have another form; empty if that is not known.

    Args:
        labels: (n, …), with the classes along the second or the last axis where there is one axis too many.
        axes: how many axes class numbers have: 1 for a number per sample, 3 for a number per pixel.
        classes: how many there are, which tells both axes apart.
    """
    if labels.ndim == axes and labels.dtype.kind in "fb":
        return 'Convert them with .astype("int64").'
    if labels.ndim == axes and labels.dtype.kind in "US":
        return "Convert each name to the number of its class in the model's output."
    if labels.ndim != axes + 1:
        return ""
    last = labels.ndim > 2 and _classes_are_last(labels, classes)
    size, where = (labels.shape[-1], "[..., 0]") if last else (labels.shape[1], "[:, 0]")
    if size > 1:
        return f"If they are one-hot or probabilities, convert them with .argmax({-1 if last else 1})."
    if labels.dtype.kind in "iu":
        return f"Remove the {'last' if last else 'second'} axis with {where}."
    return f'Convert them with {where}.astype("int64").'


def _classes_are_last(labels: NDArray[Any], classes: int | None) -> bool:
    return labels.shape[1] not in (1, classes) and labels.shape[-1] in (1, classes)


def are_masks(labels: NDArray[Any] | None, shape: Sequence[int]) -> bool:
    """Whether labels are class numbers of the positions of an output, (n, classes, height, width)."""
    return labels is not None and labels.dtype.kind in "iu" and labels.shape[1:] == tuple(shape[2:])


def are_masks_in_another_form(labels: NDArray[Any] | None, shape: Sequence[int]) -> bool:
    """Whether labels mean such class numbers, but are one-hot, have one axis too many, or are floats.

    Labels of the output's own shape may also be values, for example of an image. They are one-hot if each position has
    a one and else zeros.
    """
    if labels is None or labels.dtype.names or labels.dtype.kind not in "fiub":
        return False
    classes, size = shape[1], tuple(shape[2:])
    if labels.shape[1:] == size:
        return labels.dtype.kind in "fb" and bool(np.isin(labels, [*range(classes), 255]).all())
    if labels.shape[1:] in ((1, *size), (*size, 1)):
        return labels.dtype.kind in "iu"
    if labels.shape[1:] not in ((classes, *size), (*size, classes)):
        return False
    sums = labels.sum(axis=-1 if _classes_are_last(labels, classes) else 1)
    return bool(np.isin(labels, [0, 1]).all() and (sums == 1).all())
