"""Optuna's storage, which repeats interrupted transactions. Importing this module imports Optuna.

Optuna retries only the making of a trial, and ends on any other lost connection. Every method of its storage is one
transaction, or harmless to repeat, so running the method again keeps a trial, a sampler and a study as they are.

Optuna reads a trial from six tables whenever it looks at it, and writes each parameter and attribute in a transaction
of its own. Here a trial that this process asked for is known until it is finished, and what it is given together is
written at once. The tables stay Optuna's, so that its own tools work on a study. A `BaseStorage` over one table of our
own was tried: a trial of 40 parameters took 7 statements in place of 14 and a third of the time to read, in a quarter
of the lines, but `optuna.load_study` and `optuna-dashboard` could open no study by its URL any more.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import delete, insert, or_, select

from studies.store.database.connections import engine_settings, hold_longer, settle
from studies.store.database.database_url import parse_url
from studies.store.database.retries import is_repeat, report_errors, retry
from studies.store.database.trial_rows import TrialWrites, insert_trials, insert_values, insert_writes

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

Result = TypeVar("Result")
_MOST_UNFINISHED = 500  # trials in one list of a statement


class RetriedStorage(RDBStorage):
    """As `RDBStorage`, but a server that restarts, a deadlock or a serialization failure is waited for.

    A trial whose making was cut off may be there twice: once RUNNING without parameters. What is still not possible
    after that is raised as our errors, without passwords.

    A trial that this process made or took from the queue is read from memory for as long as its state in the database
    is the one known here: only the process that asked for a trial gives it parameters and attributes.

    Args:
        url: of a database that `Store.open` has opened for writing; Optuna's tables are made where they are missing.
    """

    def __init__(self, url: str) -> None:
        self.parsed = parse_url(url)
        # Trials that wait, and those of this process until `_get_trials` has given them as finished; study of each.
        self._own: dict[int, FrozenTrial] = {}
        self._study_of: dict[int, int] = {}
        self._ranges: dict[int, dict[str, BaseDistribution]] = {}  # study → parameters of its trials that were read
        self._unwritten: dict[int, TrialWrites] | None = None  # while `together`
        self._marks: Mapping[str, Any] = {}
        text = self.parsed.render_as_string(hide_password=False)
        # Optuna reads braces as fields of a template.
        try:
            super().__init__(text.replace("{", "{{").replace("}", "}}"), engine_kwargs=engine_settings(self.parsed))
        except BaseException:
            self.close()
            raise
        self.scoped_session.remove()
        self.engine.dispose()  # connections made before the settings
        settle(self.engine, write=True)

    def close(self) -> None:
        """Close all connections."""
        if hasattr(self, "engine"):
            if hasattr(self, "scoped_session"):
                self.scoped_session.remove()
            self.engine.dispose()

    @contextmanager
    def together(self, marks: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
        """Write what a trial of this process is given meanwhile in one transaction: with its state, else at the end.

        After an exception nothing is written of what was not yet.

        Args:
            marks: user attributes that a trial has from the transaction on that makes it or takes it from the queue.

        Raises:
            UpdateFinishedTrialError: another process has finished such a trial; nothing of it was written.
        """
        self._unwritten, self._marks = {}, marks
        try:
            yield
            for trial_id, writes in self._unwritten.items():
                if writes:
                    self._write(trial_id, writes)
        except BaseException:
            for trial_id in self._unwritten:
                self._forget(trial_id)  # what is known of it was not written
            raise
        finally:
            self._unwritten, self._marks = None, {}

    # -- reading -----------------------------------------------------------------------------------------------------

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """As Optuna's; one of this process from memory."""
        own = self._own.get(trial_id)
        return super().get_trial(trial_id) if own is None else _copy_trial(own)

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        """As Optuna's; trials of this process are read from memory where their states are as they are known here."""
        later = trial_id_greater_than
        unfinished = {trial_id for trial_id in included_trial_ids if trial_id <= later}
        first = study_id not in self._ranges
        if states is not None or first or len(unfinished) > _MOST_UNFINISHED:
            return self._read_trials(study_id, states, included_trial_ids, later)
        own, others = self._own_trials(study_id, unfinished, later)
        if not others:
            return own
        if not own:
            return self._read_trials(study_id, None, unfinished, later)
        read = self._read_trials(study_id, None, others, max(others))  # later ones come with the next reading
        return sorted([*own, *(t for t in read if t._trial_id in others)], key=lambda trial: trial._trial_id)

    def _own_trials(self, study_id: int, unfinished: set[int], later: int) -> tuple[list[FrozenTrial], set[int]]:
        """Split trials with these ids and all later ones: those that memory has as they are, and ids of the others."""
        trial = models.TrialModel
        wanted = or_(trial.trial_id > later, trial.trial_id.in_(unfinished)) if unfinished else trial.trial_id > later
        query = select(trial.trial_id, trial.state).where(trial.study_id == study_id, wanted)
        session = self.scoped_session()
        try:
            hold_longer(session.connection())
            rows = session.execute(query.order_by(trial.trial_id)).all()
        finally:
            session.close()
        known, others = list[FrozenTrial](), set[int]()
        for trial_id, state in rows:
            own = self._own.get(trial_id)
            if own is None or own.state != state:
                self._forget(trial_id)  # another process closed it, or took it from the queue
                others.add(trial_id)
                continue
            known.append(_copy_trial(own))
            if state.is_finished():
                self._forget(trial_id)  # Optuna keeps finished trials itself
        return known, others

    def _read_trials(self, study_id: int, *rest: Any) -> list[FrozenTrial]:
        """Optuna makes all that it reads into objects within one transaction: 15 s for 10,000 trials."""
        session = self.scoped_session()
        try:
            hold_longer(session.connection())
            trials = super()._get_trials(study_id, *rest)
        finally:
            session.close()
        ranges = self._ranges.setdefault(study_id, {})
        for trial in trials:
            if not trial.distributions.keys() <= ranges.keys():
                ranges.update({name: each for name, each in trial.distributions.items() if name not in ranges})
            if trial.state == TrialState.WAITING:
                self._keep(study_id, trial)
        return trials

    # -- writing -----------------------------------------------------------------------------------------------------

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        default = create_trial(state=TrialState.RUNNING, user_attrs=dict(self._marks))
        template = default if template_trial is None else template_trial
        if template.state.is_finished() or template.distributions or template.intermediate_values:
            return super()._create_new_trial(study_id, template)
        return self.create_trials(study_id, [template])[0]

    def create_trials(self, study_id: int, templates: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Make trials that wait or run, in one transaction.

        Args:
            templates: with attributes alone.
        """
        with self._transaction() as session:
            numbers = insert_trials(session, study_id, templates)
        made = [_copy_trial(template) for template in templates]
        for trial, (number, trial_id) in zip(made, numbers, strict=True):
            trial.number, trial._trial_id = number, trial_id
            self._keep(study_id, trial)
        return made

    def _keep(self, study_id: int, trial: FrozenTrial) -> None:
        own = _copy_trial(trial)
        own.user_attrs, own.system_attrs = _as_read(own.user_attrs), _as_read(own.system_attrs)
        self._own[own._trial_id], self._study_of[own._trial_id] = own, study_id

    def _known(self, trial_id: int) -> FrozenTrial | None:
        """One of this process; where trials are written together also another process's, as it is now."""
        if trial_id not in self._own and self._unwritten is not None:
            trial = super().get_trial(trial_id)
            if not trial.state.is_finished():
                self._own[trial_id] = _copy_trial(trial)
        return self._own.get(trial_id)

    def _forget(self, trial_id: int) -> None:
        self._own.pop(trial_id, None)
        self._study_of.pop(trial_id, None)

    def _set_trial_param(
        self, trial_id: int, name: str, value: float, distribution: BaseDistribution, previous: BaseDistribution | None
    ) -> None:
        own, study_id = self._own.get(trial_id), self._study_of.get(trial_id, -1)
        if own is None or study_id not in self._ranges:
            super()._set_trial_param(trial_id, name, value, distribution, previous)
            return
        known = self._ranges[study_id].setdefault(name, distribution)
        check_distribution_compatibility(previous or known, distribution)
        self._give(trial_id, TrialWrites([(name, value, distribution)], again=False))
        own.params[name] = distribution.to_external_repr(value)
        own.distributions[name] = distribution

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As Optuna's; see `together`."""
        own = self._known(trial_id)
        if own is None:
            super().set_trial_user_attr(trial_id, key, value)
            return
        self._give(trial_id, TrialWrites(user_attrs={key: value}, again=key in own.user_attrs))
        own.user_attrs |= _as_read({key: value})

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As Optuna's; see `together`."""
        own = self._known(trial_id)
        if own is None:
            super().set_trial_system_attr(trial_id, key, value)
            return
        self._give(trial_id, TrialWrites(system_attrs={key: value}, again=key in own.system_attrs))
        own.system_attrs |= _as_read({key: value})

    def _give(self, trial_id: int, writes: TrialWrites) -> None:
        """Write something of a trial now, or with everything else of it at the end of `together`."""
        if self._unwritten is None:
            self._write(trial_id, writes)
            return
        self._unwritten.setdefault(trial_id, TrialWrites(again=False)).add(writes)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """As Optuna's; telling again what was told just before a connection was lost changes nothing."""
        own, taken = self._own.get(trial_id), state == TrialState.RUNNING
        unwritten = {} if self._unwritten is None else self._unwritten
        writes = unwritten.get(trial_id) or TrialWrites(again=own is None)
        if taken:
            writes.again |= own is not None and not self._marks.keys().isdisjoint(own.user_attrs)
            writes.user_attrs |= self._marks
        try:
            changed = self._write(trial_id, writes, state, values)
        except UpdateFinishedTrialError:
            self._forget(trial_id)
            if is_repeat() and super().get_trial(trial_id).state == state:
                return True
            raise
        unwritten.pop(trial_id, None)
        if changed and own is not None:
            own.state = state
            own.user_attrs |= _as_read(writes.user_attrs)
            own.datetime_start = datetime.now() if taken else own.datetime_start
            if state.is_finished():
                own.values, own.datetime_complete = values, datetime.now()
        return changed

    def _write(
        self, trial_id: int, writes: TrialWrites, state: TrialState | None = None, values: Sequence[float] | None = None
    ) -> bool:
        """Store all this in one transaction; False, with nothing stored, for a trial that is not in the queue any more.

        Raises:
            UpdateFinishedTrialError: the trial is finished.
        """
        with self._transaction() as session:
            trial = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
            self.check_trial_is_updatable(trial_id, cast(TrialState, trial.state))
            if state == TrialState.RUNNING and trial.state != TrialState.WAITING:
                return False
            writes.again |= is_repeat()
            insert_writes(session, trial_id, writes)
            if values is not None:
                insert_values(session, trial_id, values, again=writes.again)
            if state is not None:
                trial.state = state
                trial.datetime_start = datetime.now() if state == TrialState.RUNNING else trial.datetime_start
                trial.datetime_complete = datetime.now() if state.is_finished() else trial.datetime_complete
            return True

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        """One transaction."""
        session = self.scoped_session()
        try:
            if self.engine.dialect.name == "sqlite":  # which locks no row, and no file before something is written
                session.connection().exec_driver_sql("BEGIN IMMEDIATE")
            yield session
            session.commit()
        except BaseException:
            session.rollback()
            raise
        finally:
            session.close()

    # -- studies -----------------------------------------------------------------------------------------------------

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        """As Optuna's, but with the indices that a process which was killed while it made the tables did not make.

        Without the unique index of names every run would make another study of the same name.
        """
        for index in {index for table in models.BaseModel.metadata.tables.values() for index in table.indexes}:
            index.create(self.engine, checkfirst=True)
        return super().create_new_study(directions, study_name)

    # -- attributes of studies ---------------------------------------------------------------------------------------

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """As Optuna's, which looks for the study first."""
        table = models.StudySystemAttributeModel
        session = self.scoped_session()
        try:
            rows = session.execute(select(table.key, table.value_json).where(table.study_id == study_id)).all()
        finally:
            session.close()
        return {key: json.loads(text) for key, text in rows} or super().get_study_system_attrs(study_id)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """As Optuna's."""
        self.set_study_system_attrs(study_id, {key: value})

    def set_study_system_attrs(self, study_id: int, attributes: Mapping[str, Any]) -> None:
        """Set several attributes in one transaction."""
        table = models.StudySystemAttributeModel
        rows = [
            {"study_id": study_id, "key": key, "value_json": json.dumps(value)} for key, value in attributes.items()
        ]
        with self._transaction() as session:
            if self.engine.dialect.name != "sqlite":
                # Locked, because another process that inserts the same attributes at once would fail.
                models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
            session.execute(delete(table).where(table.study_id == study_id, table.key.in_(list(attributes))))
            if rows:  # else it would insert one of defaults
                session.execute(insert(table), rows)

    def delete_study(self, study_id: int) -> None:
        """As Optuna's; deleting again what was deleted just before a connection was lost changes nothing."""
        try:
            super().delete_study(study_id)
        except KeyError:
            if not is_repeat():
                raise


def _copy_trial(trial: FrozenTrial) -> FrozenTrial:
    """With parameters and attributes of its own."""
    own = copy.copy(trial)
    own.params, own.distributions = dict(trial.params), dict(trial.distributions)
    own.user_attrs, own.system_attrs = dict(trial.user_attrs), dict(trial.system_attrs)
    return own


def _as_read(attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes as they come back from the database, where a tuple is a list."""
    read: dict[str, Any] = json.loads(json.dumps(attributes))
    return read


def _again(method: Callable[..., Result]) -> Callable[..., Result]:
    def run(self: RetriedStorage, *args: Any, **kwargs: Any) -> Result:
        with report_errors("store a trial", self.parsed, StorageInternalError):
            return method(self, *args, **kwargs)

    return retry(run)


# Beside the public methods, those that Optuna's own cache calls.
_METHODS = {name for name in vars(RDBStorage) if name in vars(BaseStorage) and not name.startswith("_")}
_METHODS |= {"_create_new_trial", "_set_trial_param", "_get_trials", "_get_best_trial_id", "_write"}
_METHODS |= {"create_trials", "set_study_system_attrs"}
for _name in sorted(_METHODS - {"remove_session"}):
    setattr(RetriedStorage, _name, _again(getattr(RetriedStorage, _name)))
