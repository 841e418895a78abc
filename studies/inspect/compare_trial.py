"""Compare a trial's engine: open what it needs, warn of what has changed, run it, and judge the groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.errors import ArtifactError, ConfigError, EvaluatorError, StudyError
from search.values import Assignment, Stage, Target, flatten
from studies import environment
from studies.events import Events
from studies.inspect.comparison import PAIRS, Comparison, GroupSide, Side
from studies.judging.words.descriptions import mix_text
from studies.options.config import SearchConfig
from studies.store import suggestions
from studies.store.records import FAILED, RUNNING, EvaluationRecord, GroupRecord, StudyRecord, TargetRecord
from studies.store.store import Store

if TYPE_CHECKING:
    from search.graph.model import Edge
    from studies.run.session.setup import Checked

# What differs between two runs on one machine, or says nothing about results.
_UNTOLD = frozenset({"memory_bytes", "cpu.usable_threads", "container"})
_LEAST_DB = 6.0  # of an engine against its emulation, however little INT8 leaves of the float model: half the amplitude


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
    progress: Events,
) -> Comparison:
    """Run a trial's engine beside ONNX Runtime on the first samples of the final split. Stores nothing.

    Raises:
        StudyError: no such trial, one without an engine, or another model than the study's.
        ConfigError: `samples` or `threshold_db` is out of range.
        EvaluatorError: the engine cannot be loaded or run here.
        ArtifactError: the calibrated ranges are gone, or the engine cannot be built again.
    """
    from studies.run.session.setup import checked

    if samples < 1:
        raise ConfigError(f"--samples {samples}: expected at least 1.")
    if not (math.isfinite(threshold_db) and threshold_db > 0):
        raise ConfigError(f"--threshold {threshold_db:g}: expected decibels, more than zero.")
    record = _built(store, study, target, trial)
    with checked(config) as good:
        if good.model.digest != study.model_digest:
            raise StudyError(
                f"comparing trial {trial}: the model {config.model} has other content than the study's (or other "
                "shapes were asked for). Give the study's own file; --model says where it has moved."
            )
        warnings = tuple(_warnings(study, target, good))
        for warning in warnings:
            progress.note(f"warning: {warning}")
        run = _Run(good, record, target, config, progress)
        found = run.compare(groups, samples)
        known = {group.id: group for group in store.groups(study.id)}
        return Comparison(
            study=study.name,
            trial=trial,
            mix=mix_text(record.evaluation.assignment),
            samples=found["samples"],
            threshold_db=threshold_db,
            outputs=_sides(found["outputs"], record.evaluation.assignment, threshold_db),
            groups=group_sides(found["groups"], known, record.evaluation.assignment, good.model.edges, threshold_db)
            if groups
            else None,
            warnings=(*warnings, *run.warnings),
            notes=tuple(run.notes),
        )


def _built(store: Store, study: StudyRecord, target: TargetRecord, trial: int) -> EvaluationRecord:
    """The evaluation of a trial, if an engine was ever built of it."""
    record = store.evaluation(target.id, trial)
    failure = record.evaluation.failure
    if record.status == RUNNING:
        raise StudyError(f"comparing trial {trial}: its evaluation is under way. Wait for it, or take another trial.")
    if record.status == FAILED and failure is not None and failure.stage not in (Stage.LATENCY, Stage.ACCURACY):
        raise StudyError(
            f"comparing trial {trial}: it failed at {failure.stage.value} ({failure.kind.value}), so there is no "
            f"engine to compare. Take another trial; `{suggestions.command('show', study.name, str(trial))}` says "
            "why it failed."
        )
    return record


class _Run:
    """One comparison in an evaluator process."""

    def __init__(
        self,
        good: Checked,
        record: EvaluationRecord,
        target: TargetRecord,
        config: SearchConfig,
        progress: Events,
    ) -> None:
        from studies.artifacts.locations import open_artifacts

        self.good = good
        self.record = record
        self.progress = progress
        self.artifacts = open_artifacts(config)
        self.notes: list[str] = []
        self.warnings: list[str] = []
        ranges = good.folder / "ranges.json"
        if target.ranges_digest is None:
            raise StudyError(f"comparing trial {record.trial}: the study has not been calibrated. Resume it first.")
        ranges.write_bytes(self.artifacts.read_bytes(target.ranges_digest))
        good.keeper.adopt(ranges=str(ranges))

    def compare(self, groups: bool, samples: int) -> dict[str, Any]:
        engine = self._engine()
        params = {
            "engine": str(engine),
            "assignment": self.record.evaluation.assignment,
            "groups": groups,
            "samples": samples,
        }
        found: dict[str, Any] = self._call("compare", params)
        if groups and not found["opened"]:
            self._note("the groups are those of an engine built again with their outputs exposed, which breaks fusions")
        elif groups:
            self._note("the groups are those of the engine with their outputs exposed, which breaks fusions")
        return found

    def _engine(self) -> Path:
        digest = self.record.artifact
        if digest is not None and digest in self.artifacts:
            self._check_content(digest)
            return self.artifacts.path(digest)
        self._note("the engine was not kept; it was built again, which may choose other kernels")
        out = self.good.folder / f"{self.record.id}.engine"
        self._call("build", {"assignment": self.record.evaluation.assignment, "out": str(out)})
        return out

    def _check_content(self, digest: str) -> None:
        """A damaged engine is one of the things to find here."""
        try:
            with self.artifacts.open(digest):
                pass
        except ArtifactError as error:
            self.warnings.append(str(error))
            self.progress.note(f"warning: {error}")

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.progress.note(text)

    def _call(self, method: str, params: Mapping[str, Any]) -> Any:
        from evaluators.process.keeper import ProcessDiedError

        try:
            return self.good.keeper.call(
                method,
                params,
                lambda event, value: self.progress.step("comparing", *value) if event == "progress" else None,
            )
        except ProcessDiedError as death:
            raise EvaluatorError(f"comparing trial {self.record.trial}: {death.told()}.") from death


def _warnings(study: StudyRecord, target: TargetRecord, good: Checked) -> Iterator[str]:
    """What is not as it was when the study was made."""
    yield from (f"target {line}" for line in _target_changes(target.target, good.target))
    now = good.described("data")
    for name, key in (("data", "digest"), ("final data", "final_digest")):
        if now[key] != study.data.get(key):
            yield f"the {name} have other content than the study's: the samples compared on are others"
    if not study.environment:
        yield "no environment was recorded with the study, so it cannot be compared with this one"
        return
    yield from (f"environment {line}" for line in changes(study.environment, environment.collect()))


def _target_changes(recorded: Target, now: Target) -> list[str]:
    return changes(recorded.to_json(), now.to_json())


def changes(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
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


def _sides(rows: Sequence[Mapping[str, Any]], assignment: Assignment, threshold_db: float) -> tuple[Side, ...]:
    normal = min(precision.ceiling_db for precision in assignment.values())
    sides = []
    for row in rows:
        found = {pair: row[pair] for pair in PAIRS}
        allowed = max(min(normal, found["emulated-float"].level_db) - threshold_db, _LEAST_DB)
        sides.append(Side(row["name"], found, found["engine-emulated"].level_db >= allowed))
    return tuple(sides)


def group_sides(
    rows: Sequence[Mapping[str, Any]],
    groups: Mapping[str, GroupRecord],
    assignment: Assignment,
    edges: Sequence[Edge],
    threshold_db: float,
) -> tuple[GroupSide, ...]:
    from evaluators.diagnose.compare import fall_db, held_in, inputs_db

    sources: dict[str, list[str]] = {}
    for edge in edges:
        if edge.source is not None:
            sources.setdefault(edge.target, []).append(edge.source)
    levels = {row["name"]: row["engine-emulated"].level_db for row in rows}
    inputs, held = inputs_db(levels, sources), held_in(assignment, sources)
    sides = []
    for row in rows:
        name = row["name"]
        fall = fall_db(levels[name], inputs[name], held[name])
        found = {pair: row[pair] for pair in PAIRS}
        sides.append(GroupSide(groups[name], assignment[name].label, found, inputs[name], fall, fall > threshold_db))
    return tuple(sides)
