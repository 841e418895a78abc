"""Data from Python: arrays by name, or batches of any form that a loader gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data.checks import LABELS, SEVERAL
from evaluators.data.dataset import Arrays
from search.errors import DataError
from search.references import short


def batches_of(data: Any, names: Sequence[str], what: str = "the data") -> Iterator[Arrays]:
    """Arrays by name of every batch.

    Args:
        data: a mapping from name to array, all samples at once; or an iterable of batches. A batch is a mapping, a pair
            (x, y), x alone, or one array for each input of the model and then the labels. `x` is an array, or a mapping
            or sequence of as many arrays as the model has inputs; `y` are the labels: an array, or a mapping from name
            to array where there are several. Arrays are what NumPy makes an array of, PyTorch tensors on any device
            included.
        names: of the model's inputs, in its order.
        what: the data are, for messages.

    Raises:
        DataError: it is something else.
    """
    if isinstance(data, Mapping):
        yield _read_mapping(data, f"reading {what}: ")
        return
    if not isinstance(data, Iterable):
        raise DataError(
            f"reading {what}: expected a path, arrays by name, or an iterable of batches, got {type(data).__name__}."
        )
    for number, batch in enumerate(data):
        yield _batch(batch, names, f"reading batch {number} of {what}: ")


def count_batches(data: Any) -> int | None:
    """How many batches there will be; None if nobody knows before they are read."""
    if isinstance(data, Mapping):
        return 1
    try:
        return len(data)
    except TypeError:
        return None


def count_samples(batch: Mapping[str, NDArray[Any]]) -> int:
    """Rows of the longest array of a batch."""
    return max((len(array) for array in batch.values()), default=0)


def _batch(batch: Any, names: Sequence[str], doing: str) -> Arrays:
    """Arrays by name of one batch; `doing` begins messages."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return {**_inputs(batch[0], names, doing), **_labels(batch[1], doing)}
    if isinstance(batch, tuple | list) and len(batch) == len(names) + 1:
        return {**_inputs(batch[:-1], names, doing), **_labels(batch[-1], doing)}
    if isinstance(batch, tuple | list):
        example = ", ".join(f"{name!r}: …" for name in (*names, LABELS))
        raise DataError(
            f"{doing}expected a mapping from name to array, a pair (x, y), x, or one array for each of the inputs "
            f"{', '.join(names)} and the labels, got {len(batch)} values. Give a dict: {{{example}}}."
        )
    return _inputs(batch, names, doing)


def _inputs(x: Any, names: Sequence[str], doing: str) -> Arrays:
    """The model's inputs of a batch, and whatever else a mapping names."""
    if isinstance(x, Mapping):
        return _read_mapping(x, doing)
    values = list(x) if isinstance(x, tuple | list) else [x]
    if len(values) != len(names):
        raise DataError(
            f"{doing}expected {len(names)} arrays, for the model's inputs {', '.join(names)}, got {len(values)}. Name "
            "them: give a dict from name to array."
        )
    return {name: _array(value, name, doing) for name, value in zip(names, values, strict=True)}


def _labels(y: Any, doing: str) -> Arrays:
    """One array of labels, or of a mapping one for each of its names."""
    if isinstance(y, Mapping):
        return {f"{SEVERAL}{name}": _array(value, f"{SEVERAL}{name}", doing) for name, value in y.items()}
    return {LABELS: _array(y, LABELS, doing)}


def _read_mapping(arrays: Mapping[Any, Any], doing: str) -> Arrays:
    return {str(name): _array(value, str(name), doing) for name, value in arrays.items()}


def _array(value: Any, name: str, doing: str) -> NDArray[Any]:
    """An array of plain numbers, or of texts."""
    if hasattr(value, "detach"):  # a tensor of PyTorch, which may be on a GPU or know its gradient
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        if "inhomogeneous" in str(error):
            raise DataError(
                f"{doing}{name!r} has rows of different lengths: expected rows of one length in a batch. Pad texts to "
                "one length, for example with tokenizer(texts, padding=True), and give images one size."
            ) from error
        raise DataError(f"{doing}{name!r} cannot be read as an array: {short(error)}.") from error
    if array.dtype.hasobject or not array.ndim:
        raise DataError(
            f"{doing}{name!r}: expected an array with one row per sample, got {type(value).__name__}. An input that is "
            "the same for all samples is given by --input-value NAME=VALUE, and left out here."
        )
    return array
