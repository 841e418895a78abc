"""What the store takes and gives: plain frozen values, free of SQLAlchemy and of open connections."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.errors import BitfrontError
from search.values import Accuracy, Assignment, Capability, Evaluation, Failure, Latency, Precision, Target
from studies.store.reading.detail_columns import DetailColumn, Details

RUNNING, OK, FAILED = "running", "ok", "failed"
REBUILD, PROCESS = "rebuild", "process"  # kinds of a repetition
EXPORT = "export"  # the role of an evaluation that an export built again
OF_PROFILE = "profile: "  # begins the note of an evaluation that is about its stored profile
OF_FINAL = "final: "  # and of the one that says why it could not be scored on the final split


class KnownEvaluationError(BitfrontError):
    """Internal: this digest is already running or finished on this target; use `trials.link`."""

    def __init__(self, evaluation_id: int, status: str) -> None:
        super().__init__(f"evaluation {evaluation_id} has this digest already; it is {status}")
        self.evaluation_id = evaluation_id
        self.status = status


class LostEvaluationError(BitfrontError):
    """Internal: the running row is gone or finished; another worker took it for abandoned."""


class FullStudyError(BitfrontError):
    """Internal: there are as many evaluations as are wanted, those that are running included."""


@dataclass(frozen=True)
class NewStudy:
    """All that is known when a study is created; every mapping is JSON-serialisable.

    Attributes:
        config: all options of the search, as given and as defaulted.
        data: sources, digests and sizes of the splits.
        metric: `name`, `unit`, `higher_is_better`, `ratio`, `kind` (`per_sample` or `accumulating`), and `notes`:
            how it was chosen where nobody named it, and which outputs it does not score.
        model: `inputs`, `outputs` and what is needed to name its nodes.
    """

    name: str
    model_path: str
    model_digest: str
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    metric: Mapping[str, Any]
    model: Mapping[str, Any]
    environment: Mapping[str, Any]
    state: str = "created"


@dataclass(frozen=True)
class StudyRecord:
    """A stored study; fields as in NewStudy."""

    id: int
    name: str
    state: str
    created_at: datetime
    model_path: str
    model_digest: str
    config: dict[str, Any]
    data: dict[str, Any]
    metric: dict[str, Any]
    model: dict[str, Any]
    environment: dict[str, Any]

    def clusters(self, split: str) -> int | None:
        """How many clusters the samples of a split are in; None where the data say nothing of clusters."""
        count: int | None = self.data.get("clusters", {}).get(split)
        return count

    @property
    def samples_text(self) -> str:
        """How many samples calibrate, are searched on and are final, with their clusters; empty where not known."""
        parts = (("calibration", "calibrate"), ("search", "to search on"), ("final", "final"))
        return ", ".join(
            f"{self.data[split]:,} {use}" + (f" ({found:,} clusters)" if (found := self.clusters(split)) else "")
            for split, use in parts
            if split in self.data
        )


@dataclass(frozen=True)
class StudySummary:
    """One line of the list of studies; counts are over all targets of the study."""

    id: int
    name: str
    state: str
    created_at: datetime
    model_path: str
    targets: int
    ok: int
    failed: int
    running: int


@dataclass(frozen=True)
class SensitivityRecord:
    """What one group alone in one precision does, all other groups in FP32.

    Attributes:
        error: noise over power of the network's outputs; None where they are not finite.
        flipped: share of samples whose class changes; None where not measured, or the outputs are no classes.
        sqnr_db: of the group's own output; None where it is not finite.
        kl: divergence of the rounded from the float activations, in nats; None where none is rounded.
        overlap: of their histograms, 0 to 1; None where none is rounded.
        saturated: share of values outside what the precision can hold; None where none is rounded.
        samples: that the error was measured on; 0 where it is an estimate.
    """

    group: str
    precision: Precision
    error: float | None
    flipped: float | None
    sqnr_db: float | None
    kl: float | None
    overlap: float | None
    saturated: float | None
    samples: int


@dataclass(frozen=True)
class TargetRecord:
    """One target of one study.

    Attributes:
        id: the study-target id that every method about evaluations takes.
        optuna_study: name of the Optuna study of this pair, in the same database.
        ranges_digest: artifact with the calibrated ranges; None before calibration.
        latency_band: relative half-width inside which two latencies are a tie; None until measured.
        provisional_band: what counts until then.
        optimization_level: of TensorRT's builder, once for all workers of the target; None before it is settled, and
            on other backends. `details["level_reason"]` says why.
        options: what was given for this target alone, as in `SearchConfig.to_json`; they go over the study's own. None
            for the study's first target.
    """

    id: int
    study_id: int
    target: Target
    optuna_study: str
    space_digest: str | None
    ranges_digest: str | None
    latency_band: float | None
    capability: Capability | None
    details: dict[str, Any]
    options: dict[str, Any] | None = None
    optimization_level: int | None = None
    provisional_band: float = 0.0

    @property
    def band(self) -> float:
        """The tie band that counts now: the measured one, else the provisional one."""
        return self.provisional_band if self.latency_band is None else self.latency_band


@dataclass(frozen=True)
class RepeatRecord:
    """A uniform baseline measured again for the tie band: built anew (`rebuild`), or its engine in a fresh `process`.

    Attributes:
        raw_ms: latency on the clock.
        baseline_ms: of the FP32 baseline that ran in between; None on targets whose latencies are no ratios.
    """

    evaluation_id: int
    kind: str
    raw_ms: float
    baseline_ms: float | None


@dataclass(frozen=True)
class GroupRecord:
    """What the database knows of a group: enough to name, list and explain it without the model."""

    id: str
    name: str
    op: str
    nodes: tuple[str, ...]
    anchors: tuple[str, ...]
    shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    block: str
    pinned: str


@dataclass(frozen=True)
class Choice:
    """One precision of one group on one target.

    Attributes:
        code: index in the group's frozen code list, None where the precision never stood in it.
        offered: whether the samplers may propose it.
        reason: why it is not offered; empty when it is.
        buildable: False once the engine's builder has refused it here, which does not change what is offered.
    """

    group: str
    precision: Precision
    code: int | None
    offered: bool
    reason: str = ""
    buildable: bool = True


@dataclass(frozen=True)
class Round:
    """One measurement of an engine: round 0 in the search, rounds from 1 on are measured again."""

    number: int
    latency: Latency
    created_at: datetime


@dataclass(frozen=True)
class EvaluationRecord:
    """All that is stored of one evaluation.

    Attributes:
        trial: lowest Optuna trial number that it answers; None when no trial asked for it.
        trials: all trial numbers that it answers.
        role: `baseline:fp32` and the like, `export` for one that an export built again, empty for a candidate.
        asked: what was proposed, where `evaluation.assignment` is its repair; else None. Of a record that was looked
            up by a trial, what that trial proposed.
        artifact: digest of the kept engine.
        evaluation: what was measured; empty of measures while `status` is running, when its `ok` means nothing.
            `evaluation.artifact` is None, `evaluation.profile` empty (`engines.profile` reads it), and scores and
            samples have passed through float32.
        rounds: every measurement; round 0 is `evaluation.latency`.
        final: accuracy on the final split; None where it was not scored, or could not be.
        final_failure: why it could not be scored there; empty where it was, or was not tried.
    """

    id: int
    study_target_id: int
    digest: str
    status: str
    trial: int | None
    trials: tuple[int, ...]
    role: str
    worker: str
    asked: Assignment | None
    artifact: str | None
    started_at: datetime
    finished_at: datetime | None
    evaluation: Evaluation
    rounds: tuple[Round, ...]
    final: Accuracy | None
    final_failure: str = ""


@dataclass(frozen=True)
class ExportRecord:
    """An evaluation that an export built again, and that went well.

    Attributes:
        level: TensorRT's optimization level of its build; None on other backends.
        doubts: how many things are doubtful in its first measurement.
        not_obeyed: how many groups do not run in what was asked.
    """

    id: int
    assignment: Assignment
    level: int | None
    raw_ms: float | None
    baseline_ms: float | None
    doubts: int
    build_s: float | None
    not_obeyed: int


@dataclass(frozen=True)
class FinalLevel:
    """What an assignment takes at another optimization level than the search's, by an export at that level."""

    evaluation_id: int
    level: int
    latency_ms: float
    build_s: float | None
    not_obeyed: int = 0

    def to_json(self) -> dict[str, Any]:
        """`obeyed` tells whether all groups run in what was asked, as far as the engine tells."""
        figures = {"level": self.level, "latency_ms": self.latency_ms, "build_s": self.build_s}
        return {**figures, "obeyed": self.not_obeyed == 0}


