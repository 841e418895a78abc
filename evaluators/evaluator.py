"""The way of one candidate on the target: lower, build, audit, latency, accuracy. Runs in the evaluator process."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators import accuracy, calibration, data, latency, metrics
from evaluators.backends.base import Builder, DeviceError, Engine, OutOfMemoryError, RefusedError, Session
from evaluators.backends.registry import open_backend
from evaluators.job import Job, Limits
from search import model as models
from search.errors import ArtifactError, BitfrontError, RunError
from search.space import make_space
from search.values import (
    Accuracy,
    Assignment,
    AuditRow,
    Evaluation,
    Failure,
    FailureKind,
    Latency,
    Precision,
    Ranges,
    Stage,
)

Report = Callable[[str, Any], None]
_CHECK_ROWS = 64


class Evaluator:
    """One model, its data and one device, kept warm for a whole study.

    Args:
        job: what to open.
        report: told the stage an evaluation reaches, and progress of long steps.

    Raises:
        InputError: model, data, metric, backend or device cannot be used.
    """

    def __init__(self, job: Job, report: Report) -> None:
        self.job = job
        self.report = report
        shapes = {name: models.ShapeRequest(*map(tuple, parts)) for name, parts in job.shapes.items()}
        self.model = models.load(Path(job.model), batch=job.batch, shapes=shapes)
        self.backend = open_backend(job.backend, job.device, job.options)
        self.target = self.backend.target()
        self.folder = Path(job.folder)
        self._open_data()
        self._builder: Builder | None = None
        self._baseline: Session | None = None

    def _open_data(self) -> None:
        job, inputs = self.job, self.model.inputs
        given = metrics.get_metric(job.metric) if job.metric else None
        labelled = given is not None and given.needs_labels
        self.data = data.open_data(job.data, inputs, preprocess=job.preprocess, labels_required=labelled)
        self.metric = given or metrics.default_metric(self.data.has_labels)
        self.final_data = self.calibration_data = self.data
        if job.final_data:
            self.final_data = data.open_data(
                job.final_data, inputs, preprocess=job.preprocess, labels_required=self.metric.needs_labels
            )
        if job.calibration_data:
            self.calibration_data = data.open_data(job.calibration_data, inputs, preprocess=job.preprocess)
        splits = data.split(
            self.data.digest,
            len(self.data),
            calibration_apart=bool(job.calibration_data),
            final_apart=bool(job.final_data),
        )
        self.calibration_indices = splits.calibration if not job.calibration_data else _all(self.calibration_data)
        self.final_indices = splits.final if not job.final_data else _all(self.final_data)
        # Shuffled once by the data's own digest, so that the beginning is a fair subset in every process.
        order = np.random.RandomState(int(self.data.digest[:8], 16)).permutation(len(splits.search))
        self.search_indices = splits.search[order]

    # -- before the first candidate --------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Target, capability, data and metric, as plain values for the study's rows."""
        metric = self.metric
        return {
            "target": self.target,
            "capability": self.backend.capability(),
            "knobs": dict(self.backend.knobs()),
            "data": {
                "digest": self.data.digest,
                "final_digest": self.final_data.digest,
                "calibration_digest": self.calibration_data.digest,
                "calibration": len(self.calibration_indices),
                "search": len(self.search_indices),
                "final": len(self.final_indices),
            },
            "metric": {
                "name": metric.name,
                "unit": metric.unit,
                "higher_is_better": metric.higher_is_better,
                "ratio": metric.ratio,
            },
        }

    def try_out(self) -> None:
        """Run and score the float model on a few samples, so that what does not fit is found before anything is made.

        Raises:
            ModelError: the engine does not know an op.
            ConfigError, MetricError, DataError: the metric does not fit the model's outputs or the data.
        """
        session = self.backend.float_session(self.model)
        few = self._batches(self.data, self.search_indices[: 2 * self.model.batch])
        try:
            for batch in few:
                outputs = {name: array[: batch.count] for name, array in session.run(batch.inputs).items()}
                if self.metric.kind == "per_sample":
                    self.metric.scores(outputs, batch.labels, outputs, count=batch.count)
                else:
                    self.metric.accumulator().update(outputs, batch.labels, count=batch.count)
        finally:
            session.close()

    def calibration_key(self, method: str) -> str:
        """Names the result of `calibrate` by its inputs' content."""
        return calibration.cache_key(self.model.digest, self.calibration_data.digest, self.calibration_indices, method)

    def calibrate(self, method: str) -> dict[str, Any]:
        """Ranges of every float tensor, as JSON, and what is noteworthy about them."""
        ranges = calibration.collect(
            self.model,
            self.calibration_data,
            self.calibration_indices,
            method,
            threads=int(self.job.options.get("threads", 1)),
            progress=lambda done, total: self.report("progress", [done, total]),
        )
        return {"ranges": ranges.to_json(), "notes": calibration.notes(ranges)}

    def adopt(self, changes: Mapping[str, Any]) -> None:
        """Go on with a changed job: ranges that have been calibrated, a reference latency that has been measured."""
        self.job = replace(self.job, **changes)
        if "ranges" in changes:
            self._builder = None

    # -- candidates ------------------------------------------------------------------------------------------------

    def evaluate(self, assignment: Assignment, out: Path, limits: Limits) -> Evaluation:
        """Take one candidate all the way. A candidate's own failure is a value, not an exception.

        Args:
            out: where the engine file goes; it stays there when the evaluation is ok.
            limits: what makes a full accuracy run pointless.

        Raises:
            MetricError: the metric raised or gave NaN.
            DeviceError, OutOfMemoryError: this process must be replaced.
        """
        candidate = _Candidate(assignment, out)
        start = time.perf_counter()
        try:
            self._take_through(candidate, limits)
        except RefusedError as error:
            candidate.failed(FailureKind.REFUSED, str(error))
        except accuracy.NonFiniteError as error:
            candidate.failed(FailureKind.NON_FINITE, f"{error}; {self._where_non_finite(assignment)}")
        except (DeviceError, OutOfMemoryError, RunError, MemoryError):
            raise
        except OSError as error:
            raise ArtifactError(f"writing the engine {out}: {error}. Make room, then resume the study.") from error
        except Exception as error:
            if not isinstance(error, BitfrontError):
                traceback.print_exc()
            candidate.failed(FailureKind.ERROR, f"{type(error).__name__}: {error}")
        finally:
            candidate.close()
        return candidate.evaluation(time.perf_counter() - start)

    def _take_through(self, candidate: _Candidate, limits: Limits) -> None:
        self._enter(candidate, Stage.LOWER)
        lowered = self.builder.lower(candidate.assignment)
        self._enter(candidate, Stage.BUILD)
        start = time.perf_counter()
        engine = self.builder.build(lowered, candidate.out)
        candidate.engine, candidate.build_s = engine, time.perf_counter() - start
        self._enter(candidate, Stage.AUDIT)
        candidate.audit = self.builder.audit(engine, candidate.assignment)
        candidate.session = self.builder.load(engine.path)
        self._enter(candidate, Stage.LATENCY)
        candidate.latency = self._latency(candidate.session)
        self._enter(candidate, Stage.ACCURACY)
        candidate.accuracy = self._accuracy(candidate.session, candidate.latency, limits)

    def _enter(self, candidate: _Candidate, stage: Stage) -> None:
        candidate.stage = stage
        self.report("stage", stage.value)

    def _latency(self, session: Session) -> Latency:
        inputs = self._first_batch()
        session.bind(inputs)
        session.run(inputs)
        with latency.device_lock(self._device_name()):
            return latency.measure(
                session,
                statistic=self.target.statistic,
                baseline=self.baseline if self.target.relative else None,
                reference_ms=self.job.reference_ms,
                spread_limit=latency.CPU_SPREAD_LIMIT if self.target.relative else latency.GPU_SPREAD_LIMIT,
            )

    def _accuracy(self, session: Session, measured: Latency, limits: Limits) -> Accuracy:
        reference = self._reference("search")
        late = limits.latency_ms is not None and measured.value_ms > limits.latency_ms
        return accuracy.evaluate(
            session,
            self.metric,
            self._batches(self.data, self.search_indices),
            reference,
            allowed_drop=limits.drop,
            max_samples=accuracy.subset_size(reference.samples) if late else None,
        )

    def _where_non_finite(self, assignment: Assignment) -> str:
        """Names the groups whose outputs stop being finite on the data that showed it."""
        session = self.builder.probe(assignment)
        try:
            for batch in self._batches(self.data, self.search_indices):
                outputs = session.run(batch.inputs)
                bad = [g for g in self.model.groups if not np.isfinite(outputs[g.id]).all()]
                if bad:
                    named = ", ".join(f"{group.name} ({assignment[group.id].label})" for group in bad[:4])
                    return f"the first groups with NaN or infinity are {named}"
        finally:
            session.close()
        return "every group's own output is finite, so it arises behind the last group"

    # -- finalists and exports -------------------------------------------------------------------------------------

    def finalists(self, engines: Mapping[str, str], rounds: int) -> dict[str, Any]:
        """Measure several engines again, interleaved with each other and the baseline, and score them on *final*.

        Args:
            engines: any label → engine file.
            rounds: how often each is visited.

        Returns:
            `latency`: label → Latency; `accuracy`: label → Accuracy on the final split; `reference`: FP32's value
            there.
        """
        sessions = {label: self.builder.load(Path(path)) for label, path in engines.items()}
        try:
            measured = self._measure_together(sessions, rounds)
            reference = self._reference("final")
            scores = {}
            for done, (label, session) in enumerate(sessions.items()):
                self.report("progress", [done, len(sessions)])
                batches = self._batches(self.final_data, self.final_indices)
                scores[label] = accuracy.evaluate(session, self.metric, batches, reference)
            return {"latency": measured, "accuracy": scores, "reference": reference.value}
        finally:
            for session in sessions.values():
                session.close()

    def _measure_together(self, sessions: Mapping[str, Session], rounds: int) -> dict[str, Latency]:
        inputs = self._first_batch()
        everyone = {"": self.baseline, **sessions}
        for session in everyone.values():
            session.bind(inputs)
            session.run(inputs)
        with latency.device_lock(self._device_name()):
            samples = latency.interleaved(everyone, rounds)
        base = samples.pop("") if self.target.relative else None
        samples.pop("", None)
        return {label: self._summary(times.ravel(), base) for label, times in samples.items()}

    def _summary(self, times: NDArray[np.float64], base: NDArray[np.float64] | None) -> Latency:
        raw_ms = latency.statistic_of(times, self.target.statistic)
        baseline_ms = latency.statistic_of(base, self.target.statistic) if base is not None else None
        scale = self.job.reference_ms / baseline_ms if self.job.reference_ms and baseline_ms else 1.0
        return Latency(
            value_ms=raw_ms * scale,
            raw_ms=raw_ms,
            spread=latency.spread_of(times),
            baseline_ms=baseline_ms,
            samples_ms=times,
            baseline_samples_ms=base.ravel() if base is not None else np.empty(0),
        )

    def time_again(self, assignment: Assignment, out: Path) -> Latency:
        """Build an assignment and measure its latency alone; for repeatability and drift."""
        engine = self.builder.build(self.builder.lower(assignment), out)
        self.builder.audit(engine, assignment)
        session = self.builder.load(engine.path)
        try:
            return self._latency(session)
        finally:
            session.close()
            out.unlink(missing_ok=True)

    def check_outputs(self, engine: Path) -> dict[str, NDArray[Any]]:
        """Outputs of an engine file on the first final samples: what an export must give again, bit for bit."""
        session = self.builder.load(engine)
        try:
            batches = self._batches(self.final_data, self.final_indices[:_CHECK_ROWS])
            results = [session.run(batch.inputs) for batch in batches]
        finally:
            session.close()
        return {name: np.concatenate([result[name] for result in results]) for name in results[0]}

    # -- warm parts ------------------------------------------------------------------------------------------------

    @property
    def builder(self) -> Builder:
        if self._builder is None:
            self._builder = self.backend.builder(self.model, _read_ranges(self.job.ranges))
        return self._builder

    @property
    def baseline(self) -> Session:
        """The uniform FP32 engine, or the nearest to it that the target has."""
        if self._baseline is None:
            assignment = self._float_assignment()
            engine = self.builder.build(self.builder.lower(assignment), self.folder / "baseline.engine")
            self.builder.audit(engine, assignment)
            self._baseline = self.builder.load(engine.path)
            self._baseline.bind(self._first_batch())
            self._baseline.run(self._first_batch())
        return self._baseline

    def _float_assignment(self) -> Assignment:
        return make_space(self.model, self.backend.capability()).uniform(Precision.FP32)

    def _reference(self, split: str) -> accuracy.Reference:
        """FP32 on one split, kept on disk so that a fresh process need not run it again."""
        dataset, indices = (
            (self.data, self.search_indices) if split == "search" else (self.final_data, self.final_indices)
        )
        folder = self.folder / f"reference-{split}"
        stored = accuracy.load_reference(folder)
        if stored is not None and stored.metric == self.metric.name and stored.samples == len(indices):
            return stored
        return accuracy.reference(self.baseline, self.metric, self._batches(dataset, indices), folder)

    def _batches(self, dataset: data.Dataset, indices: NDArray[np.int64]) -> Iterator[data.Batch]:
        return data.batches(dataset, indices, self.model.batch)

    def _first_batch(self) -> dict[str, NDArray[Any]]:
        return next(self._batches(self.data, self.search_indices)).inputs

    def _device_name(self) -> str:
        return f"{self.backend.name}-{self.job.device or 'default'}"


