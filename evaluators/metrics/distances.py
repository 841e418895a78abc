"""Metrics that compare float outputs with those of FP32. They need no labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.array_passes import row_blocks
from evaluators.metrics.contract import Labels, Metric, Outputs, Scores, given_reference
from search.errors import DataError

_Product = Callable[[Scores, Scores], tuple[Scores, Scores]]
SQNR_CAP_DB = 100.0


def _float_pairs(outputs: Outputs, reference: Outputs | None) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Float outputs of candidate and FP32 as (n, values) each."""
    theirs = given_reference(reference)
    names = [name for name, array in theirs.items() if array.dtype.kind == "f"]
    if not names:
        raise DataError("this metric compares float outputs, but the model has none; give a --metric of your own")
    for name in names:
        if outputs[name].shape != theirs[name].shape:
            raise DataError(
                f"this metric compares outputs of one shape, but output {name!r} has shape {outputs[name].shape}, and "
                f"{theirs[name].shape} in FP32: it depends on the values; give a --metric of your own"
            )
    return [(_flat(outputs[name]), _flat(theirs[name])) for name in names]


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(len(array), -1)


def _dots(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]], *products: _Product) -> list[Scores]:
    """(n,) sums of products, per sample over all outputs as if they were one long vector; in float64, block by block.

    Args:
        products: each makes two factors, (n, values), of a block of the candidate's values and one of FP32's.
    """
    sums = [np.zeros(len(pairs[0][0])) for _ in products]
    for mine, theirs in pairs:
        for part in row_blocks(mine):
            a, b = mine[part].astype(np.float64), theirs[part].astype(np.float64)
            for total, product in zip(sums, products, strict=True):
                total[part] += np.einsum("ij,ij->i", *product(a, b))
    return sums


def _noise(a: Scores, b: Scores) -> tuple[Scores, Scores]:
    difference = a - b
    return difference, difference


def _signal(a: Scores, b: Scores) -> tuple[Scores, Scores]:
    return b, b


def _cosine(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    """Cosine of the angle between all float outputs and FP32's; two zero vectors are alike (1), one is not (0)."""
    pairs = _float_pairs(outputs, reference)
    mine, theirs, both = _dots(pairs, lambda a, b: (a, a), _signal, lambda a, b: (a, b))
    lengths = np.sqrt(mine) * np.sqrt(theirs)
    alike: Scores = np.asarray((mine == 0) & (theirs == 0), dtype=np.float64)
    np.divide(both, lengths, out=alike, where=lengths > 0)
    return alike


def _sqnr(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    """Signal-to-noise ratio against FP32 in dB, held to ±100 dB so that FP32 against itself is a number."""
    signal, noise = _dots(_float_pairs(outputs, reference), _signal, _noise)
    bound = 10.0 ** (SQNR_CAP_DB / 10)
    ratio = np.divide(signal, noise, out=np.full_like(noise, bound), where=noise > 0)
    decibels: Scores = 10.0 * np.log10(np.clip(ratio, 1 / bound, bound))
    return decibels


def _mse(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    """Mean square of the difference from FP32 over all float outputs."""
    pairs = _float_pairs(outputs, reference)
    values = sum(a.shape[1] for a, _ in pairs)
    return np.asarray(_dots(pairs, _noise)[0] / values, dtype=np.float64)


def _metric(name: str, unit: str, score: Callable[..., Scores], *, higher_is_better: bool) -> Metric:
    return Metric(name, unit, higher_is_better, False, "per_sample", False, True, score=score, reads="floats")


METRICS = (
    _metric("cosine", "", _cosine, higher_is_better=True),
    _metric("sqnr", "dB", _sqnr, higher_is_better=True),
    _metric("mse", "", _mse, higher_is_better=False),
)
