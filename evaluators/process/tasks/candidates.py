"""Building, timing and scoring candidates."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from evaluators.engine import Session
from evaluators.measure import accuracy
from evaluators.measure.scoring import NonFiniteError
from evaluators.process.job import StopLimits, discard, discard_on_error
from evaluators.process.results import Built
from evaluators.process.tasks.builds import Builds
from evaluators.process.tasks.candidate import Candidate, is_common
from evaluators.process.tasks.float_baseline import FloatBaseline
from evaluators.process.tasks.latency_meter import LatencyMeter
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from search.values import Accuracy, Assignment, Evaluation, FailureKind, Latency, Stage

_PROFILED, _FEW_PROFILED = 10, 3  # inferences of a profiled run, and of a slow engine's
_PROFILED_MS = 1000.0  # that they take together, but for the few
_TRIES = 5  # measurements at most of a uniform assignment, by which all others are predicted, where one is doubtful


class CandidateTasks:
    """Implements `CandidateRequests`."""

    def __init__(
        self, opened: OpenModel, data: OpenData, builds: Builds, baseline: FloatBaseline, meter: LatencyMeter
    ) -> None:
        self._opened = opened
        self._data = data
        self._builds = builds
        self._baseline = baseline
        self._meter = meter

    def evaluate(self, assignment: Assignment, out: Path, limits: StopLimits, profile: bool = False) -> Evaluation:
        built = self._builds.build(assignment, out)
        with discard_on_error(out):
            return self.measure(built, limits, profile)

    def measure(self, built: Built, limits: StopLimits, profile: bool = False) -> Evaluation:
        if built.engine is None:
            return built.evaluation
        candidate = Candidate(built.evaluation, built.engine, Stage.AUDIT, "load")
        with candidate.stages(), closing(self._opened.builder.load(built.engine)) as session:
            try:
                self._time_and_score(candidate, built.engine, session, limits, profile)
            finally:
                candidate.learn(memory_bytes=session.memory_bytes)
                candidate.note(session.notes)
        if candidate.evaluation.failure is not None:
            discard(built.engine)
        return candidate.finish(self._opened.backend.notes)

    def _time_and_score(
        self, candidate: Candidate, engine: Path, session: Session, limits: StopLimits, profile: bool
    ) -> None:
        candidate.enter(Stage.LATENCY, "latency")
        self._opened.tell_stage(Stage.LATENCY)
        latency = self._meter.measure(session, limits.reference_ms, _TRIES if profile else 2)
        candidate.learn(latency=latency)
        if profile or self._opened.backend.quick_profile:
            self._profile(candidate, engine, keep=profile)
        candidate.enter(Stage.ACCURACY, "score")
        self._opened.tell_stage(Stage.ACCURACY)
        try:
            exact = self._baseline.score(candidate.evaluation.assignment, session)
            scored = exact or self._score(session, latency, limits)
        except NonFiniteError as error:
            where = self._where_non_finite(candidate.evaluation.assignment)
            candidate.fail(FailureKind.NON_FINITE, f"{error}; {where}")
            return
        candidate.note(self._baseline.doubts(candidate.evaluation.assignment, session))
        candidate.watch.move("score", "run", scored.run_s)
        candidate.learn(accuracy=scored, artifact=str(engine))

    def _profile(self, candidate: Candidate, engine: Path, *, keep: bool) -> None:
        """Time the layers, of which the moves are summed up; keep the single times where they were asked for."""
        opened = self._opened
        took_ms = candidate.evaluation.latency.raw_ms if candidate.evaluation.latency else 0.0
        count = min(_PROFILED, max(_FEW_PROFILED, int(_PROFILED_MS / max(took_ms, 1e-3))))
        with opened.alone():
            layers = opened.builder.profile(engine, self._data.first_batch(), count)
        summary = candidate.evaluation.engine
        if summary is not None and layers:
            moves_ms = sum(layer.ms for layer in layers if layer.moves)
            candidate.learn(engine=replace(summary, moves_ms=moves_ms, profiled_ms=sum(layer.ms for layer in layers)))
        if keep:
            candidate.learn(profile=layers)

    def _score(self, session: Session, latency: Latency, limits: StopLimits) -> Accuracy:
        data, reference = self._data, self._baseline.reference("search")
        late = limits.latency_ms is not None and latency.value_ms > limits.latency_ms
        with closing(data.scored_batches("search")) as batches:
            return accuracy.evaluate(
                session,
                data.metric,
                batches,
                reference,
                allowed_drop=self._allowed_drop(limits, reference.value),
                max_samples=accuracy.subset_size(reference.samples) if late else None,
                clusters=data.score_orders["search"].clusters,
            )

    def _allowed_drop(self, limits: StopLimits, reference: float) -> float | None:
        """The loss beyond which an evaluation is lost: of both limits, the narrower."""
        bound = None if limits.value is None else float(self._data.metric.loss(reference, limits.value))
        return min((drop for drop in (limits.drop, bound) if drop is not None), default=None)

    def _where_non_finite(self, assignment: Assignment) -> str:
        """Names the groups whose outputs stop being finite on the data that showed it."""
        try:
            with closing(self._opened.builder.probe(assignment)) as session:
                for batch in self._data.search_batches(self._data.search_indices):
                    outputs = session.run(batch.inputs)
                    bad = [g for g in self._opened.model.groups if not np.isfinite(outputs[g.id]).all()]
                    if bad:
                        named = ", ".join(f"{group.name} ({assignment[group.id].label})" for group in bad[:4])
                        return f"the first groups with NaN or infinity are {named}"
        except Exception as error:
            if is_common(error):
                raise
            return f"in which group could not be found ({type(error).__name__}: {error})"
        return "every group's own output is finite, so it arises outside the groups"
