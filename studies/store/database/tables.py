"""The `bf_` tables, which hold studies. They are in one database with Optuna's tables.

Only the store reads this module; rows leave it as the values of `records.py`. Once bitfront is released, a change of a
table needs a step in `migrations.py` and a higher `VERSION`.
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

from studies.store.database.column_types import LongText, UtcDateTime, utc_now

if TYPE_CHECKING:
    from sqlalchemy.orm import Mapped

VERSION = 1

DIGEST = String(64)
NAME = String(200)
WORD = String(40)
# MySQL picks the smallest BLOB that holds this many bytes: LONGBLOB. SQLite and PostgreSQL ignore the length.
BLOB = LargeBinary(2**32 - 1)


OBJECT: JSON = JSON(none_as_null=True)
LIST: JSON = JSON(none_as_null=True)


class Base:
    """A table, and its columns as attributes. SQLAlchemy takes the class where it takes a table.

    Its own declarative classes do the same and more, but importing and mapping them takes 0.1 s of every command. For
    mypy the columns are as of those.
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
        columns = {name: value for name, value in vars(cls).items() if isinstance(value, Column)}
        for name, column in columns.items():
            column.name = column.key = name
        cls.__table__ = Table(
            cls.__tablename__, cls.metadata, *columns.values(), *cls.__table_args__, **cls.__table_options__
        )

    @classmethod
    def __clause_element__(cls) -> Table:
        return cls.__table__


def _required(kind: Any, **options: Any) -> Any:
    return Column(kind, nullable=False, **options)


def _optional(kind: Any, *items: Any, **options: Any) -> Any:
    return Column(kind, *items, nullable=True, **options)


def _parent(column: str, **options: Any) -> Any:
    """A foreign key whose row goes when its parent goes."""
    return Column(Integer, ForeignKey(column, ondelete="CASCADE"), nullable=False, **options)


class Schema(Base):
    __tablename__ = "bf_schema"
    version: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)


class Study(Base):
    __tablename__ = "bf_study"
    id: Mapped[int] = _required(Integer, primary_key=True)
    name: Mapped[str] = _required(NAME, unique=True)
    state: Mapped[str] = _required(WORD)
    created_at: Mapped[datetime] = _required(UtcDateTime, default=utc_now())
    model_digest: Mapped[str] = _required(DIGEST)
    model_path: Mapped[str] = _required(LongText)
    config: Mapped[dict[str, Any]] = _required(OBJECT)
    data: Mapped[dict[str, Any]] = _required(OBJECT)
    metric: Mapped[dict[str, Any]] = _required(OBJECT)
    model: Mapped[dict[str, Any]] = _required(OBJECT)
    environment: Mapped[dict[str, Any]] = _required(OBJECT)
    renewed_from: Mapped[int | None] = _optional(Integer, ForeignKey("bf_study.id", ondelete="SET NULL"), index=True)


class Cluster(Base):
    __tablename__ = "bf_cluster"
    study_id: Mapped[int] = _parent("bf_study.id", primary_key=True, autoincrement=False)
    split: Mapped[str] = _required(WORD, primary_key=True)
    codes: Mapped[bytes] = _required(BLOB)


class Target(Base):
    __tablename__ = "bf_target"
    id: Mapped[int] = _required(Integer, primary_key=True)
    fingerprint: Mapped[str] = _required(DIGEST, unique=True)
    description: Mapped[dict[str, Any]] = _required(OBJECT)


class StudyTarget(Base):
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
    recovery: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    recovery_key: Mapped[str | None] = _optional(DIGEST, index=True)
    latency_band: Mapped[float | None] = _optional(Double)
    optimization_level: Mapped[int | None] = _optional(Integer)
    capability: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    details: Mapped[dict[str, Any]] = _required(OBJECT)
    options: Mapped[dict[str, Any] | None] = _optional(OBJECT)


class File(Base):
    __tablename__ = "bf_file"
    study_id: Mapped[int] = _parent("bf_study.id", primary_key=True)
    role: Mapped[str] = _required(WORD, primary_key=True)
    position: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    digest: Mapped[str] = _required(DIGEST, index=True)
    size_bytes: Mapped[int] = _required(BigInteger)
    name: Mapped[str] = _required(LongText)


