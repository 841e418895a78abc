"""What a trial is given together is stored in one transaction, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState
from sqlalchemy import event

from studies.store.database.database import optuna_storage
from studies.store.database.trial_storage import RetriedStorage
from studies.store.store import Store
from tests.support.servers.cut_connection import wire_to
from tests.support.study_rows import SERVERS, fresh_url

NAMES = [f"g{number:03}" for number in range(12)]


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path}/s.db" if request.param == "sqlite" else fresh_url(request.param, tmp_path)
    Store.open(found, create=True).close()
    return found


@pytest.fixture
def storage(url: str) -> Iterator[RetriedStorage]:
    with opened(url) as made:
        yield made


@contextmanager
def opened(url: str) -> Iterator[RetriedStorage]:
    made = optuna_storage(url)
    assert isinstance(made, RetriedStorage)
    with closing(made):
        yield made


def begun(storage: RetriedStorage) -> tuple[optuna.Study, optuna.Trial]:
    """A study whose first trial has told Optuna of the parameters, and the second one."""
    study = optuna.create_study(storage=storage, study_name="s", directions=["minimize"] * 2)
    suggest(study.ask())
    return study, study.ask()


def suggest(trial: optuna.Trial) -> dict[str, int]:
    return {name: trial.suggest_int(name, 0, 2) for name in NAMES}


def suggest_together(storage: RetriedStorage, trial: optuna.Trial, then: Callable[[], object]) -> None:
    with storage.together():
        suggest(trial)
        then()


def test_parameters_given_together_are_stored_in_one_transaction(storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    commits: list[object] = []
    event.listen(storage.engine, "commit", commits.append)
    with storage.together():
        codes = suggest(trial)
        assert study.get_trials()[1].params == {}
    writes = len(commits)
    assert study.get_trials()[1].params == codes == trial.params
    suggest(study.ask())
    assert writes < len(NAMES) < len(commits) - writes


def test_what_a_trial_is_given_together_with_an_error_is_not_stored(storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    with pytest.raises(ZeroDivisionError):
        suggest_together(storage, trial, lambda: 1 / 0)
    assert study.get_trials()[1].params == {}
    trial = study.ask()
    suggest(trial)
    assert len(study.get_trials()[2].params) == len(NAMES)  # at once again


def test_a_trial_that_was_finished_meanwhile_is_given_nothing(storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    with pytest.raises(UpdateFinishedTrialError):
        suggest_together(storage, trial, lambda: study.tell(trial.number, state=TrialState.FAIL))
    assert study.get_trials()[1].params == {}


def test_another_range_than_the_study_s_is_refused_at_once(storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    with storage.together(), pytest.raises(ValueError, match="distribution"):
        trial.suggest_float(NAMES[0], 0, 1)
    assert study.get_trials()[1].params == {}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_parameters_are_stored_once_when_the_transaction_is_cut_off(
    server: str, answered: bool, tmp_path: Path
) -> None:
    url = fresh_url(server, tmp_path)
    Store.open(url, create=True).close()
    with wire_to(url) as wire, opened(wire.url) as storage:
        study, trial = begun(storage)
        for word in (b"INSERT INTO trial_params", b"COMMIT"):
            cuts = wire.cuts
            with storage.together():
                codes = suggest(trial)
                wire.cut(word, answered=answered)
            assert wire.cuts == cuts + 1
            assert study.get_trials()[trial.number].params == codes
            trial = study.ask()
