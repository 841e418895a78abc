"""Finding the shapes of samples before the model is loaded, which may take its dynamic sizes from them."""

from __future__ import annotations

import contextlib
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluators.data.reading.read_source import bind_function
from evaluators.data.reading.stored_arrays import read_folder, read_npy, read_npz_shapes
from evaluators.data.reading.user_batches import batches_of
from search.errors import DataError
from search.references import names_function, short

Shape = tuple[int, ...]


def read_row_shapes(source: str, names: Sequence[str]) -> Mapping[str, Shape]:
    """The shape of one sample of each array, without the axis of samples.

    Args:
        source: of arrays, as `open_data` takes it. Of a function the first batch is read; of a folder of `.npz` files
            the first file.
        names: of the model's inputs.

    Returns:
        Name → shape; empty for image folders, and for what cannot be read, which is refused when it is opened.

    Raises:
        DataError: a function fails, or gives no batches.
    """
    path = Path(source)
    if path.exists():
        try:
            return _of_files(path, names)
        except (DataError, OSError, ValueError, EOFError, zipfile.BadZipFile):
            return {}
    return _of_function(source, names) if names_function(source) else {}


def _of_files(path: Path, names: Sequence[str]) -> Mapping[str, Shape]:
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if path.suffix == ".npy":
        return {names[0]: read_npy(path).shape[1:]} if len(names) == 1 else {}
    if files:
        return {name: shape[1:] for name, shape in read_npz_shapes(files[0]).items()}
    return {name: array.shape[1:] for name, array in read_folder(path).items()}


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
