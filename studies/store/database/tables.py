"""The `bf_` tables, which hold studies, and their rows. They are in one database with Optuna's tables.

Outside the store their rows are known as `studies.store.records`. Once bitfront is released, a change of a table needs
a step in `migrations.py` and a higher `VERSION`.
Times are UTC and come from the database, because the clocks of several hosts differ.
Those of evaluations are in `evaluation_tables`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ForeignKey,
    Integer,
    String,
    UniqueConstraint,
    true,
)

from evaluators.process.results import DataDescription, MetricDescription
from search.values import (
    Capability,
    Precision,
    RecoveryRecord,
    Target,
)
from search.values.shape import Seconds
from studies.store import shapes
from studies.store.database.column_types import (
    MILLISECONDS,
    Json,
    JsonConfig,
    JsonList,
    JsonValue,
    LongText,
    Number,
    PrecisionId,
    UtcDateTime,
    utc_now,
)
from studies.store.database.evaluation_tables import (
    AuditRecord,
    EvaluationRecord,
    LayerRecord,
    SampleRecord,
    ScoreRecord,
    TrialRecord,
)
from studies.store.database.table import BLOB, DIGEST, NAME, WORD, Base, optional, parent_key, required_column

if TYPE_CHECKING:
    from sqlalchemy.orm import Mapped
    from typing_extensions import Self

    from search.graph.grouping import Group

__all__ = [
    "ArtifactRecord",
    "AuditRecord",
    "Base",
    "ChoiceRecord",
    "ClusterRecord",
    "EvaluationRecord",
    "FileRecord",
    "FingerprintRecord",
    "GroupRecord",
    "LayerRecord",
    "LeaseRecord",
    "RepeatRecord",
    "SampleRecord",
    "SchemaRecord",
    "ScoreRecord",
    "SensitivityRecord",
    "StudyRecord",
    "TargetRecord",
    "TaskRecord",
    "TrialRecord",
    "WorkerRecord",
]

VERSION = 1
AS_GIVEN = "as_given"  # among the details of a target: the user's own file, where FP32 is not quite that
CLOSING = "closing"  # among the details of a target: the step at the end of a search that is under way


class SchemaRecord(Base):
    __tablename__ = "bf_schema"
    version: Mapped[int] = required_column(Integer, primary_key=True, autoincrement=False)


class StudyRecord(Base):
    """A study. Every mapping is JSON-serialisable.

    Attributes:
        config: all options of the search, as given and as defaulted.
        data: sources, digests and sizes of the splits.
        metric: `name`, `unit`, `higher_is_better`, `ratio`, `relative`, `kind` (`per_sample` or `accumulating`), and
            `notes`: how it was chosen where nobody named it, and which outputs it does not score.
        model: `inputs`, `outputs` and what is needed to name its nodes.
        renewed_from: id of the study whose mixes it tries again on fresh data; None if it is no renewal, or that
            study was deleted.
    """

    __tablename__ = "bf_study"
    id: Mapped[int] = required_column(Integer, primary_key=True)
    name: Mapped[str] = required_column(NAME, unique=True)
    state: Mapped[str] = required_column(WORD, default="created")
    created_at: Mapped[datetime] = required_column(UtcDateTime, default=utc_now())
    model_digest: Mapped[str] = required_column(DIGEST)
    model_path: Mapped[str] = required_column(LongText)
    config: Mapped[dict[str, Any]] = required_column(JsonConfig(whole=True))
    data: Mapped[dict[str, Any]] = required_column(Json(DataDescription))
    metric: Mapped[dict[str, Any]] = required_column(Json(MetricDescription))
    model: Mapped[dict[str, Any]] = required_column(Json(shapes.StudyModel))
    environment: Mapped[dict[str, Any]] = required_column(Json(shapes.StudyEnvironment))
    renewed_from: Mapped[int | None] = optional(Integer, ForeignKey("bf_study.id", ondelete="SET NULL"), index=True)

    def clusters(self, split: str) -> int | None:
        """How many clusters the samples of a split are in; None if the data say nothing of clusters."""
        count: int | None = self.data.get("clusters", {}).get(split)
        return count

    @property
    def batch(self) -> int:
        """The number of samples in one inference, which its latencies are of."""
        return int(self.model["inputs"][0][2][0])

    @property
    def samples_text(self) -> str:
        """How many samples calibrate, are searched on and are final, with their clusters; empty if not known."""
        parts = (("calibration", "calibrate"), ("search", "to search on"), ("final", "final"))
        return ", ".join(
            f"{self.data[split]:,} {use}" + (f" ({count:,} clusters)" if (count := self.clusters(split)) else "")
            for split, use in parts
            if split in self.data
        )


class ClusterRecord(Base):
    __tablename__ = "bf_cluster"
    study_id: Mapped[int] = parent_key("bf_study.id", primary_key=True, autoincrement=False)
    split: Mapped[str] = required_column(WORD, primary_key=True)
    codes: Mapped[bytes] = required_column(BLOB)


class FingerprintRecord(Base):
    __tablename__ = "bf_target"
    id: Mapped[int] = required_column(Integer, primary_key=True)
    fingerprint: Mapped[str] = required_column(DIGEST, unique=True)
    description: Mapped[Target] = required_column(JsonValue(Target))


class TargetRecord(Base):
    """One target of one study. Methods about evaluations take its id as `study_target_id`.

    Attributes:
        optuna_study: name of the Optuna study of this pair, in the same database.
        revision: how often results of the target were stored.
        ranges_digest: artifact with the calibrated ranges; None before calibration.
        statistics_digest: artifact with what each calibration sample did to each tensor; None before calibration.
        recovery: what was tried to make INT8 lose less, and kept in the ranges; None before calibration, and where the
            study was told to recover nothing.
        latency_band: relative half-width inside which two latencies are a tie; None until measured.
        optimization_level: of TensorRT's builder, once for all workers of the target; None before it is settled, and
            on other backends. `details["level_reason"]` says why.
        options: what was given for this target alone, as in `SearchConfig.to_json`; they go over the study's own. None
            for the study's first target.
        target: what the target is; no column of this table.
        provisional_band: what counts until there is a measured band; no column either.
    """

    __tablename__ = "bf_study_target"
    __table_args__ = (UniqueConstraint("study_id", "target_id"),)
    id: Mapped[int] = required_column(Integer, primary_key=True)
    study_id: Mapped[int] = parent_key("bf_study.id")
    target_id: Mapped[int] = parent_key("bf_target.id", index=True)
    optuna_study: Mapped[str] = required_column(String(512))
    revision: Mapped[int] = required_column(Integer, default=0, server_default="0")
    space_digest: Mapped[str | None] = optional(DIGEST)
    ranges_digest: Mapped[str | None] = optional(DIGEST, index=True)
    statistics_digest: Mapped[str | None] = optional(DIGEST, index=True)
    recovery: Mapped[RecoveryRecord | None] = optional(JsonValue(RecoveryRecord))
    recovery_key: Mapped[str | None] = optional(DIGEST, index=True)
    latency_band: Mapped[float | None] = optional(Number(0))
    optimization_level: Mapped[int | None] = optional(Integer)
    capability: Mapped[Capability | None] = optional(JsonValue(Capability))
    details: Mapped[dict[str, Any]] = required_column(Json(shapes.TargetDetails))
    options: Mapped[dict[str, Any] | None] = optional(JsonConfig())
    target: Target
    provisional_band: float

    @property
    def stopped_by(self) -> str:
        """What ended the last search before it was complete: `TIME_LIMIT`, `REQUEST` or `NO_PROSPECT`; else empty."""
        return str(self.details.get("stopped_by", ""))

    @property
    def closing_step(self) -> tuple[str, datetime] | None:
        """What the worker that ends the last search does, and when all will be done by the database's clock."""
        step = self.details.get(CLOSING)
        return None if step is None else (step["step"], datetime.fromisoformat(step["until"]))

    @property
    def band(self) -> float:
        """The tie band that counts now: the measured one, else the provisional one."""
        return self.provisional_band if self.latency_band is None else self.latency_band

    @property
    def band_is_provisional(self) -> bool:
        """Whether the study has not measured its own tie band on this target yet."""
        return self.latency_band is None


