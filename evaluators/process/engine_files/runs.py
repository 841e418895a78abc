"""Scores and latencies of engine files, all on the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np

from evaluators import data
from evaluators.backends.kind import BackendKind
from evaluators.backends.registry import choose_backend, kind_named
from evaluators.data import Batch, Dataset
from evaluators.data.dataset import read_ahead
from evaluators.engine import Arrays, Backend, OpenEngine, RefusedError, Session
from evaluators.measure import latency
from evaluators.measure.accuracy import run_real_rows
from evaluators.measure.device_lock import device_lock
from evaluators.measure.scoring import NonFiniteError, ScoreTally
from evaluators.metrics import default_metric
from evaluators.metrics.contract import Metric
from evaluators.metrics.labels import check_labels
from evaluators.metrics.registry import get_metric
from evaluators.process.job import Job
from evaluators.process.line import ALIVE
from evaluators.process.results import Description, EngineScores, MetricDescription
from evaluators.process.score_order import ScoreOrder, order_scores
from evaluators.process.tasks.open_data import open_job_data
from evaluators.process.tasks.open_model import Report, open_backend_of
from search.errors import ConfigError, DataError, ModelError
from search.graph.model import TensorSpec
from search.values import THREAD_CLOCK, Latency

REFERENCE, BASELINE = "reference", "baseline"
"""Labels with a meaning: metrics that compare outputs compare with the reference, without one with the baseline."""


class EngineFileRuns:
    """Implements `EngineFileRequests`.

    Args:
        job: with `engine_files`, one of them the baseline.
        kind, backend: what opens them.
        report: told that the process is alive.
    """

    def __init__(self, job: Job, kind: BackendKind, backend: Backend, report: Report) -> None:
        self._job = job
        self._kind = kind
        self._backend = backend
        self._report = report

    def score(self, labels: Sequence[str]) -> EngineScores:
        with self._open(labels) as engines:
            return _Scoring(self._job, engines, self._report).score()

    def time(self, order: Sequence[str], rounds: int) -> Mapping[str, Latency]:
        target = self._backend.target()
        with self._open(order) as engines:
            inputs = next(_batches(self._open_data(engines), engines)).inputs
            for engine in engines.values():
                engine.session.bind(inputs)
                engine.session.run(inputs)
            # Processes do not stretch each other's processor time, so nobody waits for his turn there.
            with nullcontext() if target.clock == THREAD_CLOCK else device_lock(self._backend.lock_name):
                return latency.measure_together(
                    {label: engine.session for label, engine in engines.items()},
                    rounds,
                    statistic=target.statistic,
                    clock=target.clock,
                    spread_limit=latency.CPU_SPREAD_LIMIT if target.relative else latency.GPU_SPREAD_LIMIT,
                    state=self._backend.device_state,
                    again=False,
                    alive=lambda: self._report(ALIVE, None),
                )

    def _open_data(self, engines: Mapping[str, OpenEngine]) -> Dataset:
        inputs = next(iter(engines.values())).inputs
        return open_job_data(self._job, self._job.data, inputs)

    @contextmanager
    def _open(self, labels: Sequence[str]) -> Iterator[dict[str, OpenEngine]]:
        """The engines of these labels, loaded in this order.

        Raises:
            ModelError: one is no engine of this backend, or they differ in their inputs.
        """
        with ExitStack() as stack:
            engines: dict[str, OpenEngine] = {}
            for label in labels:
                path = Path(self._job.engine_files[label])
                try:
                    engines[label] = self._kind.open_engine(self._backend, path, self._job.batch)
                except RefusedError as error:
                    raise ModelError(
                        f"opening {path}: {error}. Name an engine of backend {self._kind.name}, made by the version "
                        "that is installed here."
                    ) from error
                stack.enter_context(closing(engines[label].session))
                self._report(ALIVE, None)
            _check_alike(engines)
            try:
                yield engines
            except RefusedError as error:
                raise DataError(f"running an engine on the data: {error}. Give data that fit its inputs.") from error


class _Scoring:
    """Engines that are open, with the data and the metric.

    Raises:
        InputError: data or metric cannot be used, or do not fit the engines.
    """

    def __init__(self, job: Job, engines: Mapping[str, OpenEngine], report: Report) -> None:
        self._engines = engines
        self._report = report
        if job.decode and not job.metric:
            raise ConfigError(f"--decode {job.decode}: expected a metric that reads boxes; give --metric map with it.")
        metric = get_metric(job.metric, job.decode) if job.metric else None
        baseline = engines[BASELINE]
        labelled = metric is not None and metric.needs_labels
        self._data = open_job_data(job, job.data, baseline.inputs, labels_required=labelled)
        outputs = run_real_rows(baseline.session, next(_batches(self._data, engines)))
        _check_outputs(engines, outputs, next(_batches(self._data, engines)))
        self._metric, self._notes = (metric, []) if metric is not None else self._choose_metric(outputs)
        self._order = _order(self._data, baseline.inputs[0].shape[0], self._metric)
        if self._metric.fit is not None:
            check_labels(self._metric, lambda some: outputs, self._data, self._order.indices, "gate")

    def _choose_metric(self, outputs: Arrays) -> tuple[Metric, list[str]]:
        labels = self._data.labels(np.array([0])) if self._data.has_labels else None
        specs = [TensorSpec(name, array.dtype.name, array.shape) for name, array in outputs.items()]
        chosen = default_metric.default_metric(specs, labels)
        chosen.check()
        why = chosen.why and f"the metric is {chosen.metric.name}, because {chosen.why}; --metric names another"
        return chosen.metric, [why] if why else []

    def score(self) -> EngineScores:
        """Raises DataError where the baseline's own outputs are not finite."""
        metric, tallies, failed = self._metric, {}, {}
        for label in self._engines:
            if label == REFERENCE:
                continue
            try:
                tallies[label] = self._score_engine(self._engines[label].session)
            except NonFiniteError as error:
                failed[label] = str(error)
        if BASELINE in failed:
            raise DataError(f"scoring the baseline: {failed[BASELINE]}. Name a baseline that works on these data.")
        if metric.undeclared and all(np.isin(tally.scores, (0.0, 1.0)).all() for tally in tallies.values()):
            metric = metric.as_shares()
        return EngineScores(
            metric=MetricDescription.of(metric, self._notes),
            scores={label: tally.scores for label, tally in tallies.items()},
            values={label: tally.value for label, tally in tallies.items()},
            counts=tallies[BASELINE].counts,
            clusters=self._order.clusters,
            failed=failed,
            data=self._data.digest,
        )

    def _score_engine(self, session: Session) -> ScoreTally:
        # Every engine reads the data anew: to keep the reference's outputs would take as much room as they have.
        batch_size = self._engines[BASELINE].inputs[0].shape[0]
        with ScoreTally(self._metric) as tally, closing(read_ahead(self._order.batches(batch_size))) as batches:
            for batch in batches:
                outputs = run_real_rows(session, batch)
                tally.add(batch, outputs, partial(_give, self._reference_outputs(session, batch, outputs)))
                self._report(ALIVE, None)
        return tally

    def _reference_outputs(self, session: Session, batch: Batch, outputs: Arrays) -> Arrays | None:
        if not self._metric.needs_reference:
            return None
        reference = self._engines.get(REFERENCE, self._engines[BASELINE]).session
        return outputs if reference is session else run_real_rows(reference, batch)


