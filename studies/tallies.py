"""Counting a study in the database: what `status` says of it must not take longer the longer the study is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Integer, and_, case, cast, false, func, literal, or_, select, true

from search.values import Answer, AuditRow, Precision
from studies import records, tables
from studies.config import Limits
from studies.queries import Reader
from studies.retries import retried

_BUCKETS = 2000  # at most; a bucket is half a tie band wide, where that is not too many
_STEPS = 24  # of the staircase that rows are held against, each a comparison per row
_SLICE = 20_000  # the staircase is made of the last so many evaluations: any may knock out, and to read all takes time


@dataclass(frozen=True)
class Tally:
    """What is finished on one target, exports left out; times by the database's clock.

    Attributes:
        finished, running: how many.
        failures: (stage, kind) → how many.
        recent: finished since the moment that was asked for.
        first_started, last_finished: of any evaluation; None where there is none.
        now: when this was counted.
        fastest_ms, slowest_ms: of all latencies; None where there is none.
        fp32_id: of the FP32 baseline; 0 before it is there.
        fp32_ms: its latency as the search measured it; None before it is there.
        last_id: of the newest evaluation; 0 where there is none.
    """

    finished: int
    running: int
    failures: dict[tuple[str, str], int]
    recent: int
    first_started: datetime | None
    last_finished: datetime | None
    now: datetime
    fastest_ms: float | None
    slowest_ms: float | None
    fp32_id: int
    fp32_ms: float | None
    last_id: int


@dataclass(frozen=True)
class Candidates:
    """Evaluations that keep all limits, as columns in order of id: at least all that the front and the picks take.

    Left out is what a clearly faster one of clearly no more loss knocks out, whatever else there is.

    `fp32_ms` is the latest word on the latency of the FP32 baseline, None before it is there.
    """

    id: NDArray[np.int64]
    latency_ms: NDArray[np.float64]
    loss: NDArray[np.float64]
    loss_band: NDArray[np.float64]
    fp32_ms: float | None


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
    latency_ms: float | None
    loss: float | None
    samples: int | None
    total_samples: int | None


class Tallies(Reader):
    """Aggregates that the database computes; no assignment, sample or score is read."""

    @retried
    def tally(self, study_target_id: int, since: datetime) -> Tally:
        """Count one target's evaluations; `recent` are those since a moment by the database's clock."""
        e = tables.Evaluation
        finished = e.finished_at.is_not(None)
        recent = and_(finished, e.finished_at >= since.replace(tzinfo=None))  # as it is stored: UTC without saying so
        fp32 = and_(e.role == "baseline:fp32", e.status == records.OK)
        query = (
            select(e.status, e.stage, e.kind, func.count(), func.count(case((recent, 1))))
            .add_columns(
                func.min(e.started_at), func.max(e.finished_at), func.min(e.latency_ms), func.max(e.latency_ms)
            )
            .add_columns(func.min(case((fp32, e.latency_ms))), tables.utc_now(), func.max(e.id))
            .add_columns(func.min(case((fp32, e.id))))
            .where(e.study_target_id == study_target_id, e.role != records.EXPORT)
            .group_by(e.status, e.stage, e.kind)
        )
        return _tally(self._rows(query) or [(None, None, None, 0, 0, *[None] * 5, self.now(), 0, None)])

    @retried
    def now(self) -> datetime:
        """The database's clock."""
        found: datetime = self._rows(select(tables.utc_now()))[0][0]
        return found

    @retried
    def candidates(
        self, study_target_id: int, limits: Limits, band: float, tally: Tally, *, higher_is_better: bool
    ) -> Candidates:
        """What of a target may be on its front.

        Args:
            band: relative tie band of latency.
            tally: of the same target.
        """
        e, most = tables.Evaluation, limits.latency_budget_ms
        again = self.confirmed(study_target_id)
        condition = self._may_stand(study_target_id, limits, band, tally, higher_is_better=higher_is_better)
        query = select(e.id, e.latency_ms, e.loss, _half()).where(condition).order_by(e.id)
        rows = [(i, again.get(i, ms), loss, half) for i, ms, loss, half in self._rows(query)]
        barred = {row[0] for row in self._rows(_failing_finally())} if again else set()
        kept = [row for row in rows if row[0] not in barred and (most is None or row[1] <= most)]
        return _columns(kept, again.get(tally.fp32_id, tally.fp32_ms))

    @retried
    def front_table(
        self, study_target_id: int, limits: Limits, band: float, tally: Tally, *, higher_is_better: bool
    ) -> records.EvaluationTable:
        """As `candidates`, with all columns of `evaluations`; and the baselines, and what is `regained`."""
        condition = self._may_stand(study_target_id, limits, band, tally, higher_is_better=higher_is_better)
        baseline = tables.Evaluation.role.startswith("baseline:")
        return self._evaluations(study_target_id, or_(condition, baseline, and_(*_stopped(limits))))

    def _may_stand(
        self, study_target_id: int, limits: Limits, band: float, tally: Tally, *, higher_is_better: bool
    ) -> Any:
        e = tables.Evaluation
        if tally.fastest_ms is None:
            return false()
        # Their latency is another than the one in their row: they knock nothing out here, and nothing knocks them out.
        apart = e.id.in_(_measured_again())
        kept = (e.study_target_id == study_target_id, *_complete(), *_kept(limits, higher_is_better))
        stands = (*kept, ~apart, *_budget(limits))
        steps = self._steps((*stands, e.id > tally.last_id - _SLICE), band, tally) or self._steps(stands, band, tally)
        within = and_(e.loss - _half() <= _threshold(steps), *_budget(limits)) if steps else true()
        return and_(*kept, or_(apart, within))

    def _steps(self, conditions: Sequence[Any], band: float, tally: Tally) -> list[tuple[float, float]]:
        """(latency from which on, loss that a row must be below): falling losses at rising latencies."""
        e, fastest, slowest = tables.Evaluation, tally.fastest_ms or 0.0, tally.slowest_ms or 0.0
        width = max(fastest * max(band, 0.002) / 2, (slowest - fastest) / _BUCKETS, 1e-9)
        bucket = cast(e.latency_ms / width, Integer)
        query = select(bucket.label("bucket"), func.min(e.loss + _half())).where(*conditions).group_by(bucket)
        rows = sorted((int(row[0]), float(row[1])) for row in self._rows(query))
        # A cast rounds on some databases and cuts off on others: the bucket ends a whole width on in either case.
        edges = [(number + 1) * width * (1 + band) * (1 + 1e-9) for number, _ in rows]
        least = list(accumulate((most for _, most in rows), min))
        falls = [step for i, step in enumerate(zip(edges, least, strict=True)) if i == 0 or step[1] < least[i - 1]]
        if len(falls) <= _STEPS:
            return falls
        chosen = np.linspace(0, len(falls) - 1, _STEPS).astype(int)
        return [falls[i] for i in dict.fromkeys(chosen.tolist())]

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
    def trials_of(self, evaluation_ids: Sequence[int]) -> dict[int, int]:
        """Evaluation id → its lowest Optuna trial, for a few of them."""
        t = tables.Trial
        query = select(t.evaluation_id, func.min(t.number)).where(t.evaluation_id.in_(list(evaluation_ids)))
        return {row[0]: row[1] for row in self._rows(query.group_by(t.evaluation_id))}

    @retried
    def finished_since(self, study_target_id: int, seconds: float) -> tuple[FinishedRow, ...]:
        """What was finished in the last seconds, in the order it was."""
        e, t = tables.Evaluation, tables.Trial
        trial = select(func.min(t.number)).where(t.evaluation_id == e.id).scalar_subquery()
        names = ("worker", "status", "stage", "kind", "role", "latency_ms", "loss", "samples", "total_samples")
        query = (
            select(e.id, trial, *(e.__table__.c[name] for name in names))
            .where(e.study_target_id == study_target_id, e.role != records.EXPORT)
            .where(e.finished_at > tables.utc_ago(seconds))
            .order_by(e.finished_at, e.id)
        )
        return tuple(FinishedRow(*row) for row in self._rows(query))


