"""The `bf_` tables, which hold studies, and their rows. They are in one database with Optuna's tables.

Outside the store their rows are known as `studies.store.records`. Once bitfront is released, a change of a table needs
a step in `migrations.py` and a higher `VERSION`.
Times are UTC and come from the database, because the clocks of several hosts differ.
Large columns stand last in their tables, so that SQLite reads the numbers without following overflow pages.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    true,
)
from sqlalchemy.schema import SchemaItem

from search.values import (
    Assignment,
    Capability,
    Flips,
    MixBias,
    Precision,
    Recovery,
    RecoveryRecord,
    Target,
)
from studies.store.database.column_types import JsonList, JsonValue, LongText, PrecisionId, UtcDateTime, utc_now

if TYPE_CHECKING:
    from sqlalchemy.orm import Mapped
    from typing_extensions import Self

    from search.graph.grouping import Group

VERSION = 1
CLOSING = "closing"  # among the details of a target: the step at the end of a search that is under way

DIGEST = String(64)
NAME = String(200)
WORD = String(40)
# MySQL picks the smallest BLOB that holds this many bytes: LONGBLOB. SQLite and PostgreSQL ignore the length.
BLOB = LargeBinary(2**32 - 1)


OBJECT: JSON = JSON(none_as_null=True)


class _Field:
    """A column: asked of the table it is the column, asked of a row that has no value of it an error."""

    def __init__(self, column: Column[Any]) -> None:
        self._column = column

    def __get__(self, row: Base | None, table: type[Base]) -> Any:
        return self._column if row is None else row.read(self._column.name)


class Base:
    """A table with its columns as attributes, and, as an instance, one of its rows with their values.

    SQLAlchemy takes the class where it takes a table. A row is plain: it knows no connection, and is equal to others
    with the same values. SQLAlchemy's own declarative classes do the same and more, but importing and mapping them
    takes 0.1 s of every command. For mypy the columns are as of those.
    """

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    __tablename__: ClassVar[str]
    __table__: ClassVar[Table]
    __table_args__: ClassVar[tuple[SchemaItem, ...]] = ()
    __table_options__: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        if "__tablename__" not in vars(cls):  # a row with more to it
            return
        columns = {name: value for name, value in vars(cls).items() if isinstance(value, Column)}
        for name, column in columns.items():
            column.name = column.key = name
            setattr(cls, name, _Field(column))
        cls.__table__ = Table(
            cls.__tablename__, cls.metadata, *columns.values(), *cls.__table_args__, **cls.__table_options__
        )

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def __clause_element__(cls) -> Table:
        return cls.__table__

    @classmethod
    def of(cls, row: Any) -> Self:
        """The row that a query of all columns gave, perhaps with more."""
        return cls(**row._mapping)

    def read(self, name: str) -> Any:
        """The value of a column that the row has not."""
        raise AttributeError(f"{type(self).__name__} has no value of {name!r}: it was not read")

    def values(self) -> dict[str, Any]:
        """What the row has of the columns of its table, by name."""
        return {name: value for name, value in vars(self).items() if name in self.__table__.c}

    def changed(self, **values: Any) -> Self:
        """The same row with other values."""
        return type(self)(**{**vars(self), **values})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


def _required(kind: Any, **options: Any) -> Any:
    return Column(kind, nullable=False, **options)


def _optional(kind: Any, *items: Any, **options: Any) -> Any:
    return Column(kind, *items, nullable=True, **options)


def _parent(column: str, **options: Any) -> Any:
    """A foreign key whose row goes when its parent goes."""
    return Column(Integer, ForeignKey(column, ondelete="CASCADE"), nullable=False, **options)


class SchemaRecord(Base):
    __tablename__ = "bf_schema"
    version: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)


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
    id: Mapped[int] = _required(Integer, primary_key=True)
    name: Mapped[str] = _required(NAME, unique=True)
    state: Mapped[str] = _required(WORD, default="created")
    created_at: Mapped[datetime] = _required(UtcDateTime, default=utc_now())
    model_digest: Mapped[str] = _required(DIGEST)
    model_path: Mapped[str] = _required(LongText)
    config: Mapped[dict[str, Any]] = _required(OBJECT)
    data: Mapped[dict[str, Any]] = _required(OBJECT)
    metric: Mapped[dict[str, Any]] = _required(OBJECT)
    model: Mapped[dict[str, Any]] = _required(OBJECT)
    environment: Mapped[dict[str, Any]] = _required(OBJECT)
    renewed_from: Mapped[int | None] = _optional(Integer, ForeignKey("bf_study.id", ondelete="SET NULL"), index=True)

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
    study_id: Mapped[int] = _parent("bf_study.id", primary_key=True, autoincrement=False)
    split: Mapped[str] = _required(WORD, primary_key=True)
    codes: Mapped[bytes] = _required(BLOB)


class FingerprintRecord(Base):
    __tablename__ = "bf_target"
    id: Mapped[int] = _required(Integer, primary_key=True)
    fingerprint: Mapped[str] = _required(DIGEST, unique=True)
    description: Mapped[Target] = _required(JsonValue(Target))


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
    id: Mapped[int] = _required(Integer, primary_key=True)
    study_id: Mapped[int] = _parent("bf_study.id")
    target_id: Mapped[int] = _parent("bf_target.id", index=True)
    optuna_study: Mapped[str] = _required(String(512))
    revision: Mapped[int] = _required(Integer, default=0, server_default="0")
    space_digest: Mapped[str | None] = _optional(DIGEST)
    ranges_digest: Mapped[str | None] = _optional(DIGEST, index=True)
    statistics_digest: Mapped[str | None] = _optional(DIGEST, index=True)
    recovery: Mapped[RecoveryRecord | None] = _optional(JsonValue(RecoveryRecord))
    recovery_key: Mapped[str | None] = _optional(DIGEST, index=True)
    latency_band: Mapped[float | None] = _optional(Double)
    optimization_level: Mapped[int | None] = _optional(Integer)
    capability: Mapped[Capability | None] = _optional(JsonValue(Capability))
    details: Mapped[dict[str, Any]] = _required(OBJECT)
    options: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    target: Target
    provisional_band: float

    @property
    def stopped_by(self) -> str:
        """What ended the last search before it was complete: `TIME_LIMIT`, `REQUEST` or `NO_PROSPECT`; else empty."""
        return str(self.details.get("stopped_by", ""))

    @property
    def closing(self) -> tuple[str, datetime] | None:
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
    study_id: Mapped[int] = _parent("bf_study.id", primary_key=True)
    role: Mapped[str] = _required(WORD, primary_key=True)
    position: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    digest: Mapped[str] = _required(DIGEST, index=True)
    size_bytes: Mapped[int] = _required(BigInteger)
    name: Mapped[str] = _required(LongText)


class GroupRecord(Base):
    """What the database knows of a group: enough to name, list and explain it without the model."""

    __tablename__ = "bf_group"
    __table_args__ = (UniqueConstraint("study_id", "group"),)
    study_id: Mapped[int] = _parent("bf_study.id", primary_key=True)
    position: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    group: Mapped[str] = _required(WORD)
    name: Mapped[str] = _required(LongText)
    op: Mapped[str] = _required(WORD)
    nodes: Mapped[tuple[str, ...]] = _required(JsonList)
    anchors: Mapped[tuple[str, ...]] = _required(JsonList)
    shape: Mapped[tuple[int, ...]] = _required(JsonList)
    weight_shape: Mapped[tuple[int, ...]] = _required(JsonList)
    block: Mapped[str] = _required(LongText)

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
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    group: Mapped[str] = _required(WORD, primary_key=True)
    precision: Mapped[Precision] = _required(PrecisionId, primary_key=True, autoincrement=False)
    code: Mapped[int | None] = _optional(Integer)
    offered: Mapped[bool] = _required(Boolean)
    buildable: Mapped[bool] = _required(Boolean, default=True, server_default=true())
    reason: Mapped[str] = _required(LongText, default="")


class EvaluationRecord(Base):
    """`revision` is what `revision` of the study's target was raised to by the transaction that stored the result.

    `mix_bias` says what came of correcting the biases for this very mix; `mix_corrections` holds them where the engine
    has them. The digest names the assignment under the study's ranges all the same, from which they follow.
    """

    __tablename__ = "bf_evaluation"
    __table_args__ = (
        UniqueConstraint("study_target_id", "digest"),
        # All that is counted: how many there are, and who made them.
        Index(None, "study_target_id", "status", "role", "worker"),
        # What was finished since the last look.
        Index(None, "study_target_id", "revision"),
    )
    id: Mapped[int] = _required(Integer, primary_key=True)
    study_target_id: Mapped[int] = _parent("bf_study_target.id")
    revision: Mapped[int] = _required(Integer, default=0, server_default="0")
    digest: Mapped[str] = _required(DIGEST)
    status: Mapped[str] = _required(WORD)
    stage: Mapped[str | None] = _optional(WORD)
    kind: Mapped[str | None] = _optional(WORD)
    role: Mapped[str] = _required(WORD)
    worker: Mapped[str] = _required(NAME)
    artifact: Mapped[str | None] = _optional(DIGEST, index=True)
    raw_ms: Mapped[float | None] = _optional(Double)
    baseline_ms: Mapped[float | None] = _optional(Double)
    spread: Mapped[float | None] = _optional(Double)
    doubts: Mapped[int] = _required(Integer, default=0)
    metric_value: Mapped[float | None] = _optional(Double)
    loss: Mapped[float | None] = _optional(Double)
    loss_low: Mapped[float | None] = _optional(Double)
    loss_high: Mapped[float | None] = _optional(Double)
    loss_upper: Mapped[float | None] = _optional(Double)
    samples: Mapped[int | None] = _optional(Integer)
    total_samples: Mapped[int | None] = _optional(Integer)
    resemblance: Mapped[float | None] = _optional(Double)
    size_bytes: Mapped[int | None] = _optional(BigInteger)
    memory_bytes: Mapped[int | None] = _optional(BigInteger)
    build_s: Mapped[float | None] = _optional(Double)
    total_s: Mapped[float | None] = _optional(Double)
    attempts: Mapped[int] = _required(Integer, default=1)
    takeovers: Mapped[int] = _required(Integer, default=0, server_default="0")
    replaced: Mapped[int] = _required(Integer, default=0)
    not_obeyed: Mapped[int] = _required(Integer, default=0)
    opaque: Mapped[int] = _required(Integer, default=0)
    started_at: Mapped[datetime] = _required(UtcDateTime, default=utc_now())
    finished_at: Mapped[datetime | None] = _optional(UtcDateTime)
    engine: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    notes: Mapped[tuple[Any, ...] | None] = _optional(JsonList)
    assignment: Mapped[Assignment] = _required(JsonValue(Assignment))
    asked_assignment: Mapped[Assignment | None] = _optional(JsonValue(Assignment))
    stage_s: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    message: Mapped[str | None] = _optional(LongText)
    log: Mapped[str | None] = _optional(LongText)
    deaths: Mapped[tuple[Any, ...] | None] = _optional(JsonList)
    mix_bias: Mapped[MixBias | None] = _optional(JsonValue(MixBias))
    mix_corrections: Mapped[Recovery | None] = _optional(JsonValue(Recovery))

    @property
    def level(self) -> int | None:
        """TensorRT's optimization level of its build; None on other backends."""
        return None if self.engine is None else self.engine.get("optimization_level")


