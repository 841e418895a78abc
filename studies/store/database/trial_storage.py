"""Optuna's storage, which repeats interrupted transactions. Importing this module imports Optuna.

Optuna retries only the making of a trial, and ends on any other lost connection. Every method of its storage is one
transaction, or harmless to repeat, so running the method again keeps a trial, a sampler and a study as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from optuna.distributions import BaseDistribution, check_distribution_compatibility, distribution_to_json
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState

from studies.store.database.connections import engine_settings, hold_longer, settle
from studies.store.database.database_url import parse_url
from studies.store.database.retries import repeated, reported, retried

Result = TypeVar("Result")
Parameter = tuple[str, float, BaseDistribution]  # name, value as stored, distribution


class RetriedStorage(RDBStorage):
    """As `RDBStorage`, but a server that restarts, a deadlock or a serialization failure is waited for.

    A trial whose making was cut off may be there twice: once RUNNING without parameters. What is still not possible
    after that is raised as our errors, without passwords.

    Args:
        url: of a database that `Store.open` has opened for writing; Optuna's tables are made where they are missing.
    """

    _together: dict[int, list[Parameter]] | None = None  # of trials, while `together`

    def __init__(self, url: str) -> None:
        self.parsed = parse_url(url)
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

    def _get_trials(self, *args: Any, **kwargs: Any) -> list[FrozenTrial]:
        """As Optuna's, which makes all that it reads into objects within one transaction: 15 s for 10,000 trials."""
        session = self.scoped_session()
        try:
            hold_longer(session.connection())
            return super()._get_trials(*args, **kwargs)
        finally:
            session.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store the parameters that a trial is given meanwhile in one transaction, at the end; none after an exception.

        A transaction for each, as Optuna has it, takes about a millisecond, and four round trips to a server.
        """
        self._together = {}
        try:
            yield
            given = self._together
        finally:
            self._together = None
        for trial_id, parameters in given.items():
            self.set_trial_params(trial_id, parameters)

    def _set_trial_param(
        self, trial_id: int, name: str, value: float, distribution: BaseDistribution, previous: BaseDistribution | None
    ) -> None:
        if self._together is None or previous is None:  # the first trial's are compared with what others stored
            super()._set_trial_param(trial_id, name, value, distribution, previous)
            return
        check_distribution_compatibility(previous, distribution)
        self._together.setdefault(trial_id, []).append((name, value, distribution))

    def set_trial_params(self, trial_id: int, parameters: Sequence[Parameter]) -> None:
        """Give a trial several parameters that it has not yet, all in one transaction.

        Raises:
            UpdateFinishedTrialError: it is finished.
        """
        session = self.scoped_session()
        try:
            trial = models.TrialModel.find_or_raise_by_id(trial_id, session)
            self.check_trial_is_updatable(trial_id, cast(TrialState, trial.state))
            # Run again, they may have been stored just before the connection was lost.
            there = {each.param_name for each in trial.params} if repeated() else set()
            session.add_all(
                models.TrialParamModel(
                    trial_id=trial_id,
                    param_name=name,
                    param_value=value,
                    distribution_json=distribution_to_json(distribution),
                )
                for name, value, distribution in parameters
                if name not in there
            )
            session.commit()
        except BaseException:
            session.rollback()
            raise
        finally:
            session.close()

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """As Optuna's; telling again what was told just before a connection was lost changes nothing."""
        try:
            return super().set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            if repeated() and self.get_trial(trial_id).state == state:
                return True
            raise

    def delete_study(self, study_id: int) -> None:
        """As Optuna's; deleting again what was deleted just before a connection was lost changes nothing."""
        try:
            super().delete_study(study_id)
        except KeyError:
            if not repeated():
                raise


def _again(method: Callable[..., Result]) -> Callable[..., Result]:
    def run(self: RetriedStorage, *args: Any, **kwargs: Any) -> Result:
        with reported("store a trial", self.parsed, StorageInternalError):
            return method(self, *args, **kwargs)

    return retried(run)


# Beside the public methods, those that Optuna's own cache calls.
_METHODS = {name for name in vars(RDBStorage) if name in vars(BaseStorage) and not name.startswith("_")}
_METHODS |= {"_create_new_trial", "_set_trial_param", "_get_trials", "_get_best_trial_id", "set_trial_params"}
for _name in sorted(_METHODS - {"remove_session"}):
    setattr(RetriedStorage, _name, _again(getattr(RetriedStorage, _name)))
