"""Counting a study in the database: what `status` says of it must not take longer the longer the study is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, func, select

from evaluators.measure.latency_scale import scaled
from search.values import Answer, AuditRow, Precision
from studies.store import records
from studies.store.database import tables
from studies.store.database.retries import retried
from studies.store.reading.queries import Reader


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


class Tallies(Reader):
    """Aggregates that the database computes; no assignment, sample or score is read."""

    @retried
    def tally(self, study_target_id: int, since: datetime) -> Tally:
        """Count one target's evaluations; `recent` are those since a moment by the database's clock."""
        e = tables.Evaluation
        finished = e.finished_at.is_not(None)
        recent = and_(finished, e.finished_at >= since.replace(tzinfo=None))  # as it is stored: UTC without saying so
        query = (
            select(e.status, e.stage, e.kind, func.count(), func.count(case((recent, 1))))
            .add_columns(func.min(e.started_at), func.max(e.finished_at), tables.utc_now())
            .where(e.study_target_id == study_target_id, e.role != records.EXPORT)
            .group_by(e.status, e.stage, e.kind)
        )
        return _tally(self._rows(query) or [(None, None, None, 0, 0, None, None, self.now())])

    @retried
    def now(self) -> datetime:
        """The database's clock."""
        found: datetime = self._rows(select(tables.utc_now()))[0][0]
        return found

    @retried
    def obedience(self, study_target_id: int) -> dict[tuple[Precision, Answer], int]:
        """(asked precision, answer of the audit) → groups, over every audited evaluation of one target."""
        a, e = tables.Audit, tables.Evaluation
        query = (
            select(a.asked, a.got, func.count())
            .join(e, e.id == a.evaluation_id)
            .where(e.study_target_id == study_target_id)
            .group_by(a.asked, a.got)
        )
        found: Counter[tuple[Precision, Answer]] = Counter()
        for asked, got, count in self._rows(query):
            row = AuditRow("", Precision.of_id(asked), None if got is None else Precision.of_id(got), "")
            found[row.asked, row.answer] += count
        return dict(found)

    @retried
    def finished_since(self, study_target_id: int, seconds: float) -> tuple[FinishedRow, ...]:
        """What was finished in the last seconds, in the order it was."""
        e, t = tables.Evaluation, tables.Trial
        trial = select(func.min(t.number)).where(t.evaluation_id == e.id).scalar_subquery()
        names = ("worker", "status", "stage", "kind", "role", "loss", "samples", "total_samples")
        query = (
            select(e.raw_ms, e.baseline_ms, e.id, trial, *(e.__table__.c[name] for name in names))
            .where(e.study_target_id == study_target_id, e.role != records.EXPORT)
            .where(e.finished_at > tables.utc_ago(seconds))
            .order_by(e.finished_at, e.id)
        )
        rows = self._rows(query)
        reference_ms = self.reference_ms(study_target_id) if any(row[1] is not None for row in rows) else None
        columns = ("id", "trial", *names)
        return tuple(
            FinishedRow(
                **dict(zip(columns, row[2:], strict=True)), latency_ms=_latency_ms(row[0], row[1], reference_ms)
            )
            for row in rows
        )


def _latency_ms(raw_ms: float | None, baseline_ms: float | None, reference_ms: float | None) -> float | None:
    if raw_ms is None:
        return None
    return float(scaled(raw_ms, math.nan if baseline_ms is None else baseline_ms, reference_ms))


def _tally(rows: Sequence[Any]) -> Tally:
    done = [row for row in rows if row[0] in (records.OK, records.FAILED)]
    return Tally(
        finished=sum(row[3] for row in done),
        running=sum(row[3] for row in rows if row[0] == records.RUNNING),
        failures={(row[1] or "", row[2] or ""): row[3] for row in done if row[0] == records.FAILED},
        recent=sum(row[4] for row in rows),
        first_started=min((row[5] for row in rows if row[5] is not None), default=None),
        last_finished=max((row[6] for row in rows if row[6] is not None), default=None),
        now=max(row[7] for row in rows),
    )
