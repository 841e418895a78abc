"""Optuna trials: the evaluation that answers each, and its forecast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, and_, column, func, inspect, select, table
from sqlalchemy.exc import IntegrityError

from search.errors import StudyError
from search.forecast.forecasts import FORECAST, Predicted
from studies.store import records
from studies.store.database import tables
from studies.store.database.retries import retry
from studies.store.database.transactions import Repository
from studies.store.reading.evaluation_columns import number_columns, plain_rows
from studies.store.reading.evaluation_rows import read_evaluation
from studies.store.records import LostEvaluationError
from studies.store.statements import results, table_rows

Row = Any
Query = Any

# Optuna's tables, as far as they are read here.
_STUDIES = table("studies", column("study_id"), column("study_name"))
_TRIALS = table("trials", column("trial_id"), column("study_id"), column("number"))
_ATTRIBUTES = table("trial_user_attributes", column("trial_id"), column("key"), column("value_json"))


class Trials(Repository):
    """The trials of each target, by their Optuna numbers."""

    @retry
    def load(self, study_target_id: int, trial: int) -> records.StoredEvaluation:
        """Everything stored of the evaluation that answers this Optuna trial.

        Raises:
            StudyError: no evaluation answers it; names the trials there are.
        """
        record = self.find(study_target_id, trial)
        if record is None:
            with self._database.begin_read("read a trial") as connection:
                raise StudyError(_unknown_trial(connection, study_target_id, trial))
        return record

    @retry
    def find(self, study_target_id: int, trial: int) -> records.StoredEvaluation | None:
        """As `evaluation`, and None if no evaluation answers the trial."""
        t = tables.TrialRecord
        with self._database.begin_read("read a trial") as connection:
            query = table_rows.select_all(t, t.study_target_id == study_target_id, t.number == trial)
            row = connection.execute(query).one_or_none()
            if row is None:
                return None
            return read_evaluation(connection, row.evaluation_id)

    @retry
    def link(self, study_target_id: int, trial: int, evaluation_id: int) -> None:
        """Let an evaluation that is there already, perhaps running, answer another Optuna trial too.

        Raises:
            LostEvaluationError: the evaluation is gone, or another one answers the trial; nothing was written.
        """
        try:
            with self._database.begin_write("link a trial") as connection:
                results.link(connection, study_target_id, trial, evaluation_id, reused=True)
        except IntegrityError:
            if self.links(study_target_id, trial).get(trial, (None,))[0] != evaluation_id:
                raise LostEvaluationError(f"evaluation {evaluation_id} cannot answer trial {trial}") from None

    def links(self, study_target_id: int, *trials: int) -> dict[int, tuple[int, str]]:
        """Optuna trial → id and status of the evaluation that answers it, or will; trials without one are absent."""
        t, e = tables.TrialRecord, tables.EvaluationRecord
        query = select(t.number, e.id, e.status).join(e, e.id == t.evaluation_id)
        rows = [
            row
            for chunk in table_rows.chunks(trials)
            for row in self._database.rows(query.where(t.study_target_id == study_target_id, t.number.in_(chunk)))
        ]
        return {row[0]: (row[1], row[2]) for row in rows}

    @retry
    def forecasts(self, target: records.TargetRecord) -> dict[int, Predicted]:
        """Evaluation id → what was predicted of it before it was built.

        Absent are those that the guided sampler did not propose. Read from Optuna's tables without Optuna, which takes
        a while to import.
        """
        with self._database.begin_read("read forecasts") as connection:
            if not inspect(connection).has_table(_ATTRIBUTES.name):
                return {}
            rows: Sequence[Row] = connection.execute(_forecasts_query(target)).all()
        return {row[0]: Predicted.from_json(json.loads(row[1])) for row in rows}

    @retry
    def answers(self, study_target_id: int) -> NDArray[np.int64]:
        """(2, n) Optuna numbers of all trials that have an evaluation, and the ids of these."""
        t = tables.TrialRecord
        query = select(t.number, t.evaluation_id).where(t.study_target_id == study_target_id)
        with self._database.begin_read("read trials") as connection:
            return number_columns(plain_rows(connection, query), 2).astype(np.int64)


def _forecasts_query(target: records.TargetRecord) -> Query:
    """Evaluation ids, and forecasts as JSON, of the trials that had them made."""
    t, e = tables.TrialRecord, tables.EvaluationRecord
    return (
        select(t.evaluation_id, _ATTRIBUTES.c.value_json)
        .join(e, e.id == t.evaluation_id)
        .join(_STUDIES, _STUDIES.c.study_name == target.optuna_study)
        .join(_TRIALS, and_(_TRIALS.c.study_id == _STUDIES.c.study_id, _TRIALS.c.number == t.number))
        .join(_ATTRIBUTES, and_(_ATTRIBUTES.c.trial_id == _TRIALS.c.trial_id, _ATTRIBUTES.c.key == FORECAST))
        .where(t.study_target_id == target.id, t.reused.is_(False))
        .order_by(t.evaluation_id)
    )


def _unknown_trial(connection: Connection, study_target_id: int, trial: int) -> str:
    t = tables.TrialRecord
    query = select(func.min(t.number), func.max(t.number)).where(t.study_target_id == study_target_id)
    span: Row = connection.execute(query).one()
    low, high = span
    if low is None:
        return f"There is no trial {trial}: this study has no trial yet. Start it with `bitfront resume`."
    if low <= trial <= high:
        return f"Trial {trial} was interrupted and has no result. The study has trials {low} to {high}; take another."
    return f"There is no trial {trial}. The study has trials {low} to {high}."