class TrialRecord(Base):
    __tablename__ = "bf_trial"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    number: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", index=True)
    reused: Mapped[bool] = _required(Boolean)
    asked_assignment: Mapped[Assignment | None] = _optional(JsonValue(Assignment))


class ScoreRecord(Base):
    """One without samples and numbers says that outputs on the final split cannot be scored; why is a note of the
    evaluation that begins with `records.OF_FINAL`."""

    __tablename__ = "bf_score"
    # Few are of the final split, and they are read whenever a study is judged.
    __table_args__ = (Index(None, "split"),)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    split: Mapped[str] = _required(WORD, primary_key=True)
    metric: Mapped[str] = _required(NAME)
    value: Mapped[float | None] = _optional(Double)
    loss: Mapped[float | None] = _optional(Double)
    loss_low: Mapped[float | None] = _optional(Double)
    loss_high: Mapped[float | None] = _optional(Double)
    samples: Mapped[int] = _required(Integer)
    total: Mapped[int] = _required(Integer)
    resemblance: Mapped[float | None] = _optional(Double)
    flips: Mapped[Flips | None] = _optional(JsonValue(Flips))
    loss_bounds: Mapped[tuple[Any, ...] | None] = _optional(JsonList)
    value_bounds: Mapped[tuple[Any, ...] | None] = _optional(JsonList)
    scores: Mapped[bytes] = _required(BLOB)


