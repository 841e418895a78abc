"""Choosing calibration samples by the float model or plain INT8, and the samples that decide about steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators import data
from evaluators.data import Batch, Dataset
from evaluators.engine import Runner
from evaluators.measure.output_noise import compared_names, row_squares, split_rows
from evaluators.recovery.int8.sample_errors import USUAL, power_weights, sample_powers
from search.errors import ConfigError
from search.space.rules import SampleChoice

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_FEATURES = 64  # that outputs are projected to, at most
_MOST_WILD = 0.2  # of the samples: where more are wild they are no garbage


def choose_samples(
    choice: SampleChoice,
    indices: Indices,
    batches: Iterable[Batch],
    exact: Runner,
    open_int8: Callable[[], Runner],
) -> Indices:
    """The chosen among some samples, in the order of the data; deterministic.

    Args:
        batches: the samples at `indices`, in this order.
        exact: the float model.
        open_int8: all INT8, calibrated on all samples; opened for `worst` alone.

    Raises:
        ConfigError: `confident` of a model whose first output is no scores of classes.
        EvaluatorError: ONNX Runtime cannot run the model.
    """
    if choice.count >= len(indices):
        return indices
    if choice.kind == "diverse":
        # The features of all samples; those of small outputs have zeros where larger ones have values.
        parts = [_features(exact.run(batch.inputs), batch) for batch in batches]
        width = max(part.shape[1] for part in parts)
        features = np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts])
        places = farthest_first(features, choice.count)
    else:
        rough = open_int8() if choice.kind == "worst" else None
        scores = np.concatenate([_scores(exact.run(batch.inputs), batch, rough) for batch in batches])
        places = np.argsort(-scores, kind="stable")[: choice.count]
    return np.sort(indices[places])


def usual_samples(dataset: Dataset, indices: Indices, batch: int) -> Indices:
    """Leave out samples that are garbage by their amplitude: wild, or not finite, in some float input.

    All are kept where more than a fifth is garbage by that: then it is part of what the model is for.

    Args:
        batch: how many samples are read at once.
    """
    powers: dict[str, list[Floats]] = {}
    for some in data.batches(dataset, indices, batch):
        for name, array in some.inputs.items():
            if array.dtype.kind == "f":
                rows = array[: some.count]
                powers.setdefault(name, []).append(sample_powers(rows.reshape(len(rows), 1, -1)))
    usual = np.ones(len(indices), bool)
    for parts in powers.values():
        usual &= power_weights(np.concatenate(parts)) >= USUAL
    return indices[usual] if usual.mean() >= 1 - _MOST_WILD else indices


def _scores(outputs: Arrays, batch: Batch, rough: Runner | None) -> Floats:
    """(count,) what the largest are wanted of."""
    if rough is None:
        return _margins(outputs)[: batch.count]
    others = rough.run(batch.inputs)
    rows = len(next(iter(batch.inputs.values())))
    errors = np.zeros(rows)
    for name in compared_names(outputs):
        if others[name].shape != outputs[name].shape:
            errors += np.inf
        elif (exact := split_rows(outputs[name], rows)) is not None:
            noise, power = row_squares(others[name].reshape(exact.shape), exact)
            errors += noise / np.maximum(power, np.finfo(np.float64).tiny)
    return np.asarray(np.where(np.isnan(errors), np.inf, errors)[: batch.count])


def _margins(outputs: Arrays) -> Floats:
    name = compared_names(outputs)[0]
    scores = outputs[name]
    if scores.ndim != 2 or scores.dtype.kind != "f":
        raise ConfigError(
            f"--calibration-select confident: expected scores of classes, (samples, classes), as the first output, got "
            f"{name!r} of shape {scores.shape}; choose diverse or worst"
        )
    if scores.shape[1] == 1:
        return np.asarray(np.abs(scores[:, 0]), np.float64)
    top = np.sort(scores.astype(np.float64), axis=1)[:, -2:]
    return np.asarray(np.nan_to_num(top[:, 1] - top[:, 0], nan=-np.inf))


def _features(outputs: Arrays, batch: Batch) -> Floats:
    """(count, features) outputs of each sample, brought to few numbers by a fixed random projection."""
    parts, count = [], batch.count
    for name in compared_names(outputs):
        rows = split_rows(outputs[name], len(next(iter(batch.inputs.values()))))
        if rows is not None:
            flat = np.nan_to_num(rows[:count].reshape(count, -1).astype(np.float64), posinf=0.0, neginf=0.0)
            if flat.shape[1] > _FEATURES:
                signs = np.random.RandomState(flat.shape[1] % 2**31).randint(0, 2, (flat.shape[1], _FEATURES)) * 2.0 - 1
                flat = flat @ signs / np.sqrt(flat.shape[1])
            parts.append(flat)
    return np.concatenate(parts, axis=1) if parts else np.zeros((count, 1))


def farthest_first(features: Floats, count: int) -> Indices:
    """Places of `count` rows, each the farthest from all before it; the first is the nearest to the mean.

    The greedy solution of the k-center problem: T. F. Gonzalez, "Clustering to minimize the maximum intercluster
    distance", Theoretical Computer Science 38 (1985).
    """
    spread = features.std(axis=0)
    scaled = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    chosen = [int(np.argmin(np.square(scaled).sum(axis=1)))]
    nearest = np.square(scaled - scaled[chosen[0]]).sum(axis=1)
    while len(chosen) < count:
        nearest[chosen[-1]] = -1.0
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.square(scaled - scaled[chosen[-1]]).sum(axis=1))
    return np.array(chosen, np.int64)
