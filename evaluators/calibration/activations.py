"""Ranges of tensors from data, found once per study. Memory does not grow with the data or the model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from evaluators.calibration.extremes import Extremes, observe
from evaluators.calibration.histograms import FETCH_BYTES, count_values
from evaluators.calibration.sample_runs import Progress, SampleRuns, Steps, runs_of
from evaluators.calibration.scales import clip
from evaluators.data import Dataset, gather_forms
from search.errors import ConfigError, DataError
from search.graph.model import Model, values_by_name
from search.values import Precision, Ranges, TensorRange, digest_of

AUTO = "auto"
MEAN = "mean"
METHODS = (AUTO, "minmax", MEAN, "percentile", "entropy", "mse")
PERCENTILE = 99.99
_ONE_PASS = (AUTO, "minmax")
_MOST_VALUES = 2**22  # of a tensor
# Part of the cache key: raise it when the same data would give other ranges.
_ALGORITHM = 2


def collect(
    model: Model,
    dataset: Dataset,
    indices: NDArray[np.int64],
    method: str,
    *,
    threads: int = 1,
    whole: bool = False,
    progress: Progress | None = None,
) -> Ranges:
    """Ranges of every float tensor of the main graph: float graph inputs, and float outputs of nodes.

    Samples are read in an order that only their number decides, until twice as many have hardly changed the ranges:
    see `extremes.observe`. So the same samples give the same ranges on any machine.

    `minmax` reads the data once, and so does `auto`, which is `minmax` until the recovery step `ranges` has chosen a
    method for each tensor. `mean` takes the means over samples of their least and of their largest value, in a second
    pass. The others make a histogram between the extremes in that pass and then clip: `percentile` (or
    `percentile:99.9`) leaves out that tail on each side by itself; `entropy` and `mse` choose one limit on |x|, so that
    [0, 6] stays one-sided. Limits are chosen for int8; exact zeros do not count, they are represented exactly whatever
    the scale. Of a tensor that may hold Inf, as masked scores do, it is the range of the rest, and it has none if there
    is no rest.

    Args:
        indices: the samples to use; runs are of the model's batch.
        method: one of METHODS.
        threads: of ONNX Runtime.
        whole: use all of the samples, as where each of them was chosen.
        progress: called with runs of the model done, and to do in all.

    Returns:
        Ranges in each tensor's own unit, asymmetric: backends that want symmetry take the magnitude.

    Raises:
        ConfigError: the method is unknown.
        DataError: no samples, a tensor holds NaN, or one that has to be finite holds Inf: see `must_be_finite`.
        ModelError: ONNX Runtime cannot run the model.
        TargetError: ONNX Runtime is not installed.
    """
    name, percentile = parse_method(method)
    if not len(indices):
        raise DataError("calibration needs samples, but its part of the data is empty: give more data")
    order = _in_order(model, dataset, indices)
    passes = 1 if name in _ONE_PASS else 2
    run = SampleRuns(model, dataset, order, threads, Steps(progress, runs_of(model, order) * passes))
    seen = observe(run, whole=whole)
    run = replace(run, indices=order[: seen.samples])
    run.steps.total = run.steps.done * passes
    chosen = dict(seen.ranges) | (_clip(run, seen, [(name, percentile)])[0] if name not in _ONE_PASS else {})
    return Ranges(method=method, tensors=chosen, observed=seen.ranges, samples=seen.samples, infinite=seen.infinite)


def collect_clipped(
    model: Model,
    dataset: Dataset,
    indices: NDArray[np.int64],
    known: Ranges,
    methods: Sequence[str],
    tensors: Container[str],
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> list[dict[str, TensorRange]]:
    """Ranges of some tensors by several methods, in one pass over the data: their extremes are known.

    Of large tensors only a part of the values counts, about four million.

    Args:
        indices: the samples that `known` is of, or those it was taken from.
        known: what `collect` found on these samples.
        methods: `mean`, `percentile`, `entropy` or `mse`.
        tensors: names of those that matter; constant ones among them have no range here.
        threads, progress: as of `collect`.

    Returns:
        For each method, the ranges by name.

    Raises:
        ModelError, TargetError: as of `collect`.
    """
    used = _in_order(model, dataset, indices)[: known.samples]
    run = SampleRuns(model, dataset, used, threads, Steps(progress, runs_of(model, used)))
    # In the order of the graph, in which it is cut into stretches: ranges that were stored have lost it.
    order = values_by_name(model.graph)
    ranges = {name: known.observed[name] for name in order if name in known.observed and name in tensors}
    unknown = FETCH_BYTES // np.dtype(np.float32).itemsize
    sizes = {n: math.prod(model.shapes[n]) if n in model.shapes else unknown for n in ranges}
    seen = Extremes(ranges, sizes, known.infinite, known.samples)
    return _clip(run, seen, [parse_method(method) for method in methods], _MOST_VALUES)


def _in_order(model: Model, dataset: Dataset, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """The samples in random order, since data are often sorted by class; batches hold one form each."""
    order = np.random.RandomState(len(indices)).permutation(indices)
    return gather_forms(dataset, order, model.batch)


def _clip(
    run: SampleRuns, seen: Extremes, methods: Sequence[tuple[str, float]], most: int | None = None
) -> list[dict[str, TensorRange]]:
    """For each method with its percentile, the ranges of the tensors that vary."""
    varying = {name: range_ for name, range_ in seen.ranges.items() if range_.low < range_.high}
    kinds = sorted({method != "percentile" for method, _ in methods if method != MEAN})  # of values, of magnitudes
    means = any(method == MEAN for method, _ in methods)
    counted = count_values(run, varying, seen, magnitudes=kinds, most=most, means=means)

    def range_by(name: str, method: str, percentile: float) -> TensorRange:
        histograms = counted[name]
        if method == MEAN:
            assert histograms.mean is not None
            return histograms.mean
        return clip(varying[name], histograms.counts[kinds.index(method != "percentile")], method, percentile)

    return [{name: range_by(name, *method) for name in varying} for method in methods]


def parse_method(method: str) -> tuple[str, float]:
    """`percentile:99.9` → ("percentile", 99.9); the number is PERCENTILE when none is given. Raises ConfigError."""
    name, colon, number = method.partition(":")
    try:
        percentile = float(number) if colon else PERCENTILE
    except ValueError:
        percentile = math.nan
    if name not in METHODS or (colon and name != "percentile") or not 50 < percentile <= 100:
        raise ConfigError(
            f"calibration method {method!r} is unknown: use {', '.join(METHODS)}, or percentile:P with 50 < P ≤ 100"
        )
    return name, percentile


def cache_key(
    model_digest: str, data_digest: str, indices: NDArray[np.int64], method: str, ranges_digest: str | None = None
) -> str:
    """64 hex digits that name what `collect` gives for these arguments.

    Args:
        ranges_digest: of the ranges that come from elsewhere, where some do.
    """
    samples = hashlib.sha256(np.ascontiguousarray(indices, "<i8").data).hexdigest()
    return digest_of(
        [_ALGORITHM, model_digest, data_digest, samples, method, *([ranges_digest] if ranges_digest else [])]
    )


def notes(ranges: Ranges) -> list[str]:
    """What a user should know about these ranges, one sentence each; empty when all is well."""
    sentences = []
    if ranges.constant:
        sentences.append(
            f"{_list_tensors(ranges.constant)} never varied in the calibration data ({ranges.samples} samples)"
        )
    for precision in sorted(precision for precision in Precision if not precision.quantized):
        wide = [name for name, seen in ranges.observed.items() if seen.magnitude > precision.largest]
        if wide:
            sentences.append(
                f"{_list_tensors(wide)} went beyond {precision.largest:g}, the largest {precision.name} number"
            )
    if ranges.infinite:
        sentences.append(
            f"{_list_tensors(ranges.infinite)} held infinite values, as masks do, so their ranges are those of the "
            "finite values"
        )
    return sentences


def _list_tensors(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({shown})"