class FileRecord(Base):
    """One file of a study's inputs that lies among the artifacts, for hosts that lack it.

    Attributes:
        role: the option that named it: `model`, `data`, ….
        position: 0 for the file itself; a model's external data follow.
        name: what it is called, relative to the folder of the file itself.
    """

    __tablename__ = "bf_file"
    study_id: Mapped[int] = parent_key("bf_study.id", primary_key=True)
    role: Mapped[str] = required_column(WORD, primary_key=True)
    position: Mapped[int] = required_column(Integer, primary_key=True, autoincrement=False)
    digest: Mapped[str] = required_column(DIGEST, index=True)
    size_bytes: Mapped[int] = required_column(BigInteger)
    name: Mapped[str] = required_column(LongText)


class GroupRecord(Base):
    """What the database knows of a group: enough to name, list and explain it without the model."""

    __tablename__ = "bf_group"
    __table_args__ = (UniqueConstraint("study_id", "group"),)
    study_id: Mapped[int] = parent_key("bf_study.id", primary_key=True)
    position: Mapped[int] = required_column(Integer, primary_key=True, autoincrement=False)
    group: Mapped[str] = required_column(WORD)
    name: Mapped[str] = required_column(LongText)
    op: Mapped[str] = required_column(WORD)
    nodes: Mapped[tuple[str, ...]] = required_column(JsonList(str))
    anchors: Mapped[tuple[str, ...]] = required_column(JsonList(str))
    shape: Mapped[tuple[int, ...]] = required_column(JsonList(int))
    weight_shape: Mapped[tuple[int, ...]] = required_column(JsonList(int))
    block: Mapped[str] = required_column(LongText)

    @property
    def id(self) -> str:
        """The group's id in its model, as `g012`."""
        return self.group

    @classmethod
    def of_group(cls, group: Group, position: int = 0) -> Self:
        """The row of a group without its study."""
        names = ("name", "op", "nodes", "anchors", "shape", "weight_shape", "block")
        return cls(position=position, group=group.id, **{name: getattr(group, name) for name in names})


