"""Statistics of a search, counted by the database so that `status` is fast for long studies too."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime

from sqlalchemy import and_, case, func, select

from evaluators.measure.latency_scale import scale_latencies
from search.values import Answer, AuditRow, Precision
from studies.store import records
from studies.store.database import column_types, tables
from studies.store.database.retries import retry
from studies.store.database.transactions import Repository
from studies.store.reading.evaluation_rows import failure_of
from studies.store.reading.repeats import read_reference_ms
from studies.store.records import FinishedEvaluation, Tally
from studies.store.statements import results


class Statistics(Repository):
    """Counts and times of one target; no assignment, sample or score is read."""

    def counts(self, study_target_id: int) -> records.Counts:
        """How many evaluations are finished, and how many are running."""
        e = tables.EvaluationRecord
        query = (
            select(e.status, func.count())
            .where(e.study_target_id == study_target_id, e.role != records.EXPORT)
            .group_by(e.status)
        )
        by_status = {row[0]: int(row[1]) for row in self._database.rows(query)}
        running = by_status.pop(records.RUNNING, 0)
        return records.Counts(sum(by_status.values()), running)

    @retry
    def tally(self, study_target_id: int, since: datetime) -> Tally:
        """Count one target's evaluations; `recent` are those since a moment by the database's clock."""
        e = tables.EvaluationRecord
        finished = e.finished_at.is_not(None)
        recent = and_(finished, e.finished_at >= since.replace(tzinfo=None))  # as it is stored: UTC without saying so
        query = (
            select(e.status, e.stage, e.kind, func.count(), func.count(case((recent, 1))))
            .add_columns(func.min(e.started_at), func.max(e.finished_at), column_types.utc_now())
            .where(e.study_target_id == study_target_id, e.role != records.EXPORT)
            .group_by(e.status, e.stage, e.kind)
        )
        rows = self._database.rows(query) or [(None, None, None, 0, 0, None, None, self.now())]
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

    @retry
    def now(self) -> datetime:
        """The database's clock."""
        now: datetime = self._database.rows(select(column_types.utc_now()))[0][0]
        return now

    @retry
    def obedience(self, study_target_id: int) -> dict[tuple[Precision, Answer], int]:
        """(requested precision, answer of the audit) → groups, over every audited evaluation of one target."""
        a, e = tables.AuditRecord, tables.EvaluationRecord
        query = (
            select(a.asked, a.got, func.count())
            .join(e, e.id == a.evaluation_id)
            .where(e.study_target_id == study_target_id)
            .group_by(a.asked, a.got)
        )
        groups: Counter[tuple[Precision, Answer]] = Counter()
        for precision, got, count in self._database.rows(query):
            groups[precision, AuditRow("", precision, got, "").answer] += count
        return dict(groups)

    @retry
    def finished_since(self, study_target_id: int, seconds: float) -> tuple[FinishedEvaluation, ...]:
        """What was finished in the last seconds, in the order it was."""
        e, t = tables.EvaluationRecord, tables.TrialRecord
        trial = select(func.min(t.number)).where(t.evaluation_id == e.id).scalar_subquery().label("trial")
        query = (
            select(*e.__table__.c, trial)
            .where(e.study_target_id == study_target_id, e.role != records.EXPORT)
            .where(e.finished_at > column_types.utc_ago(seconds))
            .order_by(e.finished_at, e.id)
        )
        rows = self._database.rows(query)
        reference_ms = None
        if any(row.baseline_ms is not None for row in rows):
            with self._database.begin_read("read the baselines") as connection:
                reference_ms = read_reference_ms(connection, study_target_id)
        return tuple(
            FinishedEvaluation(**row._mapping, latency_ms=_latency_ms(row.raw_ms, row.baseline_ms, reference_ms))
            for row in rows
        )

    def deaths(self, study_target_id: int) -> tuple[records.DeathRecord, ...]:
        """Evaluator processes that ended in the middle of an evaluation and were replaced, in order of evaluations."""
        e, trials = tables.EvaluationRecord, results.lowest_trials(study_target_id)
        query = (
            select(e.id, trials.c.trial, e.deaths)
            .outerjoin(trials, trials.c.evaluation_id == e.id)
            .where(e.study_target_id == study_target_id, e.replaced > 0)
            .order_by(e.id)
        )
        return tuple(
            records.DeathRecord(row.id, row.trial, failure_of(**death))
            for row in self._database.rows(query)
            for death in row.deaths
        )

    def worker_times(self, study_target_id: int) -> tuple[records.WorkerTime, ...]:
        """What the workers of a target spent their time on, oldest first; those that did not say are absent."""
        w = tables.WorkerRecord
        conditions = (w.study_target_id == study_target_id, w.spent_at.is_not(None))
        rows = self._database.rows(select(w.name, w.spent_at, w.spent).where(*conditions).order_by(w.id))
        return tuple(records.WorkerTime(*row) for row in rows)


def _latency_ms(raw_ms: float | None, baseline_ms: float | None, reference_ms: float | None) -> float | None:
    if raw_ms is None:
        return None
    return float(scale_latencies(raw_ms, math.nan if baseline_ms is None else baseline_ms, reference_ms))