def _half() -> Any:
    e = tables.Evaluation
    return (e.loss_high - e.loss_low) / 2


def _measured_again() -> Any:
    s = tables.Sample
    return select(s.evaluation_id).where(s.round > 0, s.role == "candidate")


def _failing_finally() -> Any:
    """What `Standing.fails_final` says; all that was tried on the final split has been measured again."""
    s = tables.Score
    return select(s.evaluation_id).where(s.evaluation_id.in_(_measured_again()), s.split == "final", s.samples == 0)


def _complete() -> tuple[Any, ...]:
    """What `Standing.complete` asks, as conditions."""
    e = tables.Evaluation
    measured = (e.latency_ms.is_not(None), e.loss.is_not(None), e.role != records.EXPORT)
    return (e.status == records.OK, e.samples == e.total_samples, e.not_obeyed == 0, *measured)


def _kept(limits: Limits, higher_is_better: bool) -> tuple[Any, ...]:
    """What `pareto.feasible` asks, but for the latency, as conditions."""
    e, found = tables.Evaluation, []
    if limits.max_drop is not None:
        found.append(e.loss <= limits.max_drop)
    if limits.accuracy_limit is not None:
        bound = limits.accuracy_limit
        found.append(e.metric_value >= bound if higher_is_better else e.metric_value <= bound)
    if limits.max_memory_bytes is not None:
        found.append(e.memory_bytes <= limits.max_memory_bytes)
    return tuple(found)