class ChoiceRecord(Base):
    """One precision of one group on one target.

    Attributes:
        code: index in the group's frozen code list, None if the precision never stood in it.
        offered: whether the samplers may propose it.
        buildable: False once the engine's builder has refused it here, which does not change what is offered.
        reason: why it is not offered; empty when it is.
    """

    __tablename__ = "bf_choice"
    study_target_id: Mapped[int] = parent_key("bf_study_target.id", primary_key=True)
    group: Mapped[str] = required_column(WORD, primary_key=True)
    precision: Mapped[Precision] = required_column(PrecisionId, primary_key=True, autoincrement=False)
    code: Mapped[int | None] = optional(Integer)
    offered: Mapped[bool] = required_column(Boolean)
    buildable: Mapped[bool] = required_column(Boolean, default=True, server_default=true())
    reason: Mapped[str] = required_column(LongText, default="")


class SensitivityRecord(Base):
    __tablename__ = "bf_sensitivity"
    study_target_id: Mapped[int] = parent_key("bf_study_target.id", primary_key=True)
    group: Mapped[str] = required_column(WORD, primary_key=True)
    precision: Mapped[Precision] = required_column(PrecisionId, primary_key=True, autoincrement=False)
    error: Mapped[float | None] = optional(Number())
    flipped: Mapped[float | None] = optional(Number())
    sqnr_db: Mapped[float | None] = optional(Number())
    kl: Mapped[float | None] = optional(Number())
    overlap: Mapped[float | None] = optional(Number())
    saturated: Mapped[float | None] = optional(Number())
    samples: Mapped[int] = required_column(Integer)
    mse: Mapped[float | None] = optional(Number())
    shift: Mapped[float | None] = optional(Number())
    weight_kl: Mapped[float | None] = optional(Number())
    tails: Mapped[float | None] = optional(Number())
    peak: Mapped[float | None] = optional(Number())
    channel_ratio: Mapped[float | None] = optional(Number())


