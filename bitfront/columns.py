"""Choosing the columns of a Hugging Face data set, or of batches that are dicts, that are a model's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evaluators.data.checks import LABELS, label_like
from search.errors import DataError
from search.references import short

Inputs = Sequence[str] | Mapping[str, str]

# What the package hands out as int64 or float32 and what fits in again without loss.
_NARROWED = frozenset("int8 int16 int32 uint8 uint16 uint32 uint64 float16".split())
_ROWS = 32  # of a Hugging Face data set, read at a time
_LABEL_COLUMNS = (LABELS, "label")  # what most data sets call them


def take_columns(data: Any, inputs: Inputs | None) -> Any:
    """Give the data with only the chosen columns, as `batches_of` reads them; without a choice, the data themselves.

    Args:
        data: the data that the user gives.
        inputs: the columns that the model reads: a list, where each column has the name of its input; one column, for
            a model with one input; or a mapping from input to column, in which `labels` stands for the labels. If the
            mapping has no labels, they are read from a column `labels` or `label`.

    Raises:
        DataError: the columns cannot be chosen.
    """
    if inputs is None and not _is_hugging_face(data):
        return data
    if _is_split(data):
        raise DataError(
            f"reading the data: expected one data set, got the splits {', '.join(map(str, data))}. Give one of them: "
            f"data[{next(iter(data))!r}]."
        )
    if not inputs:
        raise DataError(
            "reading a data set of Hugging Face: expected inputs, the columns that the model reads. Its columns are "
            f"{_list_columns(_columns_of(data))}: give inputs=[…]."
        )
    if isinstance(data, str | Mapping):
        raise DataError(f"inputs: expected a data set of Hugging Face or batches, got {type(data).__name__}.")
    return _Columns(data, _name_columns(inputs))


def unread_labels_text(data: Any) -> str:
    """A warning of a column that looks like the labels and is not read as them; empty if there is none.

    Args:
        data: as `take_columns` gives them.
    """
    column = data.unread_labels if isinstance(data, _Columns) else ""
    if not column:
        return ""
    return (
        f"WARNING: no labels are read. If the column {column!r} holds them, name it in a mapping: "
        f"inputs={{…, {LABELS!r}: {column!r}}}"
    )


class _Columns:
    """Batches with the chosen columns, under the names of the model's inputs; they can be read as often as the data."""

    def __init__(self, data: Any, chosen: Mapping[str, str]) -> None:
        self._data = data
        self._chosen = chosen
        known = [] if _is_transformed(data) else _columns_of(data)
        missing = [column for column in chosen.values() if known and column not in known]
        if missing:
            raise _no_column(missing[0], known)

    @property
    def unread_labels(self) -> str:
        """A column that looks like the labels, where none is read as them; empty if there is none, or nobody knows."""
        known = _columns_of(self._data)
        if LABELS in self._chosen or any(name in known for name in _LABEL_COLUMNS):
            return ""
        return label_like(name for name in known if name not in self._chosen.values())

    def __len__(self) -> int:
        """The number of batches; raises TypeError if the data do not know it."""
        count = len(self._data)
        return -(-count // _ROWS) if _is_hugging_face(self._data) else count

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._batches()):
            if not isinstance(batch, Mapping):
                raise DataError(
                    f"reading batch {number} of the data: inputs chooses from a dict of columns, got "
                    f"{type(batch).__name__}. Leave inputs out, or let batches be dicts."
                )
            yield self._choose(batch)

    def _batches(self) -> Iterator[Any]:
        if not _is_hugging_face(self._data):
            yield from self._data
            return
        data = self._data
        if _is_transformed(data):
            yield from data.iter(batch_size=_ROWS)
            return
        data = data.select_columns(self._read_columns()).with_format("numpy")
        kinds = {name: _kind_of(feature) for name, feature in (getattr(data, "features", None) or {}).items()}
        for batch in data.iter(batch_size=_ROWS):
            yield {name: _as_declared(column, kinds.get(name, "")) for name, column in batch.items()}

    def _read_columns(self) -> list[str]:
        known = _columns_of(self._data)
        return list(dict.fromkeys([*self._chosen.values(), *(name for name in _LABEL_COLUMNS if name in known)]))

    def _choose(self, batch: Mapping[str, Any]) -> Any:
        """Arrays by input name; for a single column x, alone or in a pair with its labels."""
        arrays = {name: _column(batch, column) for name, column in self._chosen.items()}
        label = next((name for name in _LABEL_COLUMNS if name in batch), None)
        if LABELS not in arrays and label is not None and label not in self._chosen.values():
            arrays[LABELS] = _column(batch, label)
        if "" not in arrays:
            return arrays
        return (arrays[""], arrays[LABELS]) if LABELS in arrays else arrays[""]


def _name_columns(inputs: Inputs) -> dict[str, str]:
    """The column of each input; a single column that was given alone has no input name yet."""
    if isinstance(inputs, Mapping):
        return {str(name): str(column) for name, column in inputs.items()}
    if isinstance(inputs, str):
        raise DataError(f"inputs: expected a list of columns, got {inputs!r}. Give inputs=[{inputs!r}].")
    columns = [str(column) for column in inputs]
    return {"": columns[0]} if len(columns) == 1 else {column: column for column in columns}


def _column(batch: Mapping[str, Any], column: str) -> Any:
    if column not in batch:
        raise _no_column(column, [str(name) for name in batch])
    value = batch[column]
    if hasattr(value, "detach"):  # a tensor of PyTorch, which is read later
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"reading the column {column!r}: {short(error)}. {_ADVICE}") from error
    if array.dtype.hasobject:
        raise DataError(f"reading the column {column!r}: expected numbers in rows of one shape. {_ADVICE}")
    return array


_ADVICE = "Pad its rows to one length, or turn them into arrays with map()."


def _no_column(column: str, known: Sequence[str]) -> DataError:
    return DataError(f"inputs: expected columns of the data, got {column!r}. There are {_list_columns(known)}.")


def _kind_of(feature: Any) -> str:
    """The dtype that a column is declared with, whatever it is nested in; empty if it has none."""
    while (inner := getattr(feature, "feature", None)) is not None:
        feature = inner
    return str(getattr(feature, "dtype", ""))


def _as_declared(column: Any, kind: str) -> Any:
    """The numbers of a column in its own type: reading as NumPy makes int64 and float32 of all that are narrower."""
    if kind in _NARROWED and isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        return column.astype(kind)
    return column


def _is_hugging_face(data: Any) -> bool:
    """Whether data have the methods of `datasets.Dataset` or `datasets.IterableDataset`, or are splits of them."""
    methods = ("iter", "select_columns", "with_format")
    return all(callable(getattr(data, name, None)) for name in methods) or _is_split(data)


def _is_split(data: Any) -> bool:
    """Whether data are a `datasets.DatasetDict`."""
    return isinstance(data, Mapping) and bool(data) and all(hasattr(each, "with_format") for each in data.values())


def _is_transformed(data: Any) -> bool:
    """Whether a transform of the user makes the columns and their arrays."""
    return bool((getattr(data, "format", None) or {}).get("type") == "custom")


def _columns_of(data: Any) -> list[str]:
    """Names of the columns; empty if they are not known before the data are read."""
    return [str(name) for name in getattr(data, "column_names", None) or ()]


def _list_columns(columns: Sequence[str]) -> str:
    return ", ".join(columns) or "not known"
