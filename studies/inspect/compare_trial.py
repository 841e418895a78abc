"""Comparing a trial's engine: opening what it needs, warning of changes, running it, and judging the groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from evaluators.diagnose.compare import EngineComparison, TensorDifferences, fall_db, held_in, inputs_db
from evaluators.diagnose.wrapper.fault import LEAST_SAMPLES, WrapperComparison
from evaluators.process.line import EvaluatorLine
from search.errors import ArtifactError, ConfigError, StudyError
from search.graph.model import Edge
from search.values import Assignment, Stage, flatten
from studies import environment
from studies.artifacts.kept_ranges import load_ranges
from studies.artifacts.locations import open_artifacts
from studies.events import Events
from studies.inspect.comparison import Comparison, GroupSide, OutputComparison
from studies.judging.selection import load_built
from studies.judging.sentences.evaluations import mix_text
from studies.options.config import SearchConfig
from studies.run.session.data_caches import study_cache
from studies.run.session.setup import Checked, adopt_ranges, check_inputs
from studies.store.records import GroupRecord, StoredEvaluation, StudyRecord, TargetRecord
from studies.store.store import Store


def compare_trial(
    store: Store,
    study: StudyRecord,
    target: TargetRecord,
    trial: int,
    config: SearchConfig,
    *,
    groups: bool,
    samples: int,
    threshold_db: float,
    outputs: Path | None,
    progress: Events,
) -> Comparison:
    """Run a trial's engine beside ONNX Runtime on the first samples of the final split. Stores nothing.

    Args:
        outputs: file of what the user's own program gives, to look for faults in; None for none.

    Raises:
        StudyError: no such trial, one without an engine, or another model than the study's.
        ConfigError: `samples` or `threshold_db` is out of range, or there is no file `outputs`.
        DataError: `outputs` cannot be compared.
        EvaluatorError: the engine cannot be loaded or run here.
        ArtifactError: the calibrated ranges are gone, or the engine cannot be built again.
    """
    _check_arguments(samples, threshold_db, outputs)
    record = load_built(store, study, target, trial, "compare", but=(Stage.LATENCY, Stage.ACCURACY))
    assignment = record.evaluation.assignment
    with check_inputs(config, events=progress, cache=study_cache(config)) as good:
        _check_model(good, study, config, trial)
        warnings = tuple(find_changes(study, target, good))
        _tell(warnings, progress)
        run = _TrialComparison(store, good, record, target, config, progress)
        comparison = run.compare(groups, samples)
        known = {group.id: group for group in store.studies.groups(study.id)}
        parts = (
            group_sides(comparison.groups, known, assignment, good.model.edges, threshold_db)
            if comparison.groups
            else None
        )
        return Comparison(
            study=study.name,
            trial=trial,
            mix=mix_text(assignment),
            samples=comparison.samples,
            threshold_db=threshold_db,
            outputs=output_sides(comparison.outputs, assignment, threshold_db),
            groups=parts,
            warnings=(*warnings, *run.warnings),
            notes=tuple(run.notes),
            flips=comparison.flips,
            wrapper=None if outputs is None else run.compare_wrapper(outputs, samples, threshold_db),
        )


def _tell(warnings: tuple[str, ...], progress: Events) -> None:
    for warning in warnings:
        progress.note(f"warning: {warning}")


def _check_arguments(samples: int, threshold_db: float, outputs: Path | None) -> None:
    if samples < 1:
        raise ConfigError(f"--samples {samples}: expected at least 1.")
    if not (math.isfinite(threshold_db) and threshold_db > 0):
        raise ConfigError(f"--threshold {threshold_db:g}: expected decibels, more than zero.")
    if outputs is not None:
        if not outputs.is_file():
            raise ConfigError(
                f"--outputs {outputs}: expected a .npz file, and there is none. Write it with numpy.savez."
            )
        if samples < LEAST_SAMPLES:
            raise ConfigError(
                f"--samples {samples}: expected at least {LEAST_SAMPLES} with --outputs, because chance explains much "
                "of fewer samples."
            )


def _check_model(good: Checked, study: StudyRecord, config: SearchConfig, trial: int) -> None:
    if good.model.digest != study.model_digest:
        raise StudyError(
            f"comparing trial {trial}: the model {config.model} has other content than that of the study (or other "
            "shapes were given). Give the study's own file; --model gives its path if it has moved."
        )


class _TrialComparison:
    """Comparisons of one trial in an evaluator process."""

    def __init__(
        self,
        store: Store,
        good: Checked,
        record: StoredEvaluation,
        target: TargetRecord,
        config: SearchConfig,
        progress: Events,
    ) -> None:
        self.good = good
        self.record = record
        self.progress = progress
        self.artifacts = open_artifacts(config, progress.note)
        self.notes: list[str] = []
        self.warnings: list[str] = []
        if target.ranges_digest is None:
            raise StudyError(f"comparing trial {record.trial}: the study has not been calibrated. Resume it first.")
        ranges = load_ranges(store, self.artifacts, target.id, target.ranges_digest)
        adopt_ranges(good.keeper, good.folder, ranges)

    @cached_property
    def _engine(self) -> Path:
        digest = self.record.artifact
        if digest is not None and digest in self.artifacts:
            # A damaged engine is one of the things to find here.
            try:
                with self.artifacts.open(digest):
                    pass
            except ArtifactError as error:
                self.warnings.append(str(error))
                self.progress.note(f"warning: {error}")
            return self.artifacts.path(digest)
        self._note("the engine was not kept, so it was built again; the new build may use other kernels")
        out = self.good.folder / f"{self.record.id}.engine"
        self._line().builds.rebuild(self.record.evaluation.assignment, out)
        return out

    def compare(self, groups: bool, samples: int) -> EngineComparison:
        comparison = self._line().diagnoses.compare(self._engine, self.record.evaluation.assignment, groups, samples)
        if groups and not comparison.opened:
            self._note(
                "the groups were compared in an engine that was built again with their outputs exposed, which prevents "
                "fusions"
            )
        elif groups:
            self._note("the groups were compared in the engine with their outputs exposed, which prevents fusions")
        return comparison

    def compare_wrapper(self, outputs: Path, samples: int, threshold_db: float) -> WrapperComparison:
        """After `compare`."""
        return self._line().diagnoses.compare_wrapper(self._engine, outputs.resolve(), samples, threshold_db)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.progress.note(text)

    def _line(self) -> EvaluatorLine:
        return self.good.keeper.ask(f"comparing trial {self.record.trial}", partial(self.progress.step, "comparing"))


# What differs between two runs on one machine, or says nothing about results.
_UNTOLD = frozenset({"memory_bytes", "cpu.usable_threads", "container"})


def find_changes(study: StudyRecord, target: TargetRecord, good: Checked) -> Iterator[str]:
    """Sentences on what is not as it was when a study was made: target, data and environment."""
    yield from (f"target {line}" for line in differences(target.target.to_json(), good.target.to_json()))
    now = good.data
    for name, key in (("data", "digest"), ("final data", "final_digest")):
        if now[key] != study.data.get(key):
            yield f"the {name} have other content than those of the study, so the comparison uses other samples"
    if not study.environment:
        yield "no environment was recorded with the study, so it cannot be compared with this one"
        return
    yield from (f"environment {line}" for line in differences(study.environment, environment.collect()))


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two JSON objects: `packages.onnx: was 1.17, is 1.18`."""
    before, after = flatten(recorded), flatten(now)
    keys = sorted((before.keys() | after.keys()) - _UNTOLD)
    return [
        f"{key}: was {_value(before.get(key))}, is {_value(after.get(key))}"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(map(str, value.values()))
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    return "not there" if value in (None, "") else str(value)


_LEAST_DB = 6.0  # of an engine against its emulation, however little INT8 leaves of the float model: half the amplitude


def output_sides(
    rows: Sequence[TensorDifferences], assignment: Assignment, threshold_db: float
) -> tuple[OutputComparison, ...]:
    """Each output with whether its engine is as near to its emulation as its precisions explain."""
    normal = min(precision.ceiling_db for precision in assignment.values())
    sides = []
    for row in rows:
        by_pair = row.by_pair
        allowed = max(min(normal, by_pair["emulated-float"].level_db) - threshold_db, _LEAST_DB)
        sides.append(OutputComparison(row.name, by_pair, by_pair["engine-emulated"].level_db >= allowed))
    return tuple(sides)


def group_sides(
    rows: Sequence[TensorDifferences],
    groups: Mapping[str, GroupRecord],
    assignment: Assignment,
    edges: Sequence[Edge],
    threshold_db: float,
) -> tuple[GroupSide, ...]:
    """Each group with how far its output falls below its inputs, in the order of `rows`."""
    sources: dict[str, list[str]] = {}
    for edge in edges:
        if edge.source is not None:
            sources.setdefault(edge.target, []).append(edge.source)
    levels = {row.name: row.by_pair["engine-emulated"].level_db for row in rows}
    inputs, held = inputs_db(levels, sources), held_in(assignment, sources)
    sides = []
    for row in rows:
        name = row.name
        fall = fall_db(levels[name], inputs[name], held[name])
        by_pair = row.by_pair
        sides.append(GroupSide(groups[name], assignment[name].label, by_pair, inputs[name], fall, fall > threshold_db))
    return tuple(sides)