def _give(outputs: Arrays | None) -> Arrays | None:
    return outputs


def _batches(dataset: Dataset, engines: Mapping[str, OpenEngine]) -> Iterator[Batch]:
    """The first batch, and those after it."""
    batch = next(iter(engines.values())).inputs[0].shape[0]
    return data.batches(dataset, np.arange(len(dataset), dtype=np.int64), batch)


def _order(dataset: Dataset, batch: int, metric: Metric) -> ScoreOrder:
    """All samples, shuffled by the data's own digest, so that batches are alike and every process has the same."""
    indices = np.random.RandomState(int(dataset.digest[:8], 16)).permutation(len(dataset)).astype(np.int64)
    return order_scores(dataset, indices, batch, accumulating=metric.kind == "accumulating")


def _check_alike(engines: Mapping[str, OpenEngine]) -> None:
    """Refuse engines that do not take the same inputs."""
    (first, one), *others = engines.items()
    for label, other in others:
        if sorted(one.inputs, key=lambda spec: spec.name) != sorted(other.inputs, key=lambda spec: spec.name):
            raise ModelError(
                f"comparing two engines: expected the same inputs, but the {first} takes {_list_inputs(one.inputs)} "
                f"and the {label} {_list_inputs(other.inputs)}. Name engines of one model, built for one batch."
            )


def _check_outputs(engines: Mapping[str, OpenEngine], outputs: Arrays, batch: Batch) -> None:
    """Refuse engines that give other outputs than the baseline: a metric would read something else of them."""
    expected = _forms(outputs)
    for label, engine in engines.items():
        forms = expected if label == BASELINE else _forms(run_real_rows(engine.session, batch))
        if forms != expected:
            raise ModelError(
                f"comparing two engines: expected the outputs of the baseline, {expected}, but the {label} gives "
                f"{forms}. Name engines of one model."
            )


def _forms(outputs: Arrays) -> dict[str, str]:
    return {name: "x".join(map(str, outputs[name].shape)) for name in sorted(outputs)}


def _list_inputs(inputs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype} {'x'.join(map(str, spec.shape))}" for spec in inputs)


class EngineFileEvaluator:
    """Answers the requests `engine_files` of `EvaluatorLine`, and no others.

    Args:
        job: with `engine_files`.
        report: told now and then that the process is alive.

    Raises:
        InputError: backend or device cannot be used.
    """

    def __init__(self, job: Job, report: Report) -> None:
        self._kind = kind_named(choose_backend(job.backend))
        self._backend = open_backend_of(job)
        self.engine_files = EngineFileRuns(job, self._kind, self._backend, report)

    def describe(self) -> Description:
        """What was opened, which is the backend alone: engines and data are opened by the first request for them."""
        backend = self._backend
        return Description(
            target=backend.target(),
            model="",
            capability=backend.capability(),
            knobs=dict(backend.knobs()),
            engine_file=self._kind.engine_file,
            placement=backend.placement.to_json(),
        )
