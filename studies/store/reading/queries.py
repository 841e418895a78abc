"""Reading the study database. Every method is one short read transaction and gives plain values of `records.py`."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, Text, and_, case, cast, column, distinct, func, inspect, select, table, true
from sqlalchemy.engine import URL

from evaluators.measure.latency_scale import baseline_doubt, reference_of, scaled
from search.errors import StudyError
from search.forecast.forecasts import FORECAST, Predicted
from search.values import (
    Accuracy,
    Assignment,
    AuditRow,
    Capability,
    EngineSummary,
    Evaluation,
    Failure,
    FailureKind,
    Latency,
    LayerTime,
    Precision,
    Stage,
    Target,
)
from studies.store import records
from studies.store.database import tables
from studies.store.database.database import hide_password, reported
from studies.store.database.retries import retried
from studies.store.reading.detail_columns import DetailColumn, Details, column_of
from studies.store.reading.evaluation_columns import (
    DETAILS,
    detail_column,
    detail_rows,
    judged_columns,
    number_columns,
    plain_rows,
)
from studies.store.reading.latencies import confirmed
from studies.store.reading.repeats import provisional_band

if TYPE_CHECKING:
    from search.graph.model import Edge

Row = Any  # SQLAlchemy 2.0 and 2.1 type rows and selects in ways that exclude each other
Query = Any

# Optuna's tables, as far as they are read here.
_STUDIES = table("studies", column("study_id"), column("study_name"))
_TRIALS = table("trials", column("trial_id"), column("study_id"), column("number"))
_ATTRIBUTES = table("trial_user_attributes", column("trial_id"), column("key"), column("value_json"))


class Reader:
    """The reading half of the store; safe to use from several threads, each call has a connection of its own."""

    def __init__(self, engine: Engine, url: URL) -> None:
        """Take over an engine of `database.open_engine`; `Store.open` is the way to get one."""
        self._engine = engine
        self._url = url
        self._closed = False

    @property
    def url(self) -> str:
        """Where the studies are, fit for messages and reports: without its password."""
        return hide_password(self._url)

    def studies(self) -> tuple[records.StudySummary, ...]:
        """All studies, oldest first."""
        s, t, e = tables.Study, tables.StudyTarget, tables.Evaluation
        searched = e.role != records.EXPORT
        states = (records.OK, records.FAILED, records.RUNNING)
        counts = [func.count(case((and_(e.status == status, searched), 1))) for status in states]
        query = (
            select(s.id, s.name, s.state, s.created_at, s.model_path, func.count(distinct(t.id)), *counts)
            .outerjoin(t, t.study_id == s.id)
            .outerjoin(e, e.study_target_id == t.id)
            .group_by(s.id, s.name, s.state, s.created_at, s.model_path)
            .order_by(s.id)
        )
        return tuple(records.StudySummary(*row) for row in self._rows(query))

    def study(self, name: str) -> records.StudyRecord:
        """The study of this name; StudyError naming close ones when there is none."""
        rows = self._rows(select(*tables.Study.__table__.c).where(tables.Study.name == name))
        if not rows:
            raise StudyError(self._unknown_study(name))
        return records.StudyRecord(**rows[0]._mapping)

    def score_clusters(self, study_id: int) -> dict[str, NDArray[np.int64]]:
        """`search` and `final` → (scores,) the same code for scores that belong together; empty without clusters."""
        c = tables.Cluster
        rows = self._rows(select(c.split, c.codes).where(c.study_id == study_id))
        return {row.split: np.frombuffer(row.codes, dtype="<i4").astype(np.int64) for row in rows}

    def targets(self, study_id: int) -> tuple[records.TargetRecord, ...]:
        """The targets of a study, the first one first; empty until `add_target`."""
        t = tables.StudyTarget
        query = (
            select(*t.__table__.c, tables.Target.description)
            .join(tables.Target, tables.Target.id == t.target_id)
            .where(t.study_id == study_id)
            .order_by(t.id)
        )
        return tuple(_target(row, self._provisional_band(row)) for row in self._rows(query))

    def _provisional_band(self, target: Row) -> float:
        return provisional_band(self.repeats(target.id)) if target.latency_band is None else 0.0

    def repeats(self, study_target_id: int) -> tuple[records.RepeatRecord, ...]:
        """Baselines that were measured again for the tie band, in the order they were."""
        r = tables.Repeat
        rows = self._rows(_all(r, r.study_target_id == study_target_id).order_by(r.id))
        return tuple(records.RepeatRecord(row.evaluation_id, row.kind, row.raw_ms, row.baseline_ms) for row in rows)

    def groups(self, study_id: int) -> tuple[records.GroupRecord, ...]:
        """The groups in topological order; empty until `set_groups`."""
        g = tables.Group
        return tuple(_group(row) for row in self._rows(_all(g, g.study_id == study_id).order_by(g.position)))

    def edges(self, study_id: int) -> tuple[Edge, ...]:
        """The edges in topological order. Imports `search.graph.model`, which takes a while."""
        from search.graph.model import Edge

        e = tables.Edge
        rows = self._rows(_all(e, e.study_id == study_id).order_by(e.position))
        return tuple(Edge(row.source, row.target, row.tensor, row.elements) for row in rows)

    def choices(self, study_target_id: int) -> tuple[records.Choice, ...]:
        """Every precision of every group, by group id and precision; empty until `set_choices`."""
        c = tables.Choice
        rows = self._rows(_all(c, c.study_target_id == study_target_id).order_by(c.group))
        found = (
            records.Choice(r.group, Precision.of_id(r.precision), r.code, r.offered, r.reason, r.buildable)
            for r in rows
        )
        return tuple(sorted(found, key=lambda choice: (choice.group, choice.precision)))

    def sensitivity_rows(self, study_target_id: int) -> tuple[records.SensitivityRecord, ...]:
        """What groups do alone in lower precisions, by group and precision; empty until `set_sensitivities`."""
        s = tables.Sensitivity
        names = ("error", "flipped", "sqnr_db", "kl", "overlap", "saturated", "samples")
        rows = self._rows(_all(s, s.study_target_id == study_target_id).order_by(s.group))
        found = (
            records.SensitivityRecord(r.group, Precision.of_id(r.precision), *(getattr(r, name) for name in names))
            for r in rows
        )
        return tuple(sorted(found, key=lambda row: (row.group, row.precision)))

    def sensitivities(self, study_target_id: int) -> dict[tuple[str, Precision], float]:
        """(group id, precision) → error of the network's outputs, noise over power, with that group alone in it.

        Infinite where outputs are not finite. FP32 is not among the pairs; empty until `set_sensitivities`.
        """
        rows = self.sensitivity_rows(study_target_id)
        return {(row.group, row.precision): math.inf if row.error is None else row.error for row in rows}

    def unbuildable(self, study_target_id: int) -> frozenset[tuple[str, Precision]]:
        """(group id, precision) that the engine's builder has refused on this target; see `mark_unbuildable`."""
        c = tables.Choice
        query = select(c.group, c.precision).where(c.study_target_id == study_target_id, c.buildable.is_(False))
        return frozenset((row[0], Precision.of_id(row[1])) for row in self._rows(query))

    def baselines(self, study_target_id: int) -> tuple[int, ...]:
        """Ids of the uniform assignments' evaluations that went well, oldest first."""
        e = tables.Evaluation
        good = (e.study_target_id == study_target_id, e.status == records.OK, e.role.startswith("baseline:"))
        return tuple(int(row.id) for row in self._rows(select(e.id).where(*good).order_by(e.id)))

    def reference_value(self, study_target_id: int) -> float | None:
        """The metric of uniform FP32 on the search split; None before it has been evaluated."""
        e = tables.Evaluation
        float_one = (e.study_target_id == study_target_id, e.status == records.OK, e.role == "baseline:fp32")
        return next((float(row.metric_value) for row in self._rows(select(e.metric_value).where(*float_one))), None)

    def evaluations(self, study_target_id: int) -> records.EvaluationTable:
        """All evaluations of one target as columns, running and failed ones too.

        Only what judging needs is read of all of them; the other columns are read when they are asked for.
        """
        columns, again = self._judged_columns(study_target_id)
        searched = columns["role"] != records.EXPORT
        own = np.isin(again.evaluation_id, columns["id"][searched])
        reference_ms = _reference(
            columns["baseline_ms"][searched], columns["doubts"][searched], again.baseline_ms[own], again.clean[own]
        )
        latency_ms = scaled(columns["raw_ms"], columns["baseline_ms"], reference_ms)
        details = Details(self._detail_rows, partial(self._detail_column, study_target_id))
        others = {name: DetailColumn(details, name, columns["id"]) for name in DETAILS}
        every: dict[str, Any] = {**columns, **others, "latency_ms": latency_ms}
        return records.EvaluationTable(**every, reference_ms=reference_ms, details=details, again=again)

    @retried
    def _judged_columns(self, study_target_id: int) -> tuple[dict[str, NDArray[Any]], records.RoundTable]:
        with self._reading("read the evaluations") as connection:
            columns = judged_columns(connection, study_target_id)
            return columns, _round_table(connection.execute(_again(study_target_id)).all())

    @retried
    def _detail_rows(self, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        with self._reading("read evaluations") as connection:
            return detail_rows(connection, ids)

    @retried
    def _detail_column(self, study_target_id: int, name: str) -> tuple[Sequence[int], Sequence[Any]]:
        with self._reading("read evaluations") as connection:
            return detail_column(connection, study_target_id, name)

    @retried
    def reference_ms(self, study_target_id: int) -> float | None:
        """What the baseline usually takes on a target, from all clean measurements; None where it has no baseline."""
        with self._reading("read the baselines") as connection:
            return _reference_ms(connection, study_target_id)

    def finals(self, study_target_id: int) -> records.FinalTable:
        """Scores on the final split of those evaluations of one target that have them or failed there, as columns."""
        s, e = tables.Score.__table__, tables.Evaluation
        names = ("evaluation_id", "value", "loss", "loss_low", "loss_high", "samples", "total", "resemblance")
        query = (
            select(*(s.c[name] for name in names), e.notes)
            .join(e, e.id == s.c.evaluation_id)
            .where(e.study_target_id == study_target_id, s.c.split == "final")
            .order_by(s.c.evaluation_id)
        )
        rows = self._rows(query)
        failures = np.array([_final_failure(row.notes) for row in rows], dtype=np.str_)
        return records.FinalTable(**_columns(names, [row[:-1] for row in rows]), failure=failures)

    def assignments(self, study_target_id: int, ids: Sequence[int] | None = None) -> records.Assignments:
        """Evaluation id → assignment for one target, or for a few of it; texts are read now, parsed when asked for."""
        e = tables.Evaluation
        query = select(e.id, cast(e.assignment, Text)).where(e.study_target_id == study_target_id).order_by(e.id)
        if ids is not None:
            query = query.where(e.id.in_(list(ids)))
        return records.Assignments({row[0]: row[1] for row in self._rows(query)})

    def exports(self, study_target_id: int) -> tuple[records.ExportRecord, ...]:
        """What exports built again on one target and went well, oldest first."""
        e = tables.Evaluation.__table__
        names = ("id", "assignment", "raw_ms", "baseline_ms", "doubts", "build_s", "not_obeyed")
        ok = (e.c.study_target_id == study_target_id, e.c.status == records.OK, e.c.role == records.EXPORT)
        level = e.c.engine["optimization_level"].as_integer()
        rows = self._rows(select(*(e.c[name] for name in names), level.label("level")).where(*ok).order_by(e.c.id))
        return tuple(
            records.ExportRecord(**{**row._mapping, "assignment": Assignment.from_json(row.assignment)}) for row in rows
        )

    @retried
    def evaluation(self, study_target_id: int, trial: int) -> records.EvaluationRecord:
        """Everything stored of the evaluation that answers this Optuna trial.

        Raises:
            StudyError: no evaluation answers it; names the trials there are.
        """
        found = self.answer(study_target_id, trial)
        if found is None:
            with self._reading("read a trial") as connection:
                raise StudyError(_unknown_trial(connection, study_target_id, trial))
        return found

    @retried
    def answer(self, study_target_id: int, trial: int) -> records.EvaluationRecord | None:
        """As `evaluation`, and None where no evaluation answers the trial."""
        t = tables.Trial
        with self._reading("read a trial") as connection:
            row = connection.execute(_all(t, t.study_target_id == study_target_id, t.number == trial)).one_or_none()
            if row is None:
                return None
            found = _evaluation(connection, row.evaluation_id)
            return replace(found, asked=_asked(row)) if row.reused else found

    def refused(self, study_target_id: int, asked: Assignment) -> tuple[records.EvaluationRecord, ...]:
        """The refused evaluations of a proposal that was repaired, in order: its own, then those of its repairs."""
        e, t = tables.Evaluation, tables.Trial
        linked = select(t.evaluation_id).where(t.study_target_id == study_target_id)
        query = (
            select(e.id, e.assignment, e.asked_assignment)
            .where(e.study_target_id == study_target_id, e.status == records.FAILED, e.id.not_in(linked))
            .order_by(e.id)
        )
        codes = asked.to_json()
        found = [row.id for row in self._rows(query) if codes in (row.assignment, row.asked_assignment)]
        return tuple(self.load(evaluation_id) for evaluation_id in found)

    @retried
    def find(self, study_target_id: int, digest: str) -> records.EvaluationRecord | None:
        """Everything stored of the evaluation with this digest, running ones too; None when there is none."""
        e = tables.Evaluation
        with self._reading("look an evaluation up") as connection:
            query = select(e.id).where(e.study_target_id == study_target_id, e.digest == digest)
            evaluation_id = connection.scalar(query)
            return None if evaluation_id is None else _evaluation(connection, evaluation_id)

    @retried
    def load(self, evaluation_id: int) -> records.EvaluationRecord:
        """Everything stored of an evaluation by its id, as `evaluations` gives it; KeyError when it is gone."""
        with self._reading("read an evaluation") as connection:
            return _evaluation(connection, evaluation_id)

    def running(self, study_target_id: int, worker: str | None = None) -> tuple[records.RunningRecord, ...]:
        """Evaluations in flight, or left behind by a worker that died; oldest first.

        Args:
            worker: only those that it is at.
        """
        e, lease, trials = tables.Evaluation, tables.Lease, _lowest_trials(study_target_id)
        query = (
            select(e.id, e.digest, trials.c.trial, e.worker, e.takeovers, lease.heartbeat)
            .add_columns(tables.utc_now().label("now"))
            .outerjoin(lease, lease.evaluation_id == e.id)
            .outerjoin(trials, trials.c.evaluation_id == e.id)
            .where(e.study_target_id == study_target_id, e.status == records.RUNNING)
            .where(true() if worker is None else e.worker == worker)
            .order_by(e.id)
        )
        return tuple(_running(row) for row in self._rows(query))

    def rounds_again(self, study_target_id: int) -> records.RoundTable:
        """What was measured again on a target: all rounds but those of the search."""
        return _round_table(self._rows(_again(study_target_id)))

    @retried
    def trial_latencies(self, study_target_id: int) -> dict[int, float]:
        """Optuna trial → latency in ms that counts of the evaluation that answers it, where that has been measured."""
        e, t = tables.Evaluation, tables.Trial
        query = (
            select(t.number, e.id, e.raw_ms, e.baseline_ms, e.doubts)
            .join(e, e.id == t.evaluation_id)
            .where(t.study_target_id == study_target_id, e.raw_ms.is_not(None))
        )
        with self._reading("read latencies") as connection:
            reference_ms = _reference_ms(connection, study_target_id)
            again = _round_table(connection.execute(_again(study_target_id)).all())
            trials, ids, raw_ms, baseline_ms, doubts = number_columns(plain_rows(connection, query), 5)
        found = confirmed(ids.astype(np.int64), baseline_ms, doubts.astype(np.int64), again, reference_ms)
        latency_ms = np.where(np.isnan(found), scaled(raw_ms, baseline_ms, reference_ms), found)
        return dict(zip(trials.astype(np.int64).tolist(), latency_ms.tolist(), strict=True))

    def doubts(self, ids: Sequence[int], reference_ms: float | None) -> dict[int, tuple[str, ...]]:
        """Evaluation id → what is doubtful in the measurement that counts; those of which nothing is are absent.

        Args:
            reference_ms: what the baseline usually takes, which tells whether one beside a candidate ran as usual.
        """
        s, found = tables.Sample, dict[int, tuple[str, ...]]()
        query = (
            select(s.evaluation_id, s.warnings, s.baseline_ms)
            .where(s.evaluation_id.in_(list(ids)), s.role == "candidate")
            .order_by(s.round)
        )
        for number, warnings, baseline_ms in self._rows(query):
            doubt = baseline_doubt(baseline_ms, reference_ms)
            told = (*(warnings or ()), *([doubt] if doubt else []))
            if not told or found.get(number) != ():  # a clean measurement yields to a later clean one alone
                found[number] = told
        return {number: warnings for number, warnings in found.items() if warnings}

    def mismatches(self, ids: Sequence[int]) -> dict[int, tuple[tuple[str, Precision], ...]]:
        """Evaluation id → (group, what it ran in) of the groups that did not run in what was asked, by group."""
        a = tables.Audit
        query = (
            select(a.evaluation_id, a.group, a.got)
            .where(a.evaluation_id.in_(list(ids)), a.got.is_not(None), a.got != a.asked)
            .order_by(a.evaluation_id, a.group)
        )
        found: dict[int, tuple[tuple[str, Precision], ...]] = {}
        for number, group, got in self._rows(query):
            found[number] = (*found.get(number, ()), (group, Precision.of_id(got)))
        return found

    def engines(self, study_target_id: int) -> dict[int, EngineSummary]:
        """Evaluation id → what its engine is made of; those that were not built are absent."""
        e = tables.Evaluation
        query = select(e.id, e.engine).where(e.study_target_id == study_target_id, e.engine.is_not(None))
        return {row[0]: EngineSummary(**row[1]) for row in self._rows(query.order_by(e.id))}

    @retried
    def forecasts(self, target: records.TargetRecord) -> dict[int, Predicted]:
        """Evaluation id → what was predicted of it before it was built.

        Absent are those that the guided sampler did not propose, and repairs: the forecast was of the proposal. Read
        from Optuna's tables without Optuna, which takes a while to import.
        """
        with self._reading("read forecasts") as connection:
            if not inspect(connection).has_table(_ATTRIBUTES.name):
                return {}
            rows: Sequence[Row] = connection.execute(_told(target)).all()
        return {row[0]: Predicted.from_json(json.loads(row[1])) for row in rows}

    def deaths(self, study_target_id: int) -> tuple[records.DeathRecord, ...]:
        """Evaluator processes that ended in the middle of an evaluation and were replaced, in order of evaluations."""
        e, trials = tables.Evaluation, _lowest_trials(study_target_id)
        query = (
            select(e.id, trials.c.trial, e.deaths)
            .outerjoin(trials, trials.c.evaluation_id == e.id)
            .where(e.study_target_id == study_target_id, e.replaced > 0)
            .order_by(e.id)
        )
        rows = self._rows(query)
        return tuple(records.DeathRecord(row.id, row.trial, _failure(**death)) for row in rows for death in row.deaths)

    def profile(self, evaluation_id: int) -> tuple[LayerTime, ...]:
        """What each layer of an evaluation's engine takes, in the order they run; empty where none was stored."""
        p = tables.Profile
        rows = self._rows(_all(p, p.evaluation_id == evaluation_id).order_by(p.position))
        return tuple(LayerTime(row.name, row.kind, row.group, row.moves, row.ms) for row in rows)

    def audits(self, study_target_id: int) -> tuple[tuple[int, AuditRow], ...]:
        """(evaluation id, audit of one group) over every audited evaluation of one target."""
        a, e = tables.Audit.__table__, tables.Evaluation
        query = (
            select(a.c.evaluation_id, a.c["group"], a.c.asked, a.c.got, a.c.kernel, a.c.details)
            .join(e, e.id == a.c.evaluation_id)
            .where(e.study_target_id == study_target_id)
            .order_by(a.c.evaluation_id)
        )
        return tuple((row.evaluation_id, _audit_row(row)) for row in self._rows(query))

    def artifact(self, key: str) -> records.ArtifactRecord | None:
        """The cache entry with this key, say the ranges of a model, data and method; None when there is none."""
        rows = self._rows(_all(tables.Artifact, tables.Artifact.key == key))
        return _artifact(rows[0]) if rows else None

    def artifacts(self) -> tuple[records.ArtifactRecord, ...]:
        """Every artifact the database knows, of all studies, those too whose files are yet to be removed."""
        return tuple(_artifact(row) for row in self._rows(_all(tables.Artifact).order_by(tables.Artifact.digest)))

    @contextmanager
    def _reading(self, action: str) -> Iterator[Connection]:
        try:
            with reported(action, self._url), self._engine.connect() as connection:
                yield connection
        finally:
            if self._closed:  # details of evaluations may be asked for later
                self._engine.dispose()

    @retried
    def _rows(self, query: Query) -> Sequence[Row]:
        with self._reading("read the study") as connection:
            return connection.execute(query).all()

    def _unknown_study(self, name: str) -> str:
        names = [row.name for row in self._rows(select(tables.Study.name).order_by(tables.Study.id))]
        close = difflib.get_close_matches(name, names, cutoff=0.5)
        if close:
            return f"There is no study {name!r} in {self.url}. Did you mean {' or '.join(map(repr, close))}?"
        there = f"It holds {', '.join(map(repr, names[-10:]))}" if names else "It holds no study yet"
        return f"There is no study {name!r} in {self.url}. {there}; --storage names another database."


def _all(table: type[tables.Base], *conditions: Any) -> Query:
    return select(*table.__table__.c).where(*conditions)


def _told(target: records.TargetRecord) -> Query:
    """Evaluation ids, and forecasts as JSON, of the trials that had them made."""
    t, e = tables.Trial, tables.Evaluation
    return (
        select(t.evaluation_id, _ATTRIBUTES.c.value_json)
        .join(e, e.id == t.evaluation_id)
        .join(_STUDIES, _STUDIES.c.study_name == target.optuna_study)
        .join(_TRIALS, and_(_TRIALS.c.study_id == _STUDIES.c.study_id, _TRIALS.c.number == t.number))
        .join(_ATTRIBUTES, and_(_ATTRIBUTES.c.trial_id == _TRIALS.c.trial_id, _ATTRIBUTES.c.key == FORECAST))
        .where(t.study_target_id == target.id, t.reused.is_(False), e.asked_assignment.is_(None))
        .order_by(t.evaluation_id)
    )


def _lowest_trials(study_target_id: int) -> Any:
    t = tables.Trial
    return (
        select(t.evaluation_id, func.min(t.number).label("trial"))
        .where(t.study_target_id == study_target_id)
        .group_by(t.evaluation_id)
        .subquery()
    )


def _again(study_target_id: int) -> Query:
    s, e = tables.Sample, tables.Evaluation
    return (
        select(s.evaluation_id, s.round, s.raw_ms, s.baseline_ms, s.warnings)
        .join(e, e.id == s.evaluation_id)
        .where(e.study_target_id == study_target_id, s.round > 0, s.role == "candidate")
        .order_by(s.evaluation_id, s.round)
    )


def _round_table(rows: Sequence[Row]) -> records.RoundTable:
    ids, numbers, raw, baseline, warnings = zip(*rows, strict=True) if rows else [()] * 5
    clean = np.array([not told for told in warnings], dtype=bool)
    integers = [np.array(column, dtype=np.int64) for column in (ids, numbers)]
    raw_ms, baseline_ms = (np.array(column, dtype=np.float64) for column in (raw, baseline))
    return records.RoundTable(integers[0], integers[1], raw_ms, baseline_ms, clean)


def _reference(
    baseline_ms: NDArray[Any], doubts: NDArray[Any], again_ms: NDArray[Any], again_clean: NDArray[Any]
) -> float | None:
    """What the baseline usually takes, from what was measured once and what was measured again.

    Evaluations that an export made are left out: what a front says would change with every export.
    """
    return reference_of(np.concatenate([baseline_ms, again_ms]), np.concatenate([doubts == 0, again_clean]))


def _reference_ms(connection: Connection, study_target_id: int) -> float | None:
    e = tables.Evaluation
    searched = e.role != records.EXPORT
    known = (e.study_target_id == study_target_id, e.baseline_ms.is_not(None), searched)
    baseline_ms, doubts = number_columns(plain_rows(connection, select(e.baseline_ms, e.doubts).where(*known)), 2)
    again = _round_table(connection.execute(_again(study_target_id).where(searched)).all())
    return _reference(baseline_ms, doubts, again.baseline_ms, again.clean)


def _columns(names: Sequence[str], rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: column_of(name, values) for name, values in zip(names, columns, strict=True)}


def _target(row: Row, provisional: float) -> records.TargetRecord:
    fields = dict(row._mapping)
    description, capability = fields.pop("description"), fields.pop("capability")
    del fields["target_id"]
    known = None if capability is None else Capability.from_json(capability)
    fields |= {"target": Target.from_json(description), "capability": known, "provisional_band": provisional}
    return records.TargetRecord(**fields)


def _group(row: Row) -> records.GroupRecord:
    lists = {name: tuple(getattr(row, name)) for name in ("nodes", "anchors", "shape", "weight_shape")}
    return records.GroupRecord(id=row.group, name=row.name, op=row.op, block=row.block, pinned=row.pinned, **lists)


def _running(row: Row) -> records.RunningRecord:
    age = None if row.heartbeat is None else (row.now - row.heartbeat).total_seconds()
    return records.RunningRecord(row.id, row.digest, row.trial, row.worker, age, row.takeovers)


def _artifact(row: Row) -> records.ArtifactRecord:
    return records.ArtifactRecord(**row._mapping)


def _unknown_trial(connection: Connection, study_target_id: int, trial: int) -> str:
    t = tables.Trial
    query = select(func.min(t.number), func.max(t.number)).where(t.study_target_id == study_target_id)
    span: Row = connection.execute(query).one()
    low, high = span
    if low is None:
        return f"There is no trial {trial}: this study has no trial yet. Start it with `bitfront resume`."
    if low <= trial <= high:
        return f"Trial {trial} was broken off and has no result. The study has trials {low} to {high}; take another."
    return f"There is no trial {trial}. The study has trials {low} to {high}."


def _evaluation(connection: Connection, evaluation_id: int) -> records.EvaluationRecord:
    e, t, s = tables.Evaluation, tables.Trial, tables.Score
    row = connection.execute(_all(e, e.id == evaluation_id)).one_or_none()
    if row is None:
        raise KeyError(evaluation_id)
    trials = connection.scalars(select(t.number).where(t.evaluation_id == evaluation_id).order_by(t.number)).all()
    scores = {r.split: _accuracy(r) for r in connection.execute(_all(s, s.evaluation_id == evaluation_id))}
    reference_ms = None if row.baseline_ms is None else _reference_ms(connection, row.study_target_id)
    rounds, final = _rounds(connection, evaluation_id, reference_ms), scores.get("final")
    return records.EvaluationRecord(
        **{name: getattr(row, name) for name in ("id", "study_target_id", "digest", "status", "role", "worker")},
        **{name: getattr(row, name) for name in ("artifact", "started_at", "finished_at")},
        trial=trials[0] if trials else None,
        trials=tuple(trials),
        asked=_asked(row),
        evaluation=_measured(row, _audit(connection, evaluation_id), rounds, scores.get("search")),
        rounds=rounds,
        final=final if final is not None and final.samples else None,
        final_failure=_final_failure(row.notes),
    )


def _final_failure(notes: Sequence[str] | None) -> str:
    """Why an evaluation could not be scored on the final split; empty where nothing says so."""
    return next((note.removeprefix(records.OF_FINAL) for note in notes or () if note.startswith(records.OF_FINAL)), "")


def _asked(row: Row) -> Assignment | None:
    return None if row.asked_assignment is None else Assignment.from_json(row.asked_assignment)


def _measured(
    row: Row, audit: tuple[AuditRow, ...], rounds: Sequence[records.Round], accuracy: Accuracy | None
) -> Evaluation:
    failure = None
    if row.status == records.FAILED:
        failure = _failure(row.stage, row.kind, row.message, row.log)
    return Evaluation(
        assignment=Assignment.from_json(row.assignment),
        failure=failure,
        audit=audit,
        latency=next((r.latency for r in rounds if r.number == 0), None),
        accuracy=accuracy,
        notes=tuple(note for note in row.notes or () if not note.startswith(records.OF_FINAL)),
        engine=None if row.engine is None else EngineSummary(**row.engine),
        stage_s=row.stage_s or {},
        deaths=tuple(_failure(**death) for death in row.deaths or ()),
        **{name: getattr(row, name) for name in ("size_bytes", "memory_bytes", "build_s", "total_s", "attempts")},
    )


def _failure(stage: str, kind: str, message: str | None, log: str | None) -> Failure:
    return Failure(Stage(stage), FailureKind(kind), message or "", log or "")


def _audit(connection: Connection, evaluation_id: int) -> tuple[AuditRow, ...]:
    a = tables.Audit
    rows = connection.execute(_all(a, a.evaluation_id == evaluation_id).order_by(a.group))
    return tuple(_audit_row(row) for row in rows)


def _audit_row(row: Row) -> AuditRow:
    got = None if row.got is None else Precision.of_id(row.got)
    return AuditRow(row.group, Precision.of_id(row.asked), got, row.kernel, row.details or {})


def _rounds(connection: Connection, evaluation_id: int, reference_ms: float | None) -> tuple[records.Round, ...]:
    s = tables.Sample
    rows = connection.execute(_all(s, s.evaluation_id == evaluation_id).order_by(s.round)).all()
    baselines = {row.round: _floats(row.samples) for row in rows if row.role == "baseline"}
    return tuple(_round(row, baselines.get(row.round), reference_ms) for row in rows if row.role == "candidate")


def _round(row: Row, baseline: NDArray[np.float64] | None, reference_ms: float | None) -> records.Round:
    details, doubt = row.details or {}, baseline_doubt(row.baseline_ms, reference_ms)
    raw_ms, beside = _number(row.raw_ms), _number(row.baseline_ms)
    latency = Latency(
        value_ms=float(scaled(raw_ms, beside, reference_ms)),
        raw_ms=raw_ms,
        spread=_number(row.spread),
        baseline_ms=row.baseline_ms,
        samples_ms=_floats(row.samples),
        baseline_samples_ms=np.empty(0) if baseline is None else baseline,
        warnings=(*(row.warnings or ()), *([doubt] if doubt else [])),
        around_ms=details.get("around_ms", {}),
        conditions=details.get("conditions", {}),
    )
    return records.Round(row.round, latency, row.created_at)


def _accuracy(row: Row) -> Accuracy:
    numbers = {name: _number(getattr(row, name)) for name in ("value", "loss", "loss_low", "loss_high")}
    return Accuracy(
        metric=row.metric,
        samples=row.samples,
        total=row.total,
        scores=_floats(row.scores),
        resemblance=row.resemblance,
        **numbers,
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _floats(blob: bytes) -> NDArray[np.float64]:
    return np.frombuffer(blob, dtype="<f4").astype(np.float64)
