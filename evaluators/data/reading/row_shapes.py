"""Finding the shapes of samples before the model is loaded, which may take its dynamic sizes from them."""

from __future__ import annotations

import contextlib
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluators.data.reading.read_source import bind_function
from evaluators.data.reading.stored_arrays import (
    form_folders,
    form_of,
    read_folder,
    read_npy,
    read_npz_shapes,
    visible_files,
)
from evaluators.data.reading.user_batches import batches_of
from search.errors import DataError
from search.references import names_function, short

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Span:
    """The smallest and the largest size along each axis of a sample, over the samples of some data."""

    least: Shape
    most: Shape

    def __or__(self, other: Span) -> Span:
        """Over the samples of both, which have as many axes."""
        least = tuple(map(min, self.least, other.least))
        return Span(least, tuple(map(max, self.most, other.most)))


def read_row_spans(source: str, names: Sequence[str]) -> Mapping[str, Span]:
    """How large the samples of each array are, without the axis of samples.

    Args:
        source: of arrays, as `open_data` takes it. Of a function only the first batch is read.
        names: of the model's inputs.

    Returns:
        Name → span; empty for image folders, and for what cannot be read, which is refused when it is opened.

    Raises:
        DataError: a function fails, or gives no batches.
    """
    path = Path(source)
    if path.exists():
        try:
            return join_spans(_of_files(path, names))
        except (DataError, OSError, ValueError, EOFError, zipfile.BadZipFile):
            return {}
    return join_spans([_of_function(source, names)]) if names_function(source) else {}


def join_spans(parts: Iterable[Mapping[str, Shape]]) -> Mapping[str, Span]:
    """The spans of samples whose shapes are given part by part; of arrays that have as many axes in each."""
    spans: dict[str, Span] = {}
    for part in parts:
        for name, shape in part.items():
            span = spans.setdefault(name, Span(shape, shape))
            if len(span.least) != len(shape):
                return {}  # which is refused when the data are opened
            spans[name] = span | Span(shape, shape)
    return spans


def _of_files(path: Path, names: Sequence[str]) -> list[Mapping[str, Shape]]:
    """Shapes of a row of each array, of every part of the data."""
    files = visible_files(path, "*.npz") if path.is_dir() else [path]
    if path.suffix == ".npy":
        return [{names[0]: read_npy(path).shape[1:]}] if len(names) == 1 else []
    if files:
        return [{name: shape[1:] for name, shape in read_npz_shapes(file).items()} for file in files]
    return [dict(form_of(read_folder(folder))) for folder in form_folders(path)]


def _of_function(source: str, names: Sequence[str]) -> Mapping[str, Shape]:
    function = bind_function(source)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            batch = next(batches_of(function(), names, f"data {source!r}"), None)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"data {source!r}: the function failed with {short(error)}") from error
    return {name: array.shape[1:] for name, array in (batch or {}).items()}
