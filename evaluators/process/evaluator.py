"""The way of one candidate on the target: lower, build, audit, latency, accuracy. Runs in the evaluator process."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators import data
from evaluators.backends.nvidia import discovery
from evaluators.backends.onnxruntime.emulation import Emulator, beside_others, quickest
from evaluators.backends.registry import choose_backend, kind_named, open_backend
from evaluators.calibration import activations as calibration
from evaluators.calibration import cache as calibration_cache
from evaluators.cores import usable_processors
from evaluators.data.prefetch import read_ahead
from evaluators.diagnose.compare_run import compare_engine, refusals
from evaluators.diagnose.local_noise import Network
from evaluators.diagnose.sensitivity import sensitivity
from evaluators.engine import Backend, Builder, Engine, RefusedError, Session
from evaluators.lowering.placement import placement_named
from evaluators.measure import accuracy, latency, resemblance
from evaluators.measure.score_order import order_scores
from evaluators.measure.scoring import NonFiniteError
from evaluators.metrics import builtin as metrics
from evaluators.metrics import default_metric
from evaluators.metrics.labels import check_labels
from evaluators.process.candidate import Candidate, check_room, is_common, meaning_of
from evaluators.process.job import ALIVE, Job, Limits, discard
from evaluators.stopwatch import Stopwatch, time_spent, use_stopwatch
from search.errors import (
    BitfrontError,
    DataError,
    EvaluatorError,
    MetricError,
    ModelError,
    RunError,
    TargetError,
)
from search.graph import model as models
from search.space.choices import make_space
from search.values import (
    Accuracy,
    Assignment,
    Evaluation,
    FailureKind,
    Latency,
    LayerTime,
    Precision,
    Ranges,
    Stage,
    digest_of,
)

Report = Callable[[str, Any], None]
_ALIVE_S = 0.2  # between two events that only say that the process is alive
_CHECK_ROWS = 64
_PROFILED = 10  # inferences of a profiled run
_TRIES = 5  # measurements at most of a uniform assignment, by which all others are predicted, where one is doubtful
_CHECK_BYTES = 64 * 2**20


class Evaluator:
    """One model, its data and one device, kept warm for a whole study.

    Args:
        job: what to open.
        report: told the stage an evaluation reaches, and progress of long steps, or that there is some.

    Raises:
        InputError: model, data, metric, backend or device cannot be used.
    """

    def __init__(self, job: Job, report: Report) -> None:
        self.job = job
        self.report = report
        shapes = {name: models.ShapeRequest(*map(tuple, parts)) for name, parts in job.shapes.items()}
        self.model = models.load(Path(job.model), batch=job.batch, shapes=shapes)
        self.backend = _open_backend(job)
        self.target = self.backend.target()
        self.folder = Path(job.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._open_data()
        self._builder: Builder | None = None
        self._baseline: Session | None = None
        self._loaded: tuple[Path, Session] | None = None
        self._first: tuple[Assignment, Engine, float] | None = None
        self._said_alive = 0.0

    def _alive(self) -> None:
        """Say now and then that something long goes on."""
        now = time.monotonic()
        if now >= self._said_alive + _ALIVE_S:
            self._said_alive = now
            self.report(ALIVE, None)

    def _open_data(self) -> None:
        job, inputs = self.job, self.model.inputs
        given = metrics.get_metric(job.metric) if job.metric else None
        labelled = given is not None and given.needs_labels
        self.data = data.open_data(job.data, inputs, preprocess=job.preprocess, labels_required=labelled)
        self._chosen = default_metric.Choice(given, "") if given else self._default_metric()
        self.metric = self._chosen.metric
        self.final_data = self.calibration_data = self.data
        if job.final_data:
            self.final_data = data.open_data(
                job.final_data, inputs, preprocess=job.preprocess, labels_required=self.metric.needs_labels
            )
        if job.calibration_data:
            self.calibration_data = data.open_data(job.calibration_data, inputs, preprocess=job.preprocess)
        self._check_clusters()
        splits = data.split(
            self.data.digest,
            len(self.data),
            calibration_apart=bool(job.calibration_data),
            final_apart=bool(job.final_data),
            seed=job.split_seed,
            clusters=self.data.clusters,
        )
        self.calibration_indices = splits.calibration if not job.calibration_data else _all(self.calibration_data)
        self.final_indices = splits.final if not job.final_data else _all(self.final_data)
        # Shuffled once by the data's own digest, so that the beginning is a fair subset in every process.
        order = np.random.RandomState(int(self.data.digest[:8], 16)).permutation(len(splits.search))
        self.search_indices = splits.search[order]
        self.score_orders = {
            split: order_scores(dataset, indices, self.model.batch, accumulating=self.metric.kind == "accumulating")
            for split, dataset, indices in (
                ("search", self.data, self.search_indices),
                ("final", self.final_data, self.final_indices),
            )
        }

    def _check_clusters(self) -> None:
        job, given = self.job, {"--data": self.data.clusters}
        data.check_number(self.data.clusters, f"data {job.data!r}")
        if job.final_data:
            data.check_number(self.final_data.clusters, f"final data {job.final_data!r}")
            given["--final-data"] = self.final_data.clusters
        if job.calibration_data:
            given["--calibration-data"] = self.calibration_data.clusters
        data.check_apart(given)

    def _count_clusters(self) -> dict[str, int]:
        """How many clusters each part has; empty where the data have no clusters."""
        parts = {
            "calibration": (self.calibration_data, self.calibration_indices),
            "search": (self.data, self.search_indices),
            "final": (self.final_data, self.final_indices),
        }
        return {
            name: data.count_clusters(dataset.clusters[indices])
            for name, (dataset, indices) in parts.items()
            if dataset.clusters is not None
        }

    def _default_metric(self) -> default_metric.Choice:
        labels = self.data.labels(np.array([0])) if self.data.has_labels else None
        return default_metric.default_metric(self._output_specs(), labels)

    def _output_specs(self) -> Sequence[models.TensorSpec]:
        """The model's outputs; run once where shape inference does not know them."""
        known = self.model.outputs
        if all(spec.shape for spec in known):
            return known
        with closing(self.backend.float_session(self.model)) as session:
            found = session.run(self.data.batch(np.zeros(self.model.batch, np.int64))[0])
        return [replace(spec, shape=spec.shape or found[spec.name].shape) for spec in known]

    def _metric_notes(self) -> list[str]:
        """How the metric was chosen, where nobody named it, and which outputs it does not score."""
        name, why = self.metric.name, self._chosen.why
        notes = [f"the metric is {name}, because {why}; --metric names another"] if why else []
        kinds = {spec.name: "f" if default_metric.is_float(spec) else "i" for spec in self.model.outputs}
        read = self.metric.outputs_read(kinds)
        if unread := [repr(output) for output in kinds if output not in read]:
            notes.append(
                f"metric {name} reads the output{'s' * (len(read) > 1)} {', '.join(map(repr, read))} alone: "
                f"{', '.join(unread)} {'are' if len(unread) > 1 else 'is'} not scored"
            )
        return notes

    # -- before the first candidate --------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Target, model, capability, data and metric, as plain values for the study's rows."""
        metric = self.metric
        return {
            "target": self.target,
            "model": self.model.digest,
            "capability": self.backend.capability(),
            "knobs": dict(self.backend.knobs()),
            "engine_file": kind_named(self.job.backend).engine_file,
            "placement": self.backend.placement.name,
            "data": {
                "digest": self.data.digest,
                "final_digest": self.final_data.digest,
                "calibration_digest": self.calibration_data.digest,
                "calibration": len(self.calibration_indices),
                "search": len(self.search_indices),
                "final": len(self.final_indices),
                "clusters": self._count_clusters(),
            },
            "score_clusters": {
                split: order.clusters for split, order in self.score_orders.items() if order.clusters is not None
            },
            "metric": {
                "name": metric.name,
                "unit": metric.unit,
                "higher_is_better": metric.higher_is_better,
                "ratio": metric.ratio,
                "kind": metric.kind,
                "notes": self._metric_notes(),
            },
        }

    def try_out(self) -> None:
        """Run and score the float model on a few samples, so that what does not fit is found before anything is made.

        Labels are checked of all samples, those of the final split too, which are scored last.

        Raises:
            ModelError: the engine does not know an op.
            ConfigError, MetricError, DataError: the metric does not fit the model's outputs or the data.
        """
        self._check_splits()
        batch = self.model.batch
        # One whole batch, and one that is filled up where a split has such a one.
        rest = max(order.left_over(batch) for order in self.score_orders.values()) or batch
        few = batch + rest
        with ExitStack() as stack:
            session = self.backend.float_session(self.model)
            stack.callback(session.close)
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder))
            try:
                searched = self._batches(self.data, self.search_indices[:few])
                accuracy.reference(session, self.metric, searched, Path(folder))
                self._try_labels(session, few, Path(folder))
            except RefusedError as error:
                raise ModelError(f"running the float model on the first samples: {error}") from error
            except NonFiniteError as error:
                raise DataError(_float_not_finite("first", error)) from error

    def _try_labels(self, session: Session, few: int, folder: Path) -> None:
        """Of built-in metrics all labels; of the user's own metric a few final samples, as only that can tell."""
        if self.metric.is_own:
            try:
                batches = self._batches(self.final_data, self.final_indices[:few])
                accuracy.reference(session, self.metric, batches, folder)
            except (DataError, MetricError) as error:
                raise type(error)(f"scoring the first final samples: {error}") from error
        elif self.metric.fit is not None:
            outputs = session.run(self._first_batch())
            check_labels(self.metric, outputs, self.data, self.search_indices, "search")
            check_labels(self.metric, outputs, self.final_data, self.final_indices, "final")

    def _check_splits(self) -> None:
        gathers = self.metric.kind == "accumulating"
        for name, indices in (("search", self.search_indices), ("final", self.final_indices)):
            units = math.ceil(len(indices) / self.model.batch) if gathers else len(indices)
            blocks = self.score_orders[name].clusters
            if blocks is not None and len(np.unique(blocks)) < 2:
                raise DataError(
                    f"splitting the data: all clusters to {name} on fit into one batch, and metric {self.metric.name} "
                    "needs two batches that share no cluster, for an interval. Give more data or a smaller batch."
                )
            if units < 2:
                wanted = f"more than {self.model.batch} (one batch)" if gathers else "at least 2"
                raise DataError(
                    f"splitting the data: metric {self.metric.name} needs {wanted} samples to {name} on, for an "
                    f"interval; of {len(self.data)} samples, {len(indices)} are for that. Give more data."
                )

    def calibration_key(self, method: str, cache: Mapping[str, float] | None = None) -> str:
        """Names the result of `calibrate` by its inputs' content."""
        given = digest_of(dict(cache)) if cache else None
        data_digest = self.calibration_data.digest
        return calibration.cache_key(self.model.digest, data_digest, self.calibration_indices, method, given)

    def calibrate(self, method: str, cache: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Ranges of every float tensor, as JSON, and what is noteworthy about them.

        Args:
            cache: magnitudes from a calibration cache; only tensors that it lacks are calibrated then.
        """
        if not cache:
            ranges = self._collect(method)
            return {"ranges": ranges.to_json(), "notes": calibration.notes(ranges)}
        tensors = calibration.float_tensors(self.model, self._calibration_threads())
        calibrated = None if set(tensors) <= cache.keys() else self._collect(method)
        taken = calibration_cache.take(cache, tensors, calibrated)
        return {"ranges": taken.ranges.to_json(), "notes": [*taken.notes(), *calibration.notes(taken.ranges)]}

    def _collect(self, method: str) -> Ranges:
        return calibration.collect(
            self.model,
            self.calibration_data,
            self.calibration_indices,
            method,
            threads=self._calibration_threads(),
            progress=lambda done, total: self.report("progress", [done, total]),
        )

    def adopt(self, changes: Mapping[str, Any]) -> None:
        """Go on with a changed job: ranges that have been calibrated, an optimization level."""
        self.job = replace(self.job, **changes)
        if "ranges" in changes:
            self._builder = None
        if "options" in changes:
            self.backend.set_options(changes["options"])
            self._first = None

    def _calibration_threads(self) -> int:
        """Calibration runs on the processor; where candidates do too, on as many threads as they, else on its share."""
        if (self.job.device or "cpu").startswith("cpu"):
            return int(self.job.options.get("threads", 1))
        return usable_processors()

    # -- candidates ------------------------------------------------------------------------------------------------

    def evaluate(self, assignment: Assignment, out: Path, limits: Limits, *, profile: bool = False) -> Evaluation:
        """Take one candidate all the way. A candidate's own failure is a value, not an exception.

        Args:
            out: where the engine file goes; it stays there when the evaluation is ok.
            limits: what makes a full accuracy run pointless.
            profile: time every layer too, and measure a doubtful latency more often: for what others are held to.

        Raises:
            MetricError: the metric raised or gave NaN.
            ArtifactError: there is no room for the engine.
            DataError: samples cannot be read, or FP32 itself is not finite on them.
            DeviceError, OutOfMemoryError: this process must be replaced.
        """
        candidate, watch = Candidate(assignment, out), Stopwatch(kind=Stage.LOWER.value)
        start = time.perf_counter()
        try:
            with use_stopwatch(watch):
                self._take_through(candidate, limits, profile, watch)
        except RefusedError as error:
            candidate.failed(FailureKind.REFUSED, str(error), error.group)
        except NonFiniteError as error:
            candidate.failed(FailureKind.NON_FINITE, f"{error}; {self._where_non_finite(assignment)}")
        except OSError as error:
            raise meaning_of(error, out) from error
        except Exception as error:
            if is_common(error):
                raise
            if not isinstance(error, BitfrontError):
                with suppress(OSError):  # the disk that the log is on may be full
                    traceback.print_exc()
            candidate.failed(FailureKind.ERROR, f"{type(error).__name__}: {error}")
        finally:
            candidate.close()
        return candidate.evaluation(time.perf_counter() - start, watch.seconds(), self.backend.notes)

    def _take_through(self, candidate: Candidate, limits: Limits, profile: bool, watch: Stopwatch) -> None:
        self._enter(candidate, Stage.LOWER)
        lowered = self.builder.lower(candidate.assignment)
        self._enter(candidate, Stage.BUILD)
        watch.turn("build")
        engine = self._first_or_new(candidate, lowered)
        self._enter(candidate, Stage.AUDIT)
        watch.turn("audit")
        candidate.audit = self.builder.audit(engine, candidate.assignment)
        watch.turn("load")
        candidate.session = self.builder.load(engine.path)
        self._enter(candidate, Stage.LATENCY)
        watch.turn("latency")
        candidate.latency = self._latency(candidate.session, limits.reference_ms, _TRIES if profile else 2)
        if profile or self.backend.quick_profile:
            with latency.device_lock(self.backend.lock_name):
                candidate.layers = self.builder.profile(engine.path, self._first_batch(), _PROFILED)
            candidate.keeps_layers = profile
        self._enter(candidate, Stage.ACCURACY)
        watch.turn("score")
        candidate.accuracy = self._accuracy(candidate.session, candidate.latency, limits)
        watch.move("score", "run", candidate.accuracy.run_s)

    def _enter(self, candidate: Candidate, stage: Stage) -> None:
        candidate.stage = stage
        self.report("stage", stage.value)

    def _latency(self, session: Session, reference_ms: float | None, tries: int = 2) -> Latency:
        inputs = self._first_batch()
        session.bind(inputs)
        session.run(inputs)
        baseline = self.baseline if self.target.relative else None
        with latency.device_lock(self.backend.lock_name):
            return latency.measure(
                session,
                statistic=self.target.statistic,
                baseline=baseline,
                reference_ms=reference_ms,
                spread_limit=self._spread_limit,
                state=self.backend.device_state,
                tries=tries,
            )

    @property
    def _spread_limit(self) -> float:
        return latency.CPU_SPREAD_LIMIT if self.target.relative else latency.GPU_SPREAD_LIMIT

    def _accuracy(self, session: Session, measured: Latency, limits: Limits) -> Accuracy:
        reference = self._reference("search")
        late = limits.latency_ms is not None and measured.value_ms > limits.latency_ms
        with closing(self._scored_batches("search")) as batches:
            return accuracy.evaluate(
                session,
                self.metric,
                batches,
                reference,
                allowed_drop=self._allowed_drop(limits, reference.value),
                max_samples=accuracy.subset_size(reference.samples) if late else None,
                clusters=self.score_orders["search"].clusters,
            )

    def _allowed_drop(self, limits: Limits, reference: float) -> float | None:
        """The loss beyond which an evaluation is lost: of both limits, the narrower."""
        bound = None if limits.value is None else float(self.metric.loss(reference, limits.value))
        return min((drop for drop in (limits.drop, bound) if drop is not None), default=None)

    def _where_non_finite(self, assignment: Assignment) -> str:
        """Names the groups whose outputs stop being finite on the data that showed it."""
        try:
            with closing(self.builder.probe(assignment)) as session:
                for batch in self._batches(self.data, self.search_indices):
                    outputs = session.run(batch.inputs)
                    bad = [g for g in self.model.groups if not np.isfinite(outputs[g.id]).all()]
                    if bad:
                        named = ", ".join(f"{group.name} ({assignment[group.id].label})" for group in bad[:4])
                        return f"the first groups with NaN or infinity are {named}"
        except Exception as error:
            if is_common(error):
                raise
            return f"in which group could not be found ({type(error).__name__}: {error})"
        return "every group's own output is finite, so it arises outside the groups"

    # -- finalists and exports -------------------------------------------------------------------------------------

    def finalists(self, engines: Mapping[str, str], rounds: int, reference_ms: float | None = None) -> dict[str, Any]:
        """Measure several engines again, interleaved with each other and the baseline, and score them on *final*.

        Args:
            engines: any label → engine file.
            rounds: how often each is visited; twice that when the measurement is doubtful, and repeated.
            reference_ms: what the baseline usually takes, on relative targets.

        Returns:
            `latency`: label → Latency; `accuracy`: label → Accuracy on the final split; `reference`: FP32's value
            there; `failed`: label → message, of engines that are not in `accuracy` because their outputs on the
            final split are not finite.
        """
        with ExitStack() as stack, refusals("measuring the finalists"):
            sessions = {label: stack.enter_context(closing(self.builder.load(Path(e)))) for label, e in engines.items()}
            measured = self._measure_together(sessions, rounds, self.baseline, reference_ms=reference_ms, again=True)
            reference = self._reference("final")
            scores, failed = {}, {}
            for done, (label, session) in enumerate(sessions.items()):
                self.report("progress", [done + 1, len(sessions)])
                try:
                    with closing(self._scored_batches("final")) as batches:
                        scores[label] = accuracy.evaluate(
                            session, self.metric, batches, reference, clusters=self.score_orders["final"].clusters
                        )
                except NonFiniteError as error:
                    failed[label] = str(error)
            return {"latency": measured, "accuracy": scores, "reference": reference.value, "failed": failed}

    def time_together(
        self, engines: Mapping[str, str], rounds: int, reference_ms: float | None = None
    ) -> dict[str, Latency]:
        """Measure several engines in turn with each other and the baseline, as finalists are, and score nothing.

        Args:
            engines, rounds, reference_ms: as `finalists` has them.

        Returns:
            Label → Latency.
        """
        with ExitStack() as stack, refusals("measuring engines in turn"):
            sessions = {label: stack.enter_context(closing(self.builder.load(Path(e)))) for label, e in engines.items()}
            return self._measure_together(sessions, rounds, self.baseline, reference_ms=reference_ms, again=True)

    def _measure_together(
        self,
        sessions: Mapping[str, Session],
        rounds: int,
        baseline: Session | None,
        *,
        reference_ms: float | None = None,
        again: bool,
    ) -> dict[str, Latency]:
        inputs = self._first_batch()
        for session in (*sessions.values(), *([baseline] if baseline is not None else [])):
            session.bind(inputs)
            session.run(inputs)
        with latency.device_lock(self.backend.lock_name):
            return latency.measure_together(
                sessions,
                rounds,
                statistic=self.target.statistic,
                baseline=baseline,
                relative=self.target.relative,
                reference_ms=reference_ms,
                spread_limit=self._spread_limit,
                state=self.backend.device_state,
                again=again,
                alive=self._alive,
            )

    def build(self, assignment: Assignment, out: Path) -> None:
        """Build the engine of an assignment, unmeasured.

        Raises:
            EvaluatorError: the engine's builder refuses it.
        """
        with refusals("building an engine again", "its builder refuses it"):
            self._build(assignment, out)

    def _build(self, assignment: Assignment, out: Path) -> None:
        try:
            engine = self._built(self.builder.lower(assignment), out)
            self.builder.audit(engine, assignment)
        except BaseException:
            discard(out)
            raise
        self._alive()

    def _built(self, lowered: Any, out: Path) -> Engine:
        try:
            return self.builder.build(lowered, out)
        except RefusedError as error:
            check_room(out, error)
            raise

    def first_build(self, assignment: Assignment) -> float:
        """Build an assignment, and keep the engine for the evaluation of it; the seconds that the build took.

        Raises:
            EvaluatorError: the engine's builder refuses it.
        """
        out = self.folder / "first.engine"
        with refusals("building the first engine", "its builder refuses it"):
            start = time.perf_counter()
            engine = self._built(self.builder.lower(assignment), out)
            seconds = time.perf_counter() - start
        self._first = (assignment, engine, seconds)
        return seconds

    def _first_or_new(self, candidate: Candidate, lowered: Any) -> Engine:
        """The engine that `first_build` made, where it is of a candidate's assignment, else a new one."""
        first, self._first = self._first, None
        if first is not None and first[0] == candidate.assignment:
            shutil.move(first[1].path, candidate.out)  # the one may lie on another file system than the other
            engine, candidate.build_s = replace(first[1], path=candidate.out), first[2]
        else:
            start = time.perf_counter()
            engine = self._built(lowered, candidate.out)
            candidate.build_s = time.perf_counter() - start
        candidate.engine = engine
        return engine

    def time_again(self, assignment: Assignment, out: Path, reference_ms: float | None = None) -> Latency:
        """Build an assignment and measure its latency alone; for repeatability and drift."""
        try:
            with refusals("building and timing an engine again", "its builder refuses it, or it cannot be run here"):
                self._build(assignment, out)
                with closing(self.builder.load(out)) as session:
                    return self._latency(session, reference_ms)
        finally:
            discard(out)

    def load_engine(self, engine: Path) -> None:
        """Load an engine file and run it once, in turn with measurements on the device, to `time_engine` it later."""
        with latency.device_lock(self.backend.lock_name), refusals(f"loading the engine {engine.name}"):
            session = self.builder.load(engine)
            session.run(self._first_batch())
        self._loaded = (engine, session)

    def time_engine(self, engine: Path, reference_ms: float | None = None) -> Latency:
        """Measure the latency of an engine file alone, loading it where that was not done; for repeatability between
        processes.
        """
        loaded, self._loaded = self._loaded, None
        with refusals(f"timing the engine {engine.name}"):
            session = loaded[1] if loaded is not None and loaded[0] == engine else self.builder.load(engine)
            with closing(session):
                return self._latency(session, reference_ms)

    def check_outputs(self, engine: Path) -> dict[str, NDArray[Any]]:
        """Outputs of an engine file on the first final samples: what an export must give again, bit for bit.

        Of large outputs, 64 MiB and the batch under way are enough. One without axes counts as a row per batch.
        """
        results: list[dict[str, NDArray[Any]]] = []
        with refusals(f"running the engine {engine.name}"), closing(self.builder.load(engine)) as session:
            for batch in self._batches(self.final_data, self.final_indices[:_CHECK_ROWS]):
                results.append({name: _row_wise(array) for name, array in session.run(batch.inputs).items()})
                if sum(array.nbytes for result in results for array in result.values()) >= _CHECK_BYTES:
                    break
        return {name: np.concatenate([result[name] for result in results]) for name in results[0]}

    def compare_latency(self, engine: Path, measured: Path, rounds: int) -> dict[str, Any]:
        """Time an engine file interleaved with the one that was measured and, on relative targets, the baseline; once.

        Returns:
            The target's statistic of each, in milliseconds: `engine`, `measured`, `baseline`; and `warnings`, what is
            doubtful in them, as finalists' are marked.
        """
        with ExitStack() as stack, refusals("timing two engines in turn"):
            sessions = {
                name: stack.enter_context(closing(self.builder.load(path)))
                for name, path in (("engine", engine), ("measured", measured))
            }
            baseline = self.baseline if self.target.relative else None
            found = self._measure_together(sessions, rounds, baseline, again=False)
        times: dict[str, Any] = {name: each.raw_ms for name, each in found.items()}
        if baseline is not None:
            times["baseline"] = found["engine"].baseline_ms
        return {**times, "warnings": _all_warnings(found)}

    def tensor_types(self, engine: Path) -> dict[str, str]:
        """numpy's name of the type that every input and output of an engine file has, which may not be the model's."""
        with refusals("reading an engine's types"), closing(self.builder.load(engine)) as session:
            return {spec.name: spec.dtype for spec in (*self.model.inputs, *self.model.outputs)} | dict(session.types)

    def export_onnx(self, assignment: Assignment, out: Path) -> None:
        """Write the ONNX file that the engine of an assignment is built from."""
        self.builder.write_source(assignment, out)

    def export_timing_cache(self, out: Path) -> bool:
        """Write what the builder has learnt of tactics' times; False where it keeps nothing of the kind."""
        cache = self.builder.timing_cache()
        if cache:
            out.write_bytes(cache)
        return bool(cache)

    # -- looking closer --------------------------------------------------------------------------------------------

    def profile(self, engine: Path, count: int) -> tuple[LayerTime, ...]:
        """Time every layer of an engine file over `count` inferences, in the order they run.

        Raises:
            EvaluatorError: the engine cannot be loaded or run here.
        """
        with latency.device_lock(self.backend.lock_name), refusals(f"profiling {engine.name}"):
            return self.builder.profile(engine, self._first_batch(), count)

    def compare(self, engine: Path, assignment: Assignment, groups: bool, samples: int) -> dict[str, Any]:
        """How far an engine is from ONNX Runtime on the first final samples; see `compare_engine`."""
        indices = self.final_indices[:samples]
        found = compare_engine(
            self.backend,
            self.builder,
            self.model,
            _read_ranges(self.job.ranges),
            engine,
            assignment,
            lambda: self._batches(self.final_data, indices),
            groups=groups,
            done=lambda done: self.report("progress", [done, len(indices)]),
        )
        return {**found, "samples": len(indices)}

    def sensitivity(
        self,
        seconds: float,
        pairs: Sequence[tuple[str, Precision]] | None = None,
        placement: str | None = None,
    ) -> dict[str, Any]:
        """What each group alone in a lower precision adds to the outputs' error, on search samples; builds no engine.

        Args:
            seconds: for the whole pass; see `sensitivity.sensitivity`.
            pairs: group id and precision; None for every lower precision that this target offers each group.
            placement: name of the one that another target lowers by, which a process measures for that has no such
                device: on the processor, of which one core is left to others. None for this target's own.

        Returns:
            `rows` and `notes` of `sensitivity.sensitivity`, and the `device` that it ran on.

        Raises:
            RunError: the model has not been calibrated.
            EvaluatorError: ONNX Runtime cannot run the float model.
        """
        chosen = self.backend.placement if placement is None else placement_named(placement)
        network = Network(self.model, _read_ranges(self.job.ranges), chosen)
        with self._emulator(placement) as emulator:
            found = sensitivity(
                emulator,
                network,
                self._lower_pairs(network.ranges) if pairs is None else pairs,
                self.search_indices,
                lambda indices: self._batches(self.data, indices),
                seconds=seconds,
                done=lambda done, total: self.report("progress", [done, total]),
                alive=self._alive,
            )
            return {**found, "device": emulator.device}

    def _emulator(self, placement: str | None) -> AbstractContextManager[Emulator]:
        if placement is None:
            return quickest(self.backend, self.job.device, self.model.graph)
        return beside_others(placement_named(placement))

    def _lower_pairs(self, ranges: Ranges) -> list[tuple[str, Precision]]:
        choices = make_space(self.model, self.backend.capability(), ranges).choices
        return [
            (g, c.precision)
            for g, some in choices.items()
            for c in some
            if c.offered and c.precision is not Precision.FP32
        ]

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
            self._baseline = self._float_engine()
        return self._baseline

    @time_spent("reference")
    def _float_engine(self) -> Session:
        self.folder.mkdir(parents=True, exist_ok=True)
        out = self.folder / "baseline.engine"
        try:
            self._build(self._float_assignment(), out)
            session = self.builder.load(out)
            session.run(self._first_batch())
        except RefusedError as error:
            raise EvaluatorError(f"building the FP32 baseline: the engine's builder refuses it: {error}") from error
        session.bind(self._first_batch())
        return session

    def _float_assignment(self) -> Assignment:
        return make_space(self.model, self.backend.capability()).uniform(Precision.FP32)

    @time_spent("reference")
    def _reference(self, split: str) -> accuracy.Reference:
        """FP32 on one split, kept on disk so that a fresh process need not run it again."""
        folder = self.folder / f"reference-{split}"
        stored = accuracy.load_reference(folder)
        samples = len(self.score_orders[split].indices)
        if stored is not None and stored.metric == self.metric.name and stored.samples == samples:
            return stored
        try:
            # A search may stop after the first samples; elsewhere all are seen, in an order where neighbours are alike.
            stops = split == "search" and self.metric.kind == "per_sample"
            kept = resemblance.first_rows(samples) if stops else resemblance.spread_rows(samples)
            with closing(self._scored_batches(split)) as batches:
                return accuracy.reference(self.baseline, self.metric, batches, folder, kept=kept)
        except NonFiniteError as error:
            raise DataError(_float_not_finite(split, error)) from error

    def _batches(self, dataset: data.Dataset, indices: NDArray[np.int64]) -> Generator[data.Batch, None, None]:
        yield from self._tell_alive(data.batches(dataset, indices, self.model.batch))

    def _scored_batches(self, split: str) -> Generator[data.Batch, None, None]:
        """Those of a whole split, read while the engine runs."""
        with closing(read_ahead(self.score_orders[split].batches(self.model.batch))) as batches:
            yield from self._tell_alive(batches)

    def _tell_alive(self, batches: Iterator[data.Batch]) -> Iterator[data.Batch]:
        for batch in batches:
            yield batch
            self._alive()  # one more is done

    def _first_batch(self) -> dict[str, NDArray[Any]]:
        return next(self._batches(self.data, self.search_indices)).inputs


def _open_backend(job: Job) -> Backend:
    try:
        with _turn_of(job) if job.beside else nullcontext():
            return open_backend(job.backend, job.device, job.options)
    except BitfrontError:
        raise
    except Exception as error:
        raise TargetError(
            f"starting backend {job.backend}: {type(error).__name__}: {error}. Its installation may be broken: "
            "try `bitfront doctor`, or install it anew."
        ) from error


def _turn_of(job: Job) -> AbstractContextManager[None]:
    """The lock of a job's device, asked for once everything is imported that the backend needs."""
    kind = kind_named(choose_backend(job.backend))
    kind.prepare()
    device = job.device or kind.default_device
    gpu = kind.gpu_of(device)
    return latency.device_lock(device if gpu is None else discovery.lock_name(gpu))


def _all_warnings(found: Mapping[str, Latency]) -> list[str]:
    """What is doubtful in measurements that were made together; what all of them have is said once."""
    told = [(name, warning) for name, latency in found.items() for warning in latency.warnings]
    common = {warning for _, warning in told if all(warning in latency.warnings for latency in found.values())}
    return list(dict.fromkeys(warning if warning in common else f"{name}: {warning}" for name, warning in told))


def _float_not_finite(split: str, error: NonFiniteError) -> str:
    return (
        f"running the FP32 model on the {split} samples: {error}. What it computes in FP32 has to be finite: find the "
        "samples that are out of its range and leave them out."
    )


def _row_wise(array: NDArray[Any]) -> NDArray[Any]:
    return np.atleast_1d(array.astype(str) if array.dtype.kind == "O" else array)


def _read_ranges(path: str | None) -> Ranges:
    if path is None:
        raise RunError("evaluating a candidate: the model has not been calibrated yet")
    return Ranges.from_json(json.loads(Path(path).read_text(encoding="utf-8")))


def _all(dataset: data.Dataset) -> NDArray[np.int64]:
    return np.arange(len(dataset), dtype=np.int64)