class AuditRecord(Base):
    __tablename__ = "bf_audit"
    # Without a separate rowid the rows of one evaluation lie together, and there is one index less to write.
    __table_options__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    group: Mapped[str] = _required(WORD, primary_key=True)
    asked: Mapped[Precision] = _required(PrecisionId)
    got: Mapped[Precision | None] = _optional(PrecisionId)
    kernel: Mapped[str] = _required(LongText)
    details: Mapped[dict[str, Any] | None] = _optional(OBJECT)


class SampleRecord(Base):
    __tablename__ = "bf_sample"
    # What was measured again, of which there is little, is looked for among what was measured once.
    __table_args__ = (Index(None, "round"),)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    round: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    role: Mapped[str] = _required(WORD, primary_key=True)
    raw_ms: Mapped[float | None] = _optional(Double)
    baseline_ms: Mapped[float | None] = _optional(Double)
    spread: Mapped[float | None] = _optional(Double)
    wall_ms: Mapped[float | None] = _optional(Double)
    warnings: Mapped[tuple[Any, ...] | None] = _optional(JsonList)
    details: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    samples: Mapped[bytes] = _required(BLOB)


class LayerRecord(Base):
    __tablename__ = "bf_profile"
    __table_options__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    position: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    group: Mapped[str | None] = _optional(WORD)
    moves: Mapped[bool] = _required(Boolean)
    ms: Mapped[float] = _required(Double)
    kind: Mapped[str] = _required(LongText)
    name: Mapped[str] = _required(LongText)