@dataclass(frozen=True)
class DeathRecord:
    """An evaluator process that ended in the middle of an evaluation: at which stage, how and why.

    Attributes:
        trial: lowest Optuna trial number that the evaluation answers; None when no trial asked for it.
    """

    evaluation_id: int
    trial: int | None
    death: Failure


@dataclass(frozen=True)
class RunningRecord:
    """An evaluation in flight.

    Attributes:
        heartbeat_age_s: of its lease, by the database's clock; None when that is gone.
        takeovers: how many workers have taken it over from one that was lost.
    """

    id: int
    digest: str
    trial: int | None
    worker: str
    heartbeat_age_s: float | None
    takeovers: int = 0


@dataclass(frozen=True)
class Taken:
    """A running evaluation that was taken over just now.

    Attributes:
        worker: who had it and was lost with it.
        takeovers: of this evaluation until now, this one included.
    """

    id: int
    worker: str
    takeovers: int


@dataclass(frozen=True)
class Counts:
    """Evaluations of one target; those that exports built again are not among them."""

    finished: int
    running: int


@dataclass(frozen=True)
class Tally:
    """What is finished on one target, exports left out; times by the database's clock.

    Attributes:
        finished, running: how many.
        failures: (stage, kind) → how many.
        recent: finished since the moment that was asked for.
        first_started, last_finished: of any evaluation; None where there is none.
        now: when this was counted.
    """

    finished: int
    running: int
    failures: dict[tuple[str, str], int]
    recent: int
    first_started: datetime | None
    last_finished: datetime | None
    now: datetime


