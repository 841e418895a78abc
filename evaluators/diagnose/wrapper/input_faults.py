"""Finding a fault at the inputs of the user's own program: the float model is run on inputs that have it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.diagnose.wrapper.fault import LEAST_DB, InputFault, level_db

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays], Arrays]
Change = Callable[[NDArray[Any]], NDArray[Any]]

CLEARLY_DB = 6.0  # that the cause has to explain more than every other
MOST_BATCHES = 4
_MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)
_CROP = 224 / 256
_CHANNELS = (1, 3, 4)


def find_input_fault(
    mine: Arrays, batches: Sequence[tuple[Arrays, int]], runs: Sequence[Run], threshold_db: float
) -> InputFault | None:
    """The fault of one input that explains the outputs, and clearly more than every other one; None if none does.

    Args:
        mine: outputs by name, (samples, …), of the samples of the batches in this order.
        batches: inputs by name, and how many of their rows are samples.
        runs: engine and float model, from inputs to outputs by name; the nearer counts.
        threshold_db: by how much the SQNR has to rise.
    """
    before = _worst_level(mine, batches, runs, lambda inputs: inputs)
    faults = []
    for name in batches[0][0]:
        for cause, change in _changes(batches[0][0][name]):
            level = _worst_level(mine, batches, runs, _with_input(name, change))
            faults.append(InputFault(name, cause, before, level))
    faults.sort(key=lambda fault: -fault.after_db)
    if not faults or faults[0].after_db < max(before + threshold_db, LEAST_DB):
        return None
    clear = len(faults) < 2 or faults[0].after_db >= faults[1].after_db + CLEARLY_DB
    return faults[0] if clear else None


def _with_input(name: str, change: Change) -> Callable[[Arrays], Arrays]:
    return lambda inputs: {**inputs, name: np.ascontiguousarray(change(inputs[name]), dtype=inputs[name].dtype)}


def _changes(array: NDArray[Any]) -> Iterator[tuple[str, Change]]:
    """The usual faults of an input by their words; those of pictures for images alone, in either layout."""
    if array.dtype.kind != "f":
        return
    yield "it is divided by 255 once more than it should be", lambda x: x / 255
    yield "it is not divided by 255", lambda x: x * 255
    yield "it is scaled to -1 to 1 where 0 to 1 is expected", lambda x: x * 2 - 1
    yield "it is scaled to 0 to 1 where -1 to 1 is expected", lambda x: (x + 1) / 2
    yield "it is left at 0 to 255 where -1 to 1 is expected", lambda x: (x + 1) * 127.5
    if array.ndim != 4:
        return
    if array.shape[1] in _CHANNELS:
        yield from _picture_changes(array.shape[1])
        if array.shape[1] > 1:
            yield _memory("NHWC", "NCHW"), _read_channels_last
        if array.shape[1] == 3:
            both = f"its channels are in the other order, BGR for RGB, and {_memory('NHWC', 'NCHW')}"
            yield both, lambda x: _read_channels_last(x[:, ::-1])
    elif array.shape[3] in _CHANNELS:
        yield from ((cause, _with_channels_last(change)) for cause, change in _picture_changes(array.shape[3]))
        if array.shape[3] > 1:
            yield _memory("NCHW", "NHWC"), lambda x: x.transpose(0, 3, 1, 2).reshape(x.shape)


def _picture_changes(channels: int) -> Iterator[tuple[str, Change]]:
    """Faults of pictures in arrays (n, channels, height, width), each with what mends it."""
    if channels == 3:
        yield "its channels are in the other order, BGR for RGB", lambda x: x[:, ::-1]
        yield from _normalization_changes()
    yield "it is mirrored, left for right", lambda x: x[:, :, :, ::-1]
    yield "it is upside down", lambda x: x[:, :, ::-1]
    yield "its height and width are swapped", lambda x: x.transpose(0, 1, 3, 2).reshape(x.shape)
    yield "its middle is cut out (224 of 256) and enlarged", _cut_middle


def _normalization_changes() -> Iterator[tuple[str, Change]]:
    """Faults in applying mean and deviation of ImageNet to pictures, each with what mends it."""
    both = "mean and deviation (those of ImageNet)"
    yield f"{both} are not applied", _plain
    yield f"{both} are not applied, nor is it divided by 255", lambda x: _plain(x) * 255
    yield f"it is not divided by 255 before {both} are applied", lambda x: _normalize(_plain(x) * 255)
    yield f"{both} are applied twice, or where none are wanted", _normalize
    yield f"{both} are applied where -1 to 1 is expected", lambda x: _normalize((x + 1) / 2)
    yield f"it is scaled to -1 to 1 where {both} are expected", lambda x: _plain(x) * 2 - 1
    yield "the deviation (that of ImageNet) is not applied, but the mean is", lambda x: x * _DEVIATION
    swapped = f"its channels are in the other order, BGR for RGB, and {both} are applied in the order RGB"
    yield swapped, lambda x: _normalize(_plain(x)[:, ::-1])


def _with_channels_last(change: Change) -> Change:
    return lambda x: change(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)


def _memory(layout: str, expected: str) -> str:
    return f"its memory is in the layout {layout} and read as {expected}"


def _read_channels_last(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array.transpose(0, 2, 3, 1).reshape(array.shape))


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array * _DEVIATION + _MEAN)


def _normalize(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray((array - _MEAN) / _DEVIATION)


def _cut_middle(array: NDArray[Any]) -> NDArray[Any]:
    """The middle of a picture, enlarged to its size by linear interpolation."""
    for axis in (2, 3):
        size = array.shape[axis]
        places = np.clip((np.arange(size) + 0.5 - size / 2) * _CROP + size / 2 - 0.5, 0, size - 1)
        low = np.floor(places).astype(np.int64)
        high = np.minimum(low + 1, size - 1)
        shares = (places - low).reshape([-1 if each == axis else 1 for each in range(4)])
        array = array.take(low, axis) * (1 - shares) + array.take(high, axis) * shares
    return array


def _worst_level(
    mine: Arrays, batches: Sequence[tuple[Arrays, int]], runs: Sequence[Run], change: Callable[[Arrays], Arrays]
) -> float:
    """SQNR in dB of the worst output against those of changed inputs, by the run that is nearer."""
    return max(_level(mine, batches, run, change) for run in runs)


def _level(mine: Arrays, batches: Sequence[tuple[Arrays, int]], run: Run, change: Callable[[Arrays], Arrays]) -> float:
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in mine}
    for inputs, count in batches:
        outputs = run(change(inputs))
        for name, some in parts.items():
            some.append(outputs[name][:count])
    levels = []
    with np.errstate(invalid="ignore", over="ignore"):
        for name, some in parts.items():
            whole = np.concatenate(some)
            own = mine[name][: len(whole)]
            levels.append(level_db(own, whole) if own.shape == whole.shape else -math.inf)
    return min(levels)
