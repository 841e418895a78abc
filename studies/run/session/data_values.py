"""Inputs that are the same for all samples, as a sample rate is: their values are taken from the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data.reading.stored_arrays import file_name, visible_files
from search.errors import DataError
from search.graph.onnx_file import Dims, read_input_shapes
from search.graph.shapes import input_names
from studies.options.config import SearchConfig

_KINDS = "fiub"  # of numbers, as NumPy names them


def with_values_of_data(config: SearchConfig) -> SearchConfig:
    """The configuration with the value of each input without a batch axis that `.npz` or `.npy` files have one of.

    Such an input is a scalar, or of one number where there are several samples. It becomes a constant of the model, as
    by `--input-value`.

    Raises:
        ModelError: the model cannot be read.
        DataError: the data have several values of a scalar.
    """
    shapes = read_input_shapes(Path(config.model), config.batch)
    given = input_names(config.input_values) | {shape.name for shape in config.shapes}
    several = any(_first_size(dims, config.batch) != 1 for dims in shapes.values() if dims)
    found = []
    for name, dims in shapes.items():
        if name in given or not (dims == () or (dims == (1,) and several)):
            continue
        values = _values_of(name, config)
        if len(values) == 1:
            found.append(f"{name}={_text_of(values[0])}")
        elif len(values) > 1 and dims == ():
            raise DataError(
                f"data {config.data!r}: expected one value of {name!r}, which has no axis of samples in the model, got "
                f"{len(values)}, {_text_of(values[0])} and {_text_of(values[1])} for example. Give data with one of "
                "them, or export the model with a batch axis there."
            )
    return replace(config, input_values=(*config.input_values, *found)) if found else config


def values_text(config: SearchConfig, given: SearchConfig) -> str:
    """Which values were taken from the data, as a sentence; empty where none were."""
    added = [text for text in config.input_values if text not in given.input_values]
    return f"{', '.join(added)} as the data have it for all samples, as a constant of the model" if added else ""


def _first_size(dims: Dims, batch: int | None) -> int | None:
    return dims[0] if isinstance(dims[0], int) else batch


def _values_of(name: str, config: SearchConfig) -> list[Any]:
    """The different values of an array, over all data; none where no file has it."""
    sources = [source for source in (config.data, config.calibration_data, config.final_data) if source]
    values = [np.unique(array) for source in sources for array in _arrays_of(name, Path(source))]
    numbers = [each for each in values if each.dtype.kind in _KINDS]
    return list(np.unique(np.concatenate(numbers))) if numbers else []


def _arrays_of(name: str, source: Path) -> Iterator[NDArray[Any]]:
    """The array of that name in each file; what cannot be read is refused when the data are opened."""
    files = visible_files(source, "*.npz") if source.is_dir() else [source] if source.suffix == ".npz" else []
    single = source / file_name(name)
    try:
        for file in files:
            with np.load(file, allow_pickle=False) as archive:
                members: Mapping[str, NDArray[Any]] = archive
                if name in members:
                    yield members[name]
        if source.is_dir() and single.is_file():
            yield np.load(single, allow_pickle=False)
    except Exception:
        return


def _text_of(value: Any) -> str:
    return repr(float(value)) if value.dtype.kind == "f" else str(int(value))