@dataclass(frozen=True)
class FinishedRow:
    """An evaluation that was finished lately; None for what was not reached."""

    id: int
    trial: int | None
    worker: str
    status: str
    stage: str | None
    kind: str | None
    role: str
    loss: float | None
    samples: int | None
    total_samples: int | None
    latency_ms: float | None


@dataclass(frozen=True)
class WorkerRecord:
    """A process that worked or works on one target of a study. `host` is for people and goes no further.

    Attributes:
        state: `starting`, `calibrating`, `searching`, `waiting` for others, `finishing`, `measuring` what is stored
            already, `ended`, or `failed`.
        heartbeat_age_s: by the database's clock.
        evaluations: that it has finished.
        evaluation_id, trial: what it is at now.
    """

    id: int
    study_target_id: int
    name: str
    host: str
    device: str
    pid: int
    state: str
    started_at: datetime
    ended_at: datetime | None
    heartbeat_age_s: float
    evaluations: int
    evaluation_id: int | None
    trial: int | None

    def live(self, lease_s: float) -> bool:
        """Whether it has not ended and was heard of within a lease."""
        return self.ended_at is None and self.heartbeat_age_s <= lease_s


@dataclass(frozen=True)
class WorkerTime:
    """What one worker spent its time on, from the start of its command.

    Attributes:
        until: when it last said so, by the database's clock.
        seconds: by the kinds of `run_clock.KINDS`.
    """

    name: str
    until: datetime
    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True)
class FinishRecord:
    """When one evaluation ran; `ok` says whether it went well."""

    evaluation_id: int
    role: str
    ok: bool
    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True)
class TaskRecord:
    """Something that one worker of a target does for all; `heartbeat_age_s` by the database's clock."""

    name: str
    worker: str
    heartbeat_age_s: float


