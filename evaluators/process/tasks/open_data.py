"""The opened data of a study, divided into splits, with the metric that scores them."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators import data
from evaluators.data.clusters import check_apart, check_number, count_clusters
from evaluators.data.dataset import read_ahead
from evaluators.data.opening import open_data
from evaluators.metrics import default_metric
from evaluators.metrics.contract import Metric
from evaluators.metrics.registry import get_metric
from evaluators.process.job import Job
from evaluators.process.results import DataDescription, MetricDescription
from evaluators.process.score_order import order_scores
from evaluators.process.tasks.open_model import OpenModel
from search.errors import ConfigError
from search.graph.model import TensorSpec
from search.graph.shapes import input_names
from search.values import digest_of

Indices = NDArray[np.int64]


class OpenData:
    """Data, splits and metric of one job.

    Args:
        handed: the metric of the job where it is a function of the keeper's process.

    Attributes:
        batch: samples in a batch.
        choice: the metric, and how it was chosen; its `check` comes before anything is scored.
        metric: what scores outputs.
        data, final_data, calibration_data: one and the same data set unless the job names several.
        search_indices, final_indices, calibration_indices: samples of each split, of its own data set.
        score_orders: "search" and "final" → the order in which the split's samples are scored.

    Raises:
        InputError: data or metric cannot be used, or do not fit the model.
    """

    def __init__(self, opened: OpenModel, handed: Metric | None = None) -> None:
        self._opened = opened
        self.batch = opened.model.batch
        job, inputs = opened.job, opened.model.inputs
        metric = _get_metric(job, handed)
        labelled = metric is not None and metric.needs_labels
        self.data = open_job_data(job, job.data, inputs, labels_required=labelled)
        self.choice = default_metric.DefaultChoice(metric, "") if metric else self._choose_metric()
        self.metric = self.choice.metric.as_shares() if job.shares else self.choice.metric
        self.final_data = self.calibration_data = self.data
        if job.final_data:
            needed = self.metric.needs_labels
            self.final_data = open_job_data(job, job.final_data, inputs, labels_required=needed)
        if job.calibration_data:
            self.calibration_data = open_job_data(job, job.calibration_data, inputs)
        self._check_clusters()
        self._divide()

    def _choose_metric(self) -> default_metric.DefaultChoice:
        labels = self.data.labels(np.array([0])) if self.data.has_labels else None
        return default_metric.default_metric(self._output_specs(), labels)

    def _output_specs(self) -> Sequence[TensorSpec]:
        """The model's outputs; run once where shape inference does not know them."""
        opened = self._opened
        known = opened.model.outputs
        if all(spec.shape for spec in known):
            return known
        with opened.model_run(), closing(opened.backend.float_session(opened.model)) as session:
            outputs = session.run(self.data.batch(np.zeros(self.batch, np.int64))[0])
        return [replace(spec, shape=spec.shape or outputs[spec.name].shape) for spec in known]

    def _check_clusters(self) -> None:
        job, ids_by_option = self._opened.job, {"--data": self.data.clusters}
        check_number(self.data.clusters, f"data {job.data!r}")
        if job.final_data:
            check_number(self.final_data.clusters, f"final data {job.final_data!r}")
            ids_by_option["--final-data"] = self.final_data.clusters
        if job.calibration_data:
            ids_by_option["--calibration-data"] = self.calibration_data.clusters
        check_apart(ids_by_option)

    def _divide(self) -> None:
        self.calibration_indices, search, final = self._split()
        self.final_indices = data.gather_forms(self.final_data, final, self.batch)
        # Shuffled once by the data's own digest, so that the beginning is a fair subset in every process.
        order = np.random.RandomState(int(self.data.digest[:8], 16)).permutation(len(search))
        self.search_indices = data.gather_forms(self.data, search[order], self.batch)
        self.score_orders = {
            split: order_scores(dataset, indices, self.batch, accumulating=self.metric.kind == "accumulating")
            for split, dataset, indices in (
                ("search", self.data, self.search_indices),
                ("final", self.final_data, self.final_indices),
            )
        }

    def _split(self) -> tuple[Indices, Indices, Indices]:
        """Samples that calibrate, are searched on and are final, each of its own data."""
        job = self._opened.job
        if job.undivided:
            return _all(self.data), _all(self.data), _all(self.data)
        splits = data.split(
            self.data.digest,
            len(self.data),
            calibration_apart=bool(job.calibration_data),
            final_apart=bool(job.final_data),
            seed=job.split_seed,
            clusters=self.data.clusters,
        )
        calibration = splits.calibration if not job.calibration_data else _all(self.calibration_data)
        return calibration, splits.search, splits.final if not job.final_data else _all(self.final_data)

    @property
    def scores_classes(self) -> bool:
        """Whether the metric or the labels say that the largest output of a sample is its class."""
        data = self.final_data
        return self.metric.scores_classes(data.labels(np.array([0])) if data.has_labels else None)

    # -- samples ---------------------------------------------------------------------------------------------------

    def search_batches(self, indices: Indices) -> Generator[data.Batch, None, None]:
        """Whole batches of some samples of the study's data."""
        yield from self._tell_alive(data.batches(self.data, indices, self.batch))

    def final_batches(self, count: int) -> Generator[data.Batch, None, None]:
        """Whole batches of the first final samples."""
        yield from self.final_batches_at(self.final_indices[:count])

    def final_batches_at(self, indices: Indices) -> Generator[data.Batch, None, None]:
        """Whole batches of some samples of the data that the final split is of, in this order."""
        yield from self._tell_alive(data.batches(self.final_data, indices, self.batch))

    def calibration_batches(self, indices: Indices) -> Generator[data.Batch, None, None]:
        """Whole batches of some samples of the calibration data."""
        yield from self._tell_alive(data.batches(self.calibration_data, indices, self.batch))

    @property
    def final_samples(self) -> OpenFinalSplit:
        """The final split, whole or some of it."""
        return OpenFinalSplit(self)

    def scored_batches(self, split: str) -> Generator[data.Batch, None, None]:
        """Batches of a whole split, in the order in which they are scored, read while the engine runs."""
        with closing(read_ahead(self.score_orders[split].batches(self.batch))) as batches:
            yield from self._tell_alive(batches)

    def first_batch(self) -> dict[str, NDArray[Any]]:
        """Inputs by name at the shape that is measured: the first batch of the search split.

        Of data with several shapes it is the first batch of the measured one. If there is none, the values of the
        first batch are repeated along the axes where it is shorter, and cut where it is longer.
        """
        indices, inputs = self.search_indices, self._opened.model.inputs
        if self.data.forms is not None:
            firsts = indices[np.sort(np.unique(self.data.forms[indices], return_index=True)[1])]
            matches = (index for index in firsts if _is_measured(self.data.batch(np.array([index]))[0], inputs))
            form = self.data.forms[next(matches, firsts[0])]
            indices = indices[self.data.forms[indices] == form]
        batch = next(self.search_batches(indices)).inputs
        return {spec.name: _resize(batch[spec.name], spec.shape) for spec in inputs}

    def _tell_alive(self, batches: Iterator[data.Batch]) -> Iterator[data.Batch]:
        for batch in batches:
            yield batch
            self._opened.tell_alive()  # one more is done

    # -- descriptions ----------------------------------------------------------------------------------------------

    def describe_data(self) -> DataDescription:
        """Digests and sizes of the splits."""
        return DataDescription(
            digest=self.data.digest,
            final_digest=self.final_data.digest,
            calibration_digest=self.calibration_data.digest,
            calibration=len(self.calibration_indices),
            search=len(self.search_indices),
            final=len(self.final_indices),
            clusters=self._count_clusters(),
        )

    def _count_clusters(self) -> dict[str, int]:
        """How many clusters each part has; empty if the data have no clusters."""
        parts = {
            "calibration": (self.calibration_data, self.calibration_indices),
            "search": (self.data, self.search_indices),
            "final": (self.final_data, self.final_indices),
        }
        return {
            name: count_clusters(dataset.clusters[indices])
            for name, (dataset, indices) in parts.items()
            if dataset.clusters is not None
        }

    def describe_metric(self) -> MetricDescription:
        """The metric, with how it was chosen."""
        return MetricDescription.of(self.metric, self._metric_notes())

    def _metric_notes(self) -> list[str]:
        """How the metric was chosen, where nobody named it, and which outputs it does not score."""
        name, why = self.metric.name, self.choice.why
        notes = [f"the metric is {name}, because {why}; --metric names another"] if why else []
        kinds = {spec.name: "f" if default_metric.is_float(spec) else "i" for spec in self._opened.model.outputs}
        read = self.metric.outputs_read(kinds)
        if unread := [repr(output) for output in kinds if output not in read]:
            notes.append(
                f"metric {name} reads the output{'s' * (len(read) > 1)} {', '.join(map(repr, read))} alone: "
                f"{', '.join(unread)} {'are' if len(unread) > 1 else 'is'} not scored"
            )
        return notes