class SensitivityRecord(Base):
    __tablename__ = "bf_sensitivity"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    group: Mapped[str] = _required(WORD, primary_key=True)
    precision: Mapped[Precision] = _required(PrecisionId, primary_key=True, autoincrement=False)
    error: Mapped[float | None] = _optional(Double)
    flipped: Mapped[float | None] = _optional(Double)
    sqnr_db: Mapped[float | None] = _optional(Double)
    kl: Mapped[float | None] = _optional(Double)
    overlap: Mapped[float | None] = _optional(Double)
    saturated: Mapped[float | None] = _optional(Double)
    samples: Mapped[int] = _required(Integer)
    mse: Mapped[float | None] = _optional(Double)
    shift: Mapped[float | None] = _optional(Double)
    weight_kl: Mapped[float | None] = _optional(Double)
    tails: Mapped[float | None] = _optional(Double)
    peak: Mapped[float | None] = _optional(Double)
    channel_ratio: Mapped[float | None] = _optional(Double)


class RepeatRecord(Base):
    """A uniform baseline measured again for the tie band: built again (`rebuild`), or its engine in a fresh `process`.

    Attributes:
        raw_ms: latency on the clock.
        baseline_ms: of the FP32 baseline that ran in between; None on targets whose latencies are no ratios.
    """

    __tablename__ = "bf_repeat"
    id: Mapped[int] = _required(Integer, primary_key=True)
    study_target_id: Mapped[int] = _parent("bf_study_target.id", index=True)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", index=True)
    kind: Mapped[str] = _required(WORD)
    raw_ms: Mapped[float] = _required(Double)
    baseline_ms: Mapped[float | None] = _optional(Double)


class LeaseRecord(Base):
    __tablename__ = "bf_lease"
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True, autoincrement=False)
    worker: Mapped[str] = _required(NAME)
    heartbeat: Mapped[datetime] = _required(UtcDateTime, default=utc_now())


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
    id: Mapped[int] = _required(Integer, primary_key=True)
    study_target_id: Mapped[int] = _parent("bf_study_target.id", index=True)
    name: Mapped[str] = _required(NAME, unique=True)
    host: Mapped[str] = _required(NAME)
    device: Mapped[str] = _required(NAME)
    pid: Mapped[int] = _required(Integer)
    state: Mapped[str] = _required(WORD)
    started_at: Mapped[datetime] = _required(UtcDateTime, default=utc_now())
    heartbeat: Mapped[datetime] = _required(UtcDateTime, default=utc_now())
    ended_at: Mapped[datetime | None] = _optional(UtcDateTime)
    spent_at: Mapped[datetime | None] = _optional(UtcDateTime)
    spent: Mapped[dict[str, Any] | None] = _optional(OBJECT)
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
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    name: Mapped[str] = _required(WORD, primary_key=True)
    worker: Mapped[str] = _required(NAME)
    heartbeat: Mapped[datetime] = _required(UtcDateTime, default=utc_now())
    heartbeat_age_s: float


class ArtifactRecord(Base):
    """A file in the artifact folder; `key` names a cache entry, None for what belongs to evaluations."""

    __tablename__ = "bf_artifact"
    digest: Mapped[str] = _required(DIGEST, primary_key=True)
    kind: Mapped[str] = _required(WORD)
    key: Mapped[str | None] = _optional(NAME, unique=True)
    size_bytes: Mapped[int] = _required(BigInteger)
    created_at: Mapped[datetime] = _required(UtcDateTime, default=utc_now())