def _budget(limits: Limits) -> tuple[Any, ...]:
    most = limits.latency_budget_ms
    return () if most is None else (tables.Evaluation.latency_ms <= most,)


def _stopped(limits: Limits) -> tuple[Any, ...]:
    """At least what `Standing.regained` asks, as conditions."""
    e = tables.Evaluation
    found = [e.status == records.OK, e.samples < e.total_samples, e.not_obeyed == 0, e.role != records.EXPORT]
    if limits.max_drop is not None:
        found.append(e.loss_low <= limits.max_drop)
    if limits.max_memory_bytes is not None:
        found.append(e.memory_bytes <= limits.max_memory_bytes)
    return (*found, *_budget(limits))


def _threshold(steps: Sequence[tuple[float, float]]) -> Any:
    """The loss that a row of some latency must not be above; what is not beyond the first step passes."""
    latency = tables.Evaluation.latency_ms
    below = [(latency <= edge, literal(least)) for (edge, _), least in zip(steps, _before(steps), strict=True)]
    return case(*below, else_=literal(steps[-1][1]))


def _before(steps: Sequence[tuple[float, float]]) -> list[float]:
    """What holds up to each step: at first anything, then what the step before asks."""
    return [np.finfo(np.float64).max.item(), *(least for _, least in steps[:-1])]


def _columns(rows: Sequence[tuple[int, float, float, float]], fp32_ms: float | None) -> Candidates:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    latency_ms, loss, half = (np.array(column, np.float64) for column in columns[1:])
    return Candidates(np.array(columns[0], np.int64), latency_ms, loss, half, fp32_ms)


def _tally(rows: Sequence[Any]) -> Tally:
    done = [row for row in rows if row[0] in (records.OK, records.FAILED)]
    return Tally(
        finished=sum(row[3] for row in done),
        running=sum(row[3] for row in rows if row[0] == records.RUNNING),
        failures={(row[1] or "", row[2] or ""): row[3] for row in done if row[0] == records.FAILED},
        recent=sum(row[4] for row in rows),
        first_started=min((row[5] for row in rows if row[5] is not None), default=None),
        last_finished=max((row[6] for row in rows if row[6] is not None), default=None),
        now=max(row[10] for row in rows),
        fastest_ms=min((row[7] for row in rows if row[7] is not None), default=None),
        slowest_ms=max((row[8] for row in rows if row[8] is not None), default=None),
        fp32_id=min((row[12] for row in rows if row[12] is not None), default=0),
        fp32_ms=min((row[9] for row in rows if row[9] is not None), default=None),
        last_id=max(row[11] for row in rows),
    )