class RepeatRecord(Base):
    """A uniform baseline measured again for the tie band: built again (`rebuild`), or its engine in a fresh `process`.

    Attributes:
        raw_ms: latency on the clock.
        baseline_ms: of the FP32 baseline that ran in between; None on targets whose latencies are no ratios.
    """

    __tablename__ = "bf_repeat"
    id: Mapped[int] = required_column(Integer, primary_key=True)
    study_target_id: Mapped[int] = parent_key("bf_study_target.id", index=True)
    evaluation_id: Mapped[int] = parent_key("bf_evaluation.id", index=True)
    kind: Mapped[str] = required_column(WORD)
    raw_ms: Mapped[float] = required_column(MILLISECONDS)
    baseline_ms: Mapped[float | None] = optional(MILLISECONDS)


class LeaseRecord(Base):
    __tablename__ = "bf_lease"
    evaluation_id: Mapped[int] = parent_key("bf_evaluation.id", primary_key=True, autoincrement=False)
    worker: Mapped[str] = required_column(NAME)
    heartbeat: Mapped[datetime] = required_column(UtcDateTime, default=utc_now())


class WorkerRecord(Base):
    """A process that worked or works on one target of a study. `host` is for people and goes no further.

    Attributes:
        state: `starting`, `calibrating`, `searching`, `waiting` for others, `finishing`, `measuring` what is stored
            already, `ended`, or `failed`.
        spent: seconds by the kinds of `run_clock.KINDS` until `spent_at`.
        heartbeat_age_s: by the database's clock; no column.
        evaluations: that it has finished; no column.
        evaluation_id, trial: what it is at now; no columns.
    """

    __tablename__ = "bf_worker"
    id: Mapped[int] = required_column(Integer, primary_key=True)
    study_target_id: Mapped[int] = parent_key("bf_study_target.id", index=True)
    name: Mapped[str] = required_column(NAME, unique=True)
    host: Mapped[str] = required_column(NAME)
    device: Mapped[str] = required_column(NAME)
    pid: Mapped[int] = required_column(Integer)
    state: Mapped[str] = required_column(WORD)
    started_at: Mapped[datetime] = required_column(UtcDateTime, default=utc_now())
    heartbeat: Mapped[datetime] = required_column(UtcDateTime, default=utc_now())
    ended_at: Mapped[datetime | None] = optional(UtcDateTime)
    spent_at: Mapped[datetime | None] = optional(UtcDateTime)
    spent: Mapped[dict[str, float] | None] = optional(Json(Mapping[str, Seconds]))
    heartbeat_age_s: float
    evaluations: int
    evaluation_id: int | None
    trial: int | None

    def live(self, lease_s: float) -> bool:
        """Whether it has not ended and was heard of within a lease."""
        return self.ended_at is None and self.heartbeat_age_s <= lease_s


class TaskRecord(Base):
    """Something that one worker of a target does for all; `heartbeat_age_s` by the database's clock is no column."""

    __tablename__ = "bf_task"
    study_target_id: Mapped[int] = parent_key("bf_study_target.id", primary_key=True)
    name: Mapped[str] = required_column(WORD, primary_key=True)
    worker: Mapped[str] = required_column(NAME)
    heartbeat: Mapped[datetime] = required_column(UtcDateTime, default=utc_now())
    heartbeat_age_s: float


class ArtifactRecord(Base):
    """A file in the artifact folder; `key` names a cache entry, None for what belongs to evaluations."""

    __tablename__ = "bf_artifact"
    digest: Mapped[str] = required_column(DIGEST, primary_key=True)
    kind: Mapped[str] = required_column(WORD)
    key: Mapped[str | None] = optional(NAME, unique=True)
    size_bytes: Mapped[int] = required_column(BigInteger)
    created_at: Mapped[datetime] = required_column(UtcDateTime, default=utc_now())
