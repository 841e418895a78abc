"""The tables of evaluations: what was measured, read back and asked for, and their rows.

Large columns stand last in their tables, so that SQLite reads the numbers without following overflow pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import BigInteger, Boolean, Index, Integer, UniqueConstraint

from search.values import Assignment, EngineSummary, Flips, MixBias, Precision, Recovery
from search.values.shape import Seconds
from studies.store import shapes
from studies.store.database.column_types import (
    MILLISECONDS,
    Json,
    JsonList,
    JsonValue,
    LongText,
    Number,
    PrecisionId,
    UtcDateTime,
    utc_now,
)
from studies.store.database.table import BLOB, DIGEST, NAME, WORD, Base, optional, parent_key, required_column

if TYPE_CHECKING:
    from sqlalchemy.orm import Mapped


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
    id: Mapped[int] = required_column(Integer, primary_key=True)
    study_target_id: Mapped[int] = parent_key("bf_study_target.id")
    revision: Mapped[int] = required_column(Integer, default=0, server_default="0")
    digest: Mapped[str] = required_column(DIGEST)
    status: Mapped[str] = required_column(WORD)
    stage: Mapped[str | None] = optional(WORD)
    kind: Mapped[str | None] = optional(WORD)
    role: Mapped[str] = required_column(WORD)
    worker: Mapped[str] = required_column(NAME)
    artifact: Mapped[str | None] = optional(DIGEST, index=True)
    raw_ms: Mapped[float | None] = optional(MILLISECONDS)
    baseline_ms: Mapped[float | None] = optional(MILLISECONDS)
    spread: Mapped[float | None] = optional(Number())
    doubts: Mapped[int] = required_column(Integer, default=0)
    metric_value: Mapped[float | None] = optional(Number())
    loss: Mapped[float | None] = optional(Number())
    loss_low: Mapped[float | None] = optional(Number())
    loss_high: Mapped[float | None] = optional(Number())
    loss_upper: Mapped[float | None] = optional(Number())
    samples: Mapped[int | None] = optional(Integer)
    total_samples: Mapped[int | None] = optional(Integer)
    resemblance: Mapped[float | None] = optional(Number())
    size_bytes: Mapped[int | None] = optional(BigInteger)
    memory_bytes: Mapped[int | None] = optional(BigInteger)
    build_s: Mapped[float | None] = optional(Number())
    total_s: Mapped[float | None] = optional(Number())
    attempts: Mapped[int] = required_column(Integer, default=1)
    takeovers: Mapped[int] = required_column(Integer, default=0, server_default="0")
    replaced: Mapped[int] = required_column(Integer, default=0)
    not_obeyed: Mapped[int] = required_column(Integer, default=0)
    opaque: Mapped[int] = required_column(Integer, default=0)
    started_at: Mapped[datetime] = required_column(UtcDateTime, default=utc_now())
    finished_at: Mapped[datetime | None] = optional(UtcDateTime)
    engine: Mapped[dict[str, Any] | None] = optional(Json(EngineSummary))
    notes: Mapped[tuple[str, ...] | None] = optional(JsonList(str))
    assignment: Mapped[Assignment] = required_column(JsonValue(Assignment))
    stage_s: Mapped[dict[str, float] | None] = optional(Json(Mapping[str, Seconds]))
    message: Mapped[str | None] = optional(LongText)
    log: Mapped[str | None] = optional(LongText)
    deaths: Mapped[tuple[Any, ...] | None] = optional(JsonList(shapes.StoredFailure))
    mix_bias: Mapped[MixBias | None] = optional(JsonValue(MixBias))
    mix_corrections: Mapped[Recovery | None] = optional(JsonValue(Recovery))

    @property
    def level(self) -> int | None:
        """TensorRT's optimization level of its build; None on other backends."""
        return None if self.engine is None else self.engine.get("optimization_level")


class TrialRecord(Base):
    __tablename__ = "bf_trial"
    study_target_id: Mapped[int] = parent_key("bf_study_target.id", primary_key=True)
    number: Mapped[int] = required_column(Integer, primary_key=True, autoincrement=False)
    evaluation_id: Mapped[int] = parent_key("bf_evaluation.id", index=True)
    reused: Mapped[bool] = required_column(Boolean)


class ScoreRecord(Base):
    """One without samples and numbers says that outputs on the final split cannot be scored; why is a note of the
    evaluation that begins with `records.OF_FINAL`."""

    __tablename__ = "bf_score"
    # Few are of the final split, and they are read whenever a study is judged.
    __table_args__ = (Index(None, "split"),)
    evaluation_id: Mapped[int] = parent_key("bf_evaluation.id", primary_key=True)
    split: Mapped[str] = required_column(WORD, primary_key=True)
    metric: Mapped[str] = required_column(NAME)
    value: Mapped[float | None] = optional(Number())
    loss: Mapped[float | None] = optional(Number())
    loss_low: Mapped[float | None] = optional(Number())
    loss_high: Mapped[float | None] = optional(Number())
    samples: Mapped[int] = required_column(Integer)
    total: Mapped[int] = required_column(Integer)
    resemblance: Mapped[float | None] = optional(Number())
    flips: Mapped[Flips | None] = optional(JsonValue(Flips))
    loss_bounds: Mapped[tuple[float | None, ...] | None] = optional(JsonList(float | None))
    value_bounds: Mapped[tuple[float | None, ...] | None] = optional(JsonList(float | None))
    scores: Mapped[bytes] = required_column(BLOB)


class AuditRecord(Base):
    __tablename__ = "bf_audit"
    # Without a separate rowid the rows of one evaluation lie together, and there is one index less to write.
    __table_options__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    evaluation_id: Mapped[int] = parent_key("bf_evaluation.id", primary_key=True)
    group: Mapped[str] = required_column(WORD, primary_key=True)
    asked: Mapped[Precision] = required_column(PrecisionId)
    got: Mapped[Precision | None] = optional(PrecisionId)
    kernel: Mapped[str] = required_column(LongText)
    details: Mapped[dict[str, str] | None] = optional(Json(Mapping[str, str]))


class SampleRecord(Base):
    __tablename__ = "bf_sample"
    # What was measured again, of which there is little, is looked for among what was measured once.
    __table_args__ = (Index(None, "round"),)
    evaluation_id: Mapped[int] = parent_key("bf_evaluation.id", primary_key=True)
    round: Mapped[int] = required_column(Integer, primary_key=True, autoincrement=False)
    role: Mapped[str] = required_column(WORD, primary_key=True)
    raw_ms: Mapped[float | None] = optional(MILLISECONDS)
    baseline_ms: Mapped[float | None] = optional(MILLISECONDS)
    spread: Mapped[float | None] = optional(Number())
    wall_ms: Mapped[float | None] = optional(MILLISECONDS)
    warnings: Mapped[tuple[str, ...] | None] = optional(JsonList(str))
    details: Mapped[dict[str, Any] | None] = optional(Json(shapes.Surroundings))
    samples: Mapped[bytes] = required_column(BLOB)


class LayerRecord(Base):
    __tablename__ = "bf_profile"
    __table_options__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    evaluation_id: Mapped[int] = parent_key("bf_evaluation.id", primary_key=True)
    position: Mapped[int] = required_column(Integer, primary_key=True, autoincrement=False)
    group: Mapped[str | None] = optional(WORD)
    moves: Mapped[bool] = required_column(Boolean)
    ms: Mapped[float] = required_column(Number())
    kind: Mapped[str] = required_column(LongText)
    name: Mapped[str] = required_column(LongText)