@dataclass(frozen=True)
class EvaluationTable:
    """Every evaluation of one target as columns of equal length, in order of id.

    Floats are float64 with NaN for what was not reached; integers int64 with -1 for it; texts empty for it.
    A `DetailColumn` is read when it is asked for, and then is as it is stored at that moment; `details` reads those of
    several rows at once. `trial` is the lowest Optuna number that the evaluation answers; `moves` are those of the
    engine's summary.
    `latency_ms` is derived from `raw_ms` and `baseline_ms`, see `evaluators.measure.latency_scale`; `doubts`
    counts what is doubtful in that measurement by itself. `reference_ms` is no column: what
    the baseline usually takes, None on targets without one. `again` is what was measured again, of all
    """

    id: NDArray[np.int64]
    trial: DetailColumn
    digest: DetailColumn
    status: NDArray[np.str_]
    stage: DetailColumn
    kind: DetailColumn
    role: NDArray[np.str_]
    artifact: DetailColumn
    latency_ms: NDArray[np.float64]
    raw_ms: NDArray[np.float64]
    baseline_ms: NDArray[np.float64]
    spread: DetailColumn
    doubts: NDArray[np.int64]
    metric_value: NDArray[np.float64]
    loss: NDArray[np.float64]
    loss_low: NDArray[np.float64]
    loss_high: NDArray[np.float64]
    samples: NDArray[np.int64]
    total_samples: NDArray[np.int64]
    resemblance: NDArray[np.float64]
    size_bytes: DetailColumn
    memory_bytes: NDArray[np.int64]
    build_s: DetailColumn
    total_s: DetailColumn
    attempts: DetailColumn
    not_obeyed: NDArray[np.int64]
    opaque: DetailColumn
    moves: DetailColumn
    details: Details
    again: RoundTable
    reference_ms: float | None = None

    def __len__(self) -> int:
        return len(self.id)

    def only(self, rows: NDArray[np.bool_]) -> EvaluationTable:
        """Some of the rows."""
        if rows.all():
            return self
        columns = {n: value[rows] for n, value in vars(self).items() if isinstance(value, np.ndarray)}
        details = {n: value.only(rows) for n, value in vars(self).items() if isinstance(value, DetailColumn)}
        changed: dict[str, Any] = {**columns, **details}
        return replace(self, **changed)


@dataclass(frozen=True)
class RoundTable:
    """What was measured again on one target, as columns in order of evaluation and round, which counts from 1.

    `clean`: nothing is doubtful in the measurement by itself.
    """

    evaluation_id: NDArray[np.int64]
    number: NDArray[np.int64]
    raw_ms: NDArray[np.float64]
    baseline_ms: NDArray[np.float64]
    clean: NDArray[np.bool_]


@dataclass(frozen=True)
class FinalTable:
    """Scores on the final split, as columns in order of evaluation id.

    What could not be scored there has no samples, no numbers (NaN), and says why in `failure`, else empty.
    """

    evaluation_id: NDArray[np.int64]
    value: NDArray[np.float64]
    loss: NDArray[np.float64]
    loss_low: NDArray[np.float64]
    loss_high: NDArray[np.float64]
    samples: NDArray[np.int64]
    total: NDArray[np.int64]
    resemblance: NDArray[np.float64]
    failure: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.evaluation_id)


@dataclass(frozen=True)
class Assignments(Mapping[int, Assignment]):
    """Evaluation id → assignment, parsed when asked for; in order of id."""

    texts: Mapping[int, str] = field(repr=False)

    def __getitem__(self, evaluation_id: int) -> Assignment:
        return Assignment.from_json(json.loads(self.texts[evaluation_id]))

    def __iter__(self) -> Iterator[int]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class FileRecord:
    """One file of a study's inputs that lies among the artifacts, for hosts that lack it.

    Attributes:
        role: the option that named it: `model`, `data`, ….
        position: 0 for the file itself; a model's external data follow.
        name: what it is called, relative to the folder of the file itself.
    """

    role: str
    position: int
    name: str
    digest: str
    size_bytes: int


@dataclass(frozen=True)
class ArtifactRecord:
    """A file in the artifact folder; `key` names a cache entry, None for what belongs to evaluations."""

    digest: str
    kind: str
    key: str | None
    size_bytes: int
    created_at: datetime
