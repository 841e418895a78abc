"""Building engines from assignments."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluators.diagnose.compare_run import refusals
from evaluators.engine import Engine
from evaluators.process.job import discard, discarding
from evaluators.process.results import Built
from evaluators.process.tasks.candidate import Candidate
from evaluators.process.tasks.open_model import OpenModel
from search.values import Assignment, Evaluation, Stage


@dataclass(frozen=True)
class _First:
    """An engine that was built before its evaluation began, and what it was built with."""

    assignment: Assignment
    knobs: Mapping[str, str]
    engine: Engine
    seconds: float


class Builds:
    """Implements `BuildRequests`."""

    def __init__(self, opened: OpenModel) -> None:
        self._opened = opened
        self._first: _First | None = None

    def build(self, assignment: Assignment, out: Path) -> Built:
        opened = self._opened
        candidate = Candidate(Evaluation(assignment), out, Stage.LOWER, Stage.LOWER.value)
        with discarding(out), candidate.stages():
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
        """The engine that `build_first` made, where it is of this assignment; it can be taken once."""
        first, self._first = self._first, None
        if first is None or (first.assignment, first.knobs) != (assignment, self._knobs()):
            return None
        shutil.move(first.engine.path, out)  # the one may lie on another file system than the other
        return replace(first.engine, path=out), first.seconds

    def _knobs(self) -> Mapping[str, str]:
        return dict(self._opened.backend.knobs())

    def rebuild(self, assignment: Assignment, out: Path) -> None:
        with refusals("building an engine again", "its builder refuses it"):
            self._opened.build_audited(assignment, out)

    def build_first(self, assignment: Assignment) -> float:
        opened = self._opened
        out = opened.folder / "first.engine"
        with refusals("building the first engine", "its builder refuses it"):
            start = time.perf_counter()
            engine = opened.build(opened.builder.lower(assignment), out)
            seconds = time.perf_counter() - start
        self._first = _First(assignment, self._knobs(), engine, seconds)
        return seconds

    def write_source(self, assignment: Assignment, out: Path) -> None:
        self._opened.builder.write_source(assignment, out)

    def write_float_model(self, out: Path) -> None:
        self._opened.model.save(out)

    def write_timing_cache(self, out: Path) -> bool:
        cache = self._opened.builder.timing_cache()
        if cache:
            out.write_bytes(cache)
        return bool(cache)