class Group(Base):
    __tablename__ = "bf_group"
    __table_args__ = (UniqueConstraint("study_id", "group"),)
    study_id: Mapped[int] = _parent("bf_study.id", primary_key=True)
    position: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    group: Mapped[str] = _required(WORD)
    name: Mapped[str] = _required(LongText)
    op: Mapped[str] = _required(WORD)
    nodes: Mapped[list[Any]] = _required(LIST)
    anchors: Mapped[list[Any]] = _required(LIST)
    shape: Mapped[list[Any]] = _required(LIST)
    weight_shape: Mapped[list[Any]] = _required(LIST)
    block: Mapped[str] = _required(LongText)


class Choice(Base):
    __tablename__ = "bf_choice"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    group: Mapped[str] = _required(WORD, primary_key=True)
    precision: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    code: Mapped[int | None] = _optional(Integer)
    offered: Mapped[bool] = _required(Boolean)
    buildable: Mapped[bool] = _required(Boolean, server_default=true())
    reason: Mapped[str] = _required(LongText)


class Evaluation(Base):
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
    notes: Mapped[list[Any] | None] = _optional(LIST)
    assignment: Mapped[dict[str, Any]] = _required(OBJECT)
    asked_assignment: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    stage_s: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    message: Mapped[str | None] = _optional(LongText)
    log: Mapped[str | None] = _optional(LongText)
    deaths: Mapped[list[Any] | None] = _optional(LIST)
    mix_bias: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    mix_corrections: Mapped[dict[str, Any] | None] = _optional(OBJECT)


class Trial(Base):
    __tablename__ = "bf_trial"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    number: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", index=True)
    reused: Mapped[bool] = _required(Boolean)
    asked_assignment: Mapped[dict[str, Any] | None] = _optional(OBJECT)


class Score(Base):
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
    flips: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    loss_bounds: Mapped[list[Any] | None] = _optional(LIST)
    value_bounds: Mapped[list[Any] | None] = _optional(LIST)
    scores: Mapped[bytes] = _required(BLOB)


class Audit(Base):
    __tablename__ = "bf_audit"
    # Without a separate rowid the rows of one evaluation lie together, and there is one index less to write.
    __table_options__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    group: Mapped[str] = _required(WORD, primary_key=True)
    asked: Mapped[int] = _required(Integer)
    got: Mapped[int | None] = _optional(Integer)
    kernel: Mapped[str] = _required(LongText)
    details: Mapped[dict[str, Any] | None] = _optional(OBJECT)


class Sample(Base):
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
    warnings: Mapped[list[Any] | None] = _optional(LIST)
    details: Mapped[dict[str, Any] | None] = _optional(OBJECT)
    samples: Mapped[bytes] = _required(BLOB)


class Profile(Base):
    __tablename__ = "bf_profile"
    __table_options__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    position: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
    group: Mapped[str | None] = _optional(WORD)
    moves: Mapped[bool] = _required(Boolean)
    ms: Mapped[float] = _required(Double)
    kind: Mapped[str] = _required(LongText)
    name: Mapped[str] = _required(LongText)


class Sensitivity(Base):
    __tablename__ = "bf_sensitivity"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    group: Mapped[str] = _required(WORD, primary_key=True)
    precision: Mapped[int] = _required(Integer, primary_key=True, autoincrement=False)
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


class Repeat(Base):
    __tablename__ = "bf_repeat"
    id: Mapped[int] = _required(Integer, primary_key=True)
    study_target_id: Mapped[int] = _parent("bf_study_target.id", index=True)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", index=True)
    kind: Mapped[str] = _required(WORD)
    raw_ms: Mapped[float] = _required(Double)
    baseline_ms: Mapped[float | None] = _optional(Double)


class Lease(Base):
    __tablename__ = "bf_lease"
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True, autoincrement=False)
    worker: Mapped[str] = _required(NAME)
    heartbeat: Mapped[datetime] = _required(UtcDateTime, default=utc_now())


class Worker(Base):
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


class Task(Base):
    __tablename__ = "bf_task"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    name: Mapped[str] = _required(WORD, primary_key=True)
    worker: Mapped[str] = _required(NAME)
    heartbeat: Mapped[datetime] = _required(UtcDateTime, default=utc_now())


class Artifact(Base):
    __tablename__ = "bf_artifact"
    digest: Mapped[str] = _required(DIGEST, primary_key=True)
    kind: Mapped[str] = _required(WORD)
    key: Mapped[str | None] = _optional(NAME, unique=True)
    size_bytes: Mapped[int] = _required(BigInteger)
    created_at: Mapped[datetime] = _required(UtcDateTime, default=utc_now())