def open_job_data(
    job: Job, source: str, inputs: Sequence[TensorSpec], *, labels_required: bool = False
) -> data.Dataset:
    """One of the data sets of a job.

    Raises:
        DataError: as of `open_data`.
    """
    return open_data(
        source,
        inputs,
        preprocess=job.preprocess,
        labels_required=labels_required,
        cache=Path(job.caches.get(source) or Path(job.folder) / f"samples-{digest_of(source)[:16]}"),
        most=job.max_samples,
        folder=Path(job.folder) / f"kept-{digest_of(source)[:16]}",
        fixed=input_names(job.input_values),
    )


def _get_metric(job: Job, handed: Metric | None) -> Metric | None:
    """The metric that a job names, if it names one."""
    if handed is not None and not job.decode:
        return handed
    if job.metric:
        return get_metric(job.metric, job.decode)
    if job.decode:
        raise ConfigError(f"--decode {job.decode}: expected a metric that reads boxes; give --metric map with it.")
    return None


class OpenFinalSplit:
    """Implements `recovery.final_losses.FinalSamples`: all of the split in the order in which it is scored, or some."""

    def __init__(self, opened: OpenData) -> None:
        self._opened = opened
        self._indices = opened.final_indices

    @property
    def count(self) -> int:
        return len(self._indices)

    @contextmanager
    def open(self, count: int) -> Iterator[Iterator[data.Batch]]:
        opened = self._opened
        if count < self.count:
            yield data.batches(opened.final_data, self._draw_rows(count), opened.batch)
            return
        with closing(opened.scored_batches("final")) as batches:
            yield batches

    def clusters(self, count: int) -> Indices | None:
        opened, known = self._opened, self._opened.final_data.clusters
        if count >= self.count:
            return opened.score_orders["final"].clusters
        if known is None or opened.metric.kind == "accumulating":
            return None
        codes = np.unique(known[self._draw_rows(count)], return_inverse=True)[1].astype(np.int64)
        return codes if codes.max(initial=0) > 0 else None

    def _draw_rows(self, count: int) -> Indices:
        random = np.random.RandomState(int(self._opened.final_data.digest[:8], 16))
        drawn = self._indices[random.permutation(self.count)[:count]]
        return data.gather_forms(self._opened.final_data, drawn, self._opened.batch)


def _is_measured(rows: Mapping[str, NDArray[Any]], inputs: Sequence[TensorSpec]) -> bool:
    return all(rows[spec.name].shape[1:] == spec.shape[1:] for spec in inputs)


def _resize(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The array with the sizes of `shape`: repeated from its beginning, or cut."""
    for axis, size in enumerate(shape):
        if array.shape[axis] != size:
            array = np.take(array, np.arange(size), axis, mode="wrap")
    return array


def _all(dataset: data.Dataset) -> Indices:
    return np.arange(len(dataset), dtype=np.int64)
