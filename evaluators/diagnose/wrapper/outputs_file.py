"""The file with the outputs of the user's own program: its samples, and whether they can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data.arrays import npz_shard
from evaluators.data.reading.stored_arrays import in_memory
from evaluators.diagnose.wrapper.fault import LEAST_SAMPLES
from evaluators.diagnose.wrapper.permutations import has_same_axes
from search.errors import DataError

INDICES = "indices"  # array that says which sample each row is of

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class OwnOutputs:
    """Outputs of the user's own program.

    Attributes:
        arrays: output name → (samples, …), of numbers, all finite.
        indices: (samples,) which sample of the data each row is of.
    """

    arrays: Arrays
    indices: NDArray[np.int64]


def read_outputs(path: Path, names: Sequence[str], samples: int, most: int) -> OwnOutputs:
    """Read a `.npz` file of outputs by name.

    An array `indices`, if there is one and no output is called so, says which sample each row is of; else row i is of
    sample i.

    Args:
        names: outputs that have to be there; arrays by other names are left alone.
        samples: that the data have.
        most: rows to take, the first ones.

    Raises:
        DataError: no such archive, an output is missing, or its rows are too few, are not those of the data or of the
            other outputs, or hold what is no finite number.
    """
    archive = in_memory(npz_shard(path).read())
    doing = f"comparing the outputs in {path}"
    missing = [name for name in names if name not in archive]
    if missing:
        raise DataError(
            f"{doing}: expected an array for each output of the model, {_list_names(names)}; there is none for "
            f"{_list_names(missing)}, but for {_list_names(archive) or 'nothing'}. Save them by these names."
        )
    arrays = {name: archive[name] for name in names}
    rows = _check_rows(arrays, doing)
    indices = _read_indices(archive.get(INDICES) if INDICES not in names else None, rows, samples, doing)
    for name, array in arrays.items():
        _check_numbers(name, array, doing)
    return OwnOutputs({name: array[:most] for name, array in arrays.items()}, indices[:most])


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def check_shapes(mine: Arrays, expected: Arrays, path: Path) -> None:
    """Refuse outputs whose shape is neither theirs, nor with the axes in another order, nor another output's.

    Raises:
        DataError: naming the output, its shape and the one that was expected.
    """
    for name, array in mine.items():
        wanted = expected[name].shape
        others = [other.shape for other in expected.values()]
        if array.shape not in others and not has_same_axes(array.shape, wanted):
            raise DataError(
                f"comparing the outputs in {path}: output {name!r} has shape {array.shape}, expected {wanted}, or the "
                "same axes in another order. Save it as the model gives it, one row per sample, before any "
                "post-processing."
            )


def _check_rows(arrays: Arrays, doing: str) -> int:
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    rows = next(iter(counts.values()))
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise DataError(
            f"{doing}: expected as many rows in each output, one per sample, got {counts_text}. Save the same ones."
        )
    if rows < LEAST_SAMPLES:
        raise DataError(
            f"{doing}: expected at least {LEAST_SAMPLES} samples, got {rows}; of fewer, chance explains too much. Run "
            "your program on more samples."
        )
    return rows


def _read_indices(indices: NDArray[Any] | None, rows: int, samples: int, doing: str) -> NDArray[np.int64]:
    if indices is None:
        if rows > samples:
            raise DataError(
                f"{doing}: expected at most {samples} rows, one per sample of the data in their order, got {rows}. Add "
                f"an array {INDICES!r} where rows are in another order."
            )
        return np.arange(rows)
    if indices.shape != (rows,) or indices.dtype.kind not in "iu":
        raise DataError(
            f"{doing}: expected {INDICES!r} to name the sample of each row, shape ({rows},) of integers, got "
            f"{indices.dtype} of shape {indices.shape}."
        )
    outside = indices[(indices < 0) | (indices >= samples)]
    if outside.size:
        raise DataError(f"{doing}: {INDICES!r} names sample {outside[0]}; expected 0 to {samples - 1}, as in the data.")
    return indices.astype(np.int64)


def _check_numbers(name: str, array: NDArray[Any], doing: str) -> None:
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{doing}: output {name!r} has type {array.dtype}; expected numbers. Save it as an array of those."
        )
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise DataError(
            f"{doing}: output {name!r} holds {len(bad)} NaN or infinite values, the first in row {bad[0][0]}; expected "
            "finite numbers. Find where your program makes them: the wrong input type or an unset buffer is usual."
        )
