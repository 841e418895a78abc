"""Optuna's storage, with its transactions run again when the server cut them off. Importing this imports Optuna.

Optuna retries only the making of a trial, and ends on any other lost connection. Every method of its storage is one
transaction, or harmless to repeat, so running the method again keeps a trial, a sampler and a study as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

from studies.connections import engine_settings, hold_longer, settle
from studies.database_url import parse_url
from studies.retries import repeated, reported, retried

Result = TypeVar("Result")


class RetriedStorage(RDBStorage):
    """As `RDBStorage`, but a server that restarts, a deadlock or a serialization failure is waited for.

    A trial whose making was cut off may be there twice: once RUNNING without parameters. What is still not possible
    after that is raised as our errors, without passwords.

    Args:
        url: of a database that `Store.open` has opened for writing; Optuna's tables are made where they are missing.
    """

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
_METHODS |= {"_create_new_trial", "_set_trial_param", "_get_trials", "_get_best_trial_id"}
for _name in sorted(_METHODS - {"remove_session"}):
    setattr(RetriedStorage, _name, _again(getattr(RetriedStorage, _name)))
