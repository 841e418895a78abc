"""Rows of Optuna's tables as our storage writes them: many in one statement. Importing this module imports Optuna."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial
from sqlalchemy import delete, func, insert, select

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

Parameter = tuple[str, float, BaseDistribution]  # name, value as stored, distribution


@dataclass
class TrialWrites:
    """What a trial has been given that is not stored yet.

    Attributes:
        again: some of it may be there already, and gives way.
    """

    parameters: list[Parameter] = field(default_factory=list)
    user_attrs: dict[str, Any] = field(default_factory=dict)
    system_attrs: dict[str, Any] = field(default_factory=dict)
    again: bool = True

    def __bool__(self) -> bool:
        return bool(self.parameters or self.user_attrs or self.system_attrs)

    def add(self, other: TrialWrites) -> None:
        """Take what the trial was given later."""
        self.parameters += other.parameters
        self.user_attrs |= other.user_attrs
        self.system_attrs |= other.system_attrs
        self.again |= other.again


def insert_trials(session: Session, study_id: int, templates: Sequence[FrozenTrial]) -> list[tuple[int, int]]:
    """Insert trials with their attributes; number and id of each.

    Raises:
        KeyError: there is no such study.
    """
    # Locked, so that no other process makes a trial of the same number meanwhile.
    models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
    first = session.scalar(select(func.count()).where(models.TrialModel.study_id == study_id)) or 0
    rows: list[Any] = [
        models.TrialModel(study_id=study_id, number=number, state=t.state, datetime_start=t.datetime_start)
        for number, t in enumerate(templates, start=first)
    ]
    session.add_all(rows)
    session.flush()
    for table, attributes in (
        (models.TrialUserAttributeModel, [template.user_attrs for template in templates]),
        (models.TrialSystemAttributeModel, [template.system_attrs for template in templates]),
    ):
        attribute_rows = [
            each for row, attrs in zip(rows, attributes, strict=True) for each in _rows(row.trial_id, attrs)
        ]
        if attribute_rows:
            session.execute(insert(table), attribute_rows)
    return [(row.number, row.trial_id) for row in rows]


def insert_writes(session: Session, trial_id: int, writes: TrialWrites) -> None:
    """Insert the parameters and attributes of a trial."""
    table, parameters = models.TrialParamModel, writes.parameters
    if parameters and writes.again:
        names = [name for name, _, _ in parameters]
        session.execute(delete(table).where(table.trial_id == trial_id, table.param_name.in_(names)))
    if parameters:
        rows = [
            {"trial_id": trial_id, "param_name": name, "param_value": value, "distribution_json": text}
            for name, value, text in ((name, value, distribution_to_json(each)) for name, value, each in parameters)
        ]
        session.execute(insert(table), rows)
    _insert_attributes(session, models.TrialUserAttributeModel, trial_id, writes.user_attrs, again=writes.again)
    _insert_attributes(session, models.TrialSystemAttributeModel, trial_id, writes.system_attrs, again=writes.again)


def insert_values(session: Session, trial_id: int, values: Sequence[float], *, again: bool) -> None:
    """Insert the values of a trial, one for each objective."""
    table = models.TrialValueModel
    if again:
        session.execute(delete(table).where(table.trial_id == trial_id))
    stored = [table.value_to_stored_repr(value) for value in values]
    rows = [
        {"trial_id": trial_id, "objective": place, "value": value, "value_type": kind}
        for place, (value, kind) in enumerate(stored)
    ]
    session.execute(insert(table), rows)


def _insert_attributes(session: Session, table: Any, trial_id: int, attrs: dict[str, Any], *, again: bool) -> None:
    if attrs and again:
        session.execute(delete(table).where(table.trial_id == trial_id, table.key.in_(list(attrs))))
    if attrs:
        session.execute(insert(table), _rows(trial_id, attrs))


def _rows(trial_id: int, attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"trial_id": trial_id, "key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]