class _Candidate:
    """What is known of one candidate so far."""

    def __init__(self, assignment: Assignment, out: Path) -> None:
        self.assignment = assignment
        self.out = out
        self.stage = Stage.LOWER
        self.failure: Failure | None = None
        self.engine: Engine | None = None
        self.session: Session | None = None
        self.audit: tuple[AuditRow, ...] = ()
        self.latency: Latency | None = None
        self.accuracy: Accuracy | None = None
        self.build_s: float | None = None

    def failed(self, kind: FailureKind, message: str) -> None:
        self.failure = Failure(self.stage, kind, message)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        if self.accuracy is None:
            self.out.unlink(missing_ok=True)

    def evaluation(self, total_s: float) -> Evaluation:
        engine = self.engine
        return Evaluation(
            assignment=self.assignment,
            failure=self.failure,
            audit=self.audit,
            latency=self.latency,
            accuracy=self.accuracy,
            size_bytes=engine.size_bytes if engine else None,
            memory_bytes=self.session.memory_bytes if self.session else None,
            build_s=self.build_s,
            total_s=total_s,
            artifact=str(engine.path) if engine and self.accuracy is not None else None,
            notes=engine.notes if engine else (),
        )


_NO_RANGES = Ranges("none", {}, {}, 0)


def _read_ranges(path: str | None) -> Ranges:
    if path is None:
        raise RunError("evaluating a candidate: the model has not been calibrated yet")
    return Ranges.from_json(json.loads(Path(path).read_text(encoding="utf-8")))


def _all(dataset: data.Dataset) -> NDArray[np.int64]:
    return np.arange(len(dataset), dtype=np.int64)
