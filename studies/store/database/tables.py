"""The `bf_` tables: what a study remembers. They stand beside Optuna's tables in one database.

Only the store reads this module; rows leave it as the values of `records.py`. Once bitfront is released, a change of a
table needs a step in `migrations.py` and a higher `VERSION`.
Times are UTC and come from the database, because the clocks of several hosts differ.
Large columns stand last in their tables, so that SQLite reads the numbers without following overflow pages.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    literal,
    true,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

VERSION = 1
MYSQL_NAMES = ("mysql", "mariadb")


class UtcDateTime(TypeDecorator[datetime]):
    """A time with microseconds, UTC in the database, aware in Python."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in MYSQL_NAMES:
            from sqlalchemy.dialects.mysql import DATETIME

            return dialect.type_descriptor(DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime())

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=timezone.utc)


class LongText(TypeDecorator[str]):
    """Text of any length; MySQL's plain TEXT ends at 64 KiB."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in MYSQL_NAMES:
            from sqlalchemy.dialects.mysql import LONGTEXT

            return dialect.type_descriptor(LONGTEXT())
        return dialect.type_descriptor(Text())


class utc_now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function it is
    """The database's own clock, UTC."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(utc_now)
def _utc_now(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(utc_now, "sqlite")
def _utc_now_sqlite(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(utc_now, "postgresql")
def _utc_now_postgresql(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "timezone('utc', clock_timestamp())"


@compiles(utc_now, *MYSQL_NAMES)
def _utc_now_mysql(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "utc_timestamp(6)"


class utc_ago(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function it is
    """So many seconds before now, by the database's own clock, UTC."""

    type = UtcDateTime()
    inherit_cache = True

    def __init__(self, seconds: float) -> None:
        super().__init__(literal(float(seconds), Double()))


@compiles(utc_ago, "sqlite")
def _utc_ago_sqlite(element: utc_ago, compiler: SQLCompiler, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('-%.3f seconds', {seconds}))"


@compiles(utc_ago, "postgresql")
def _utc_ago_postgresql(element: utc_ago, compiler: SQLCompiler, **options: Any) -> str:
    return f"timezone('utc', clock_timestamp()) - make_interval(secs => {compiler.process(element.clauses, **options)})"


@compiles(utc_ago, *MYSQL_NAMES)
def _utc_ago_mysql(element: utc_ago, compiler: SQLCompiler, **options: Any) -> str:
    return f"utc_timestamp(6) - INTERVAL {compiler.process(element.clauses, **options)} * 1000000 MICROSECOND"


DIGEST = String(64)
NAME = String(200)
WORD = String(40)
# MySQL picks the smallest BLOB that holds this many bytes: LONGBLOB. SQLite and PostgreSQL ignore the length.
BLOB = LargeBinary(2**32 - 1)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - the name and form that SQLAlchemy asks for
        str: LongText,
        float: Double,
        datetime: UtcDateTime,
        bytes: BLOB,
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
    }


def _parent(column: str, **options: Any) -> Mapped[int]:
    """A foreign key whose row goes when its parent goes."""
    return mapped_column(ForeignKey(column, ondelete="CASCADE"), **options)


class Schema(Base):
    __tablename__ = "bf_schema"
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Study(Base):
    __tablename__ = "bf_study"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(NAME, unique=True)
    state: Mapped[str] = mapped_column(WORD)
    created_at: Mapped[datetime] = mapped_column(default=utc_now())
    model_digest: Mapped[str] = mapped_column(DIGEST)
    model_path: Mapped[str]
    config: Mapped[dict[str, Any]]
    data: Mapped[dict[str, Any]]
    metric: Mapped[dict[str, Any]]
    model: Mapped[dict[str, Any]]
    environment: Mapped[dict[str, Any]]


class Cluster(Base):
    __tablename__ = "bf_cluster"
    study_id: Mapped[int] = _parent("bf_study.id", primary_key=True, autoincrement=False)
    split: Mapped[str] = mapped_column(WORD, primary_key=True)
    codes: Mapped[bytes]


class Target(Base):
    __tablename__ = "bf_target"
    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(DIGEST, unique=True)
    description: Mapped[dict[str, Any]]


class StudyTarget(Base):
    __tablename__ = "bf_study_target"
    __table_args__ = (UniqueConstraint("study_id", "target_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = _parent("bf_study.id")
    target_id: Mapped[int] = _parent("bf_target.id", index=True)
    optuna_study: Mapped[str] = mapped_column(String(512))
    revision: Mapped[int] = mapped_column(default=0, server_default="0")
    space_digest: Mapped[str | None] = mapped_column(DIGEST)
    ranges_digest: Mapped[str | None] = mapped_column(DIGEST, index=True)
    latency_band: Mapped[float | None]
    optimization_level: Mapped[int | None]
    capability: Mapped[dict[str, Any] | None]
    details: Mapped[dict[str, Any]]
    options: Mapped[dict[str, Any] | None]


class File(Base):
    __tablename__ = "bf_file"
    study_id: Mapped[int] = _parent("bf_study.id", primary_key=True)
    role: Mapped[str] = mapped_column(WORD, primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    digest: Mapped[str] = mapped_column(DIGEST, index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str]


class Group(Base):
    __tablename__ = "bf_group"
    __table_args__ = (UniqueConstraint("study_id", "group"),)
    study_id: Mapped[int] = _parent("bf_study.id", primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    group: Mapped[str] = mapped_column(WORD)
    name: Mapped[str]
    op: Mapped[str] = mapped_column(WORD)
    nodes: Mapped[list[Any]]
    anchors: Mapped[list[Any]]
    shape: Mapped[list[Any]]
    weight_shape: Mapped[list[Any]]
    block: Mapped[str]


class Choice(Base):
    __tablename__ = "bf_choice"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    group: Mapped[str] = mapped_column(WORD, primary_key=True)
    precision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    code: Mapped[int | None]
    offered: Mapped[bool]
    buildable: Mapped[bool] = mapped_column(server_default=true())
    reason: Mapped[str]


class Evaluation(Base):
    """`revision` is what `revision` of the study's target was raised to by the transaction that stored the result."""

    __tablename__ = "bf_evaluation"
    __table_args__ = (
        UniqueConstraint("study_target_id", "digest"),
        # All that is counted: how many there are, and who made them.
        Index(None, "study_target_id", "status", "role", "worker"),
        # What was finished since the last look.
        Index(None, "study_target_id", "revision"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    study_target_id: Mapped[int] = _parent("bf_study_target.id")
    revision: Mapped[int] = mapped_column(default=0, server_default="0")
    digest: Mapped[str] = mapped_column(DIGEST)
    status: Mapped[str] = mapped_column(WORD)
    stage: Mapped[str | None] = mapped_column(WORD)
    kind: Mapped[str | None] = mapped_column(WORD)
    role: Mapped[str] = mapped_column(WORD)
    worker: Mapped[str] = mapped_column(NAME)
    artifact: Mapped[str | None] = mapped_column(DIGEST, index=True)
    raw_ms: Mapped[float | None]
    baseline_ms: Mapped[float | None]
    spread: Mapped[float | None]
    doubts: Mapped[int] = mapped_column(default=0)
    metric_value: Mapped[float | None]
    loss: Mapped[float | None]
    loss_low: Mapped[float | None]
    loss_high: Mapped[float | None]
    samples: Mapped[int | None]
    total_samples: Mapped[int | None]
    resemblance: Mapped[float | None]
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    build_s: Mapped[float | None]
    total_s: Mapped[float | None]
    attempts: Mapped[int] = mapped_column(default=1)
    takeovers: Mapped[int] = mapped_column(default=0, server_default="0")
    replaced: Mapped[int] = mapped_column(default=0)
    not_obeyed: Mapped[int] = mapped_column(default=0)
    opaque: Mapped[int] = mapped_column(default=0)
    started_at: Mapped[datetime] = mapped_column(default=utc_now())
    finished_at: Mapped[datetime | None]
    engine: Mapped[dict[str, Any] | None]
    notes: Mapped[list[Any] | None]
    assignment: Mapped[dict[str, Any]]
    asked_assignment: Mapped[dict[str, Any] | None]
    stage_s: Mapped[dict[str, Any] | None]
    message: Mapped[str | None]
    log: Mapped[str | None]
    deaths: Mapped[list[Any] | None]


class Trial(Base):
    __tablename__ = "bf_trial"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", index=True)
    reused: Mapped[bool]
    asked_assignment: Mapped[dict[str, Any] | None]


class Score(Base):
    """One without samples and numbers says that outputs on the final split cannot be scored; why is a note of the
    evaluation that begins with `records.OF_FINAL`."""

    __tablename__ = "bf_score"
    # Few are of the final split, and they are read whenever a study is judged.
    __table_args__ = (Index(None, "split"),)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    split: Mapped[str] = mapped_column(WORD, primary_key=True)
    metric: Mapped[str] = mapped_column(NAME)
    value: Mapped[float | None]
    loss: Mapped[float | None]
    loss_low: Mapped[float | None]
    loss_high: Mapped[float | None]
    samples: Mapped[int]
    total: Mapped[int]
    resemblance: Mapped[float | None]
    scores: Mapped[bytes]


class Audit(Base):
    __tablename__ = "bf_audit"
    # Without a separate rowid the rows of one evaluation lie together, and there is one index less to write.
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - the form that SQLAlchemy asks for
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    group: Mapped[str] = mapped_column(WORD, primary_key=True)
    asked: Mapped[int]
    got: Mapped[int | None]
    kernel: Mapped[str]
    details: Mapped[dict[str, Any] | None]


class Sample(Base):
    __tablename__ = "bf_sample"
    # What was measured again, of which there is little, is looked for among what was measured once.
    __table_args__ = (Index(None, "round"),)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    round: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    role: Mapped[str] = mapped_column(WORD, primary_key=True)
    raw_ms: Mapped[float | None]
    baseline_ms: Mapped[float | None]
    spread: Mapped[float | None]
    warnings: Mapped[list[Any] | None]
    details: Mapped[dict[str, Any] | None]
    samples: Mapped[bytes]


class Profile(Base):
    __tablename__ = "bf_profile"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - as in Audit
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    group: Mapped[str | None] = mapped_column(WORD)
    moves: Mapped[bool]
    ms: Mapped[float]
    kind: Mapped[str]
    name: Mapped[str]


class Sensitivity(Base):
    __tablename__ = "bf_sensitivity"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    group: Mapped[str] = mapped_column(WORD, primary_key=True)
    precision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    error: Mapped[float | None]
    flipped: Mapped[float | None]
    sqnr_db: Mapped[float | None]
    kl: Mapped[float | None]
    overlap: Mapped[float | None]
    saturated: Mapped[float | None]
    samples: Mapped[int]


class Repeat(Base):
    __tablename__ = "bf_repeat"
    id: Mapped[int] = mapped_column(primary_key=True)
    study_target_id: Mapped[int] = _parent("bf_study_target.id", index=True)
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", index=True)
    kind: Mapped[str] = mapped_column(WORD)
    raw_ms: Mapped[float]
    baseline_ms: Mapped[float | None]


class Lease(Base):
    __tablename__ = "bf_lease"
    evaluation_id: Mapped[int] = _parent("bf_evaluation.id", primary_key=True, autoincrement=False)
    worker: Mapped[str] = mapped_column(NAME)
    heartbeat: Mapped[datetime] = mapped_column(default=utc_now())


class Worker(Base):
    __tablename__ = "bf_worker"
    id: Mapped[int] = mapped_column(primary_key=True)
    study_target_id: Mapped[int] = _parent("bf_study_target.id", index=True)
    name: Mapped[str] = mapped_column(NAME, unique=True)
    host: Mapped[str] = mapped_column(NAME)
    device: Mapped[str] = mapped_column(NAME)
    pid: Mapped[int]
    state: Mapped[str] = mapped_column(WORD)
    started_at: Mapped[datetime] = mapped_column(default=utc_now())
    heartbeat: Mapped[datetime] = mapped_column(default=utc_now())
    ended_at: Mapped[datetime | None]
    spent_at: Mapped[datetime | None]
    spent: Mapped[dict[str, Any] | None]


class Task(Base):
    __tablename__ = "bf_task"
    study_target_id: Mapped[int] = _parent("bf_study_target.id", primary_key=True)
    name: Mapped[str] = mapped_column(WORD, primary_key=True)
    worker: Mapped[str] = mapped_column(NAME)
    heartbeat: Mapped[datetime] = mapped_column(default=utc_now())


class Artifact(Base):
    __tablename__ = "bf_artifact"
    digest: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    kind: Mapped[str] = mapped_column(WORD)
    key: Mapped[str | None] = mapped_column(NAME, unique=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(default=utc_now())
