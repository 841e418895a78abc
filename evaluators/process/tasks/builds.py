"""Building engines from assignments."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluators.calibration.graph_sessions import make_up_inputs, measure_shapes
from evaluators.diagnose.compare_run import refusals
from evaluators.engine import Engine
from evaluators.process.job import discard, discard_on_error
from evaluators.process.results import Built
from evaluators.process.tasks.candidate import Candidate
from evaluators.process.tasks.open_model import OpenModel
from search.values import Assignment, Evaluation, Stage, is_quantized


@dataclass(frozen=True)
class _First:
    """An engine that was built before its evaluation began.

    Attributes:
        calibrated: whether the model was calibrated then, and had what recovery changes of it.
    """

    engine: Engine
    seconds: float
    calibrated: bool


_What = tuple[Assignment, tuple[tuple[str, str], ...]]  # what an engine was built from: the assignment, and the knobs


class Builds:
    """Implements `BuildRequests`."""

    def __init__(self, opened: OpenModel) -> None:
        self._opened = opened
        self._first: dict[_What, _First] = {}

    def build(self, assignment: Assignment, out: Path) -> Built:
        opened = self._opened
        candidate = Candidate(Evaluation(assignment), out, Stage.LOWER, Stage.LOWER.value)
        with discard_on_error(out), candidate.stages():
            opened.tell_stage(Stage.LOWER)
            lowered = opened.builder.lower(assignment)
            candidate.enter(Stage.BUILD, "build")
            opened.tell_stage(Stage.BUILD)
            engine, seconds = self._take_first(assignment, out) or self._build(lowered, out)
            candidate.learn(build_s=seconds, size_bytes=engine.size_bytes, notes=engine.notes)
            candidate.enter(Stage.AUDIT, "audit")
            opened.tell_stage(Stage.AUDIT)
            audit = opened.builder.audit(engine, assignment)
            candidate.learn(audit=audit.rows, engine=audit.summary)
        evaluation = candidate.finish(opened.backend.notes)
        if evaluation.ok:
            return Built(evaluation, out)
        discard(out)
        return Built(evaluation, None)

    def _build(self, lowered: Any, out: Path) -> tuple[Engine, float]:
        start = time.perf_counter()
        engine = self._opened.build(lowered, out)
        return engine, time.perf_counter() - start

    def _take_first(self, assignment: Assignment, out: Path) -> tuple[Engine, float] | None:
        """A copy of the engine that `build_first` made of this assignment, where it is what would be built now."""
        first = self._first.get(self._what(assignment))
        if first is None or not self._is_valid(first, assignment):
            return None
        shutil.copyfile(first.engine.path, out)
        return replace(first.engine, path=out), first.seconds

    def _is_valid(self, first: _First, assignment: Assignment) -> bool:
        """Whether a first engine still is that of its mix: it has no INT8, and recovery changed no constants since."""
        return not is_quantized(assignment) and (first.calibrated or not self._opened.ranges.recovery.factors)

    def _what(self, assignment: Assignment) -> _What:
        return assignment, tuple(sorted(self._opened.backend.knobs().items()))

    def build_given(self, out: Path) -> None:
        with refusals("building the file as it was given", "its builder refuses it"), discard_on_error(out):
            self._opened.builder.build_file(self._opened.load_as_given(), out)

    def rebuild(self, assignment: Assignment, out: Path) -> None:
        with refusals("building an engine again", "its builder refuses it"):
            self._opened.build_audited(assignment, out)

    def make(self, assignment: Assignment, out: Path) -> None:
        """Have the engine of an assignment at `out`: the one that `build_first` made, else a new one, looked at."""
        if self._take_first(assignment, out) is None:
            self._opened.build_audited(assignment, out)

    def build_first(self, assignment: Assignment) -> float:
        opened, what = self._opened, self._what(assignment)
        if what in self._first:
            return self._first[what].seconds
        out = opened.folder / f"first-{len(self._first)}.engine"
        with refusals("building the first engine", "its builder refuses it"):
            start = time.perf_counter()
            engine = opened.build(opened.provisional_builder.lower(assignment), out)
            seconds = time.perf_counter() - start
        self._first[what] = _First(engine, seconds, opened.job.ranges is not None)
        return seconds

    def measure_shapes(self) -> dict[str, list[int]]:
        model = self._opened.model
        return measure_shapes(model.graph, model.unknown_shapes(), make_up_inputs(model.inputs))

    def write_source(self, assignment: Assignment, out: Path) -> None:
        self._opened.builder.write_source(assignment, out)

    def write_float_model(self, out: Path) -> None:
        self._opened.model.save(out)

    def write_timing_cache(self, out: Path) -> bool:
        cache = self._opened.builder.timing_cache()
        if cache:
            out.write_bytes(cache)
        return bool(cache)
