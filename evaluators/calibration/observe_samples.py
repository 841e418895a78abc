"""Looking at calibration samples one by one: what each of them does to each tensor of the float model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.calibration.graph_sessions import open_chain, run_chain
from evaluators.calibration.histograms import FETCH_BYTES, cut_parts
from evaluators.calibration.sample_runs import SampleRuns
from evaluators.calibration.sample_statistics import BINS, SampleStatistics
from evaluators.data import Dataset, gather_forms
from search.errors import DataError
from search.graph.model import Model, values_by_name
from search.values import Ranges, TensorRange

MOST_SAMPLES = 256
FEWEST_SAMPLES = 12  # however long that takes: fewer tell hardly any drift from chance
_MOST_S = 10.0  # of processor time: who waits for it wants something else
_MOST_COUNTED = 4096  # elements of a tensor and a sample that go into the histogram


def observe_samples(run: SampleRuns, ranges: Ranges, *, clusters: bool = False) -> SampleStatistics:
    """Run the float model over samples and look at each of them alone.

    Looked at are the tensors that have a range and that INT8 would round, as far as their first axis is the batch: the
    inputs of the model and of its groups, and the model's outputs. Of a slow model the first samples are enough.

    Args:
        run: the samples, of which any first ones stand for all, and the model with what recovery changed of it.
        ranges: as calibrated.
        clusters: whether each sample stands for a cluster.

    Raises:
        ModelError: ONNX Runtime cannot run the model.
        DataError: there are no samples.
    """
    watches = {name: _TensorStatistics(ranges.tensors[name]) for name in _names(run.model, ranges)}
    inputs = [name for name in watches if name in {spec.name for spec in run.model.inputs}]
    parts = cut_parts(_sizes(run.model, [name for name in watches if name not in inputs]), FETCH_BYTES)
    with ExitStack() as stack:
        chain = open_chain(run.model.graph, parts, run.threads, stack)
        start, seen = time.process_time(), 0
        for batch in stack.enter_context(closing(run.batches())):
            seen += batch.count
            for name in inputs:
                watches[name].add(batch.inputs[name], run.model.batch, batch.count)
            for name, array in run_chain(chain, batch):
                if name in watches:
                    watches[name].add(array, run.model.batch, batch.count)
            if seen >= FEWEST_SAMPLES and time.process_time() - start > _MOST_S:
                break
    return _gather({name: watch for name, watch in watches.items() if watch.rows}, clusters)


def choose_independent(dataset: Dataset, indices: NDArray[np.int64], batch: int = 1) -> NDArray[np.int64]:
    """Samples that say something each: the first of every cluster, evenly spaced ones where there are too many.

    In random order, since data are often sorted; batches hold one form each.
    """
    ids = dataset.clusters
    if ids is not None:
        indices = indices[np.sort(np.unique(ids[indices], return_index=True)[1])]
    if len(indices) > MOST_SAMPLES:
        indices = indices[np.linspace(0, len(indices) - 1, MOST_SAMPLES).astype(np.int64)]
    return gather_forms(dataset, np.random.RandomState(len(indices)).permutation(indices), batch)


class _TensorStatistics:
    """Statistics of one tensor."""

    def __init__(self, range_: TensorRange) -> None:
        self.range = range_
        self.rows: list[NDArray[np.float32]] = []
        self.counts = np.zeros(BINS, np.int64)

    def add(self, array: NDArray[Any], batch: int, count: int) -> None:
        """Look at one run; at nothing if the rows of the tensor are no samples."""
        if array.size == 0 or (batch > 1 and (array.ndim == 0 or len(array) != batch)):
            return
        rows = array.reshape(batch, -1)[:count].astype(np.float32, copy=False)
        clipped = (rows < np.float32(self.range.low)) | (rows > np.float32(self.range.high))
        with np.errstate(all="ignore"):
            mean = rows.mean(axis=1, dtype=np.float64)
        statistics = np.stack([rows.min(axis=1), rows.max(axis=1), mean, clipped.mean(axis=1)]).astype(np.float32)
        self.rows.append(np.nan_to_num(statistics, nan=np.inf, posinf=np.inf, neginf=-np.inf))
        for row in rows:
            self._count(row[:: max(1, len(row) // _MOST_COUNTED)])

    def _count(self, row: NDArray[np.float32]) -> None:
        low, width = self.range.low, _width(self.range)
        with np.errstate(all="ignore"):
            place = (row.astype(np.float64) - low) / width * (BINS // 3) + BINS // 3
        inside = np.clip(np.nan_to_num(place, nan=BINS), 0, BINS - 1).astype(np.int64)
        self.counts += np.bincount(inside, minlength=BINS)


def _width(range_: TensorRange) -> float:
    """The width of a range; a small one for a tensor that never varied, so that bins have a width."""
    return max(range_.high - range_.low, 1e-6 * range_.magnitude, 1e-30)


def _names(model: Model, ranges: Ranges) -> list[str]:
    wanted = {spec.name for spec in (*model.inputs, *model.outputs)}
    for group in model.groups:
        wanted.update(group.inputs)
    skipped = set(ranges.infinite)
    return [name for name in values_by_name(model.graph) if name in wanted - skipped and name in ranges.tensors]


def _sizes(model: Model, names: list[str]) -> Mapping[str, int]:
    """Bytes of each tensor in float32; as much as may be fetched at once where its shape is not known."""
    values, sizes = values_by_name(model.graph), dict[str, int]()
    for name in names:
        shape = values[name].shape
        known = [size for size in shape or () if isinstance(size, int)]
        sizes[name] = FETCH_BYTES if shape is None or len(known) < len(shape) else 4 * math.prod(known)
    return sizes


def _gather(watches: Mapping[str, _TensorStatistics], clusters: bool) -> SampleStatistics:
    if not watches:
        raise DataError("looking at samples: the model has no tensor with a range whose first axis is the batch")
    return SampleStatistics(
        tuple(watches),
        np.stack([np.concatenate(watch.rows, axis=1) for watch in watches.values()]),
        np.array([[watch.range.low, watch.range.high] for watch in watches.values()], np.float64),
        np.stack([watch.counts for watch in watches.values()]),
        clusters,
    )
