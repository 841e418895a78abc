"""Optuna's trials beside our rows: what one is given together is stored in one transaction, whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
from tests.support.study_rows import SERVERS, SQLITE_ALONE, finish, fresh_url

NAMES = [f"g{number:03}" for number in range(12)]


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


def seen_by_another(url: str, number: int) -> optuna.trial.FrozenTrial:
    """A trial as another process reads it."""
    with opened(url) as storage:
        return optuna.load_study(study_name="s", storage=storage).get_trials()[number]


@pytest.mark.slow
def test_optuna_lives_in_the_same_database(store: Store, target: int, url: str) -> None:
    storage = optuna_storage(url)
    study = optuna.create_study(study_name="demo/cpu", storage=storage, directions=["minimize", "minimize"])
    trial = study.ask({"g000": optuna.distributions.IntDistribution(0, 2)})
    finish(store, target, trial.number, trial.params["g000"])
    study.tell(trial, (1.5, 0.25))
    optuna.delete_study(study_name="demo/cpu", storage=storage)
    storage.remove_session()
    storage.engine.dispose()
    assert store.trials.load(target, 0).status == "ok"


def test_what_a_trial_is_given_together_is_stored_in_one_transaction(url: str, storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    commits: list[object] = []
    event.listen(storage.engine, "commit", commits.append)
    with storage.together():
        codes = suggest(trial)
        trial.set_user_attr("mix", "all int8")
        trial.set_constraint("latency", -1.0)
        assert seen_by_another(url, 1).params == {}
        commits.clear()  # of what was read
    assert len(commits) == 1
    for seen in (seen_by_another(url, 1), study.get_trials()[1]):
        assert seen.params == codes == trial.params
        assert (seen.user_attrs, seen.constraints) == ({"mix": "all int8"}, {"latency": -1.0})
    commits.clear()
    suggest(study.ask())
    assert len(commits) > len(NAMES)


def test_a_trial_is_told_in_one_transaction_with_what_it_is_given_meanwhile(url: str, storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    suggest(trial)
    trial.set_user_attr("again", 1)
    commits: list[object] = []
    event.listen(storage.engine, "commit", commits.append)
    with storage.together():
        trial.set_user_attr("again", 2)
        trial.set_user_attr("measured", [1.0, 2.0])
        study.tell(trial.number, (1.0, math.inf))
    assert len(commits) == 1
    for seen in (seen_by_another(url, 1), study.get_trials()[1]):
        assert (seen.state, seen.values) == (TrialState.COMPLETE, [1.0, math.inf])
        assert seen.user_attrs == {"again": 2, "measured": [1.0, 2.0]}
        assert seen.datetime_complete is not None


def test_a_trial_that_two_processes_tell_is_told_by_the_first(url: str, storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    suggest_together(storage, trial, lambda: None)
    with opened(url) as other:
        loaded = optuna.load_study(study_name="s", storage=other)

        def tell_later(same: optuna.Trial) -> None:
            with other.together():
                for constraint, value in (("latency", -1.0), ("loss", 2.0)):
                    same.set_constraint(constraint, value)
                same.set_user_attr("measured", [3.0])
                with storage.together():
                    trial.set_user_attr("measured", [1.0])
                    study.tell(trial.number, (1.0, 2.0))
                loaded.tell(same.number, (3.0, 4.0))

        with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
            tell_later(optuna.Trial(loaded, trial._trial_id))
        late = loaded.ask()
        with storage.together():
            same = optuna.Trial(study, late._trial_id)
            for constraint, value in (("latency", -1.0), ("loss", 2.0)):
                same.set_constraint(constraint, value)
            study.tell(same.number, (5.0, 6.0))
    first, second = (seen_by_another(url, number) for number in (1, 2))
    assert (first.values, first.user_attrs, first.constraints) == ([1.0, 2.0], {"measured": [1.0]}, {})
    assert (second.values, second.constraints) == ([5.0, 6.0], {"latency": -1.0, "loss": 2.0})


def test_two_processes_may_give_a_study_the_same_attributes_at_once(url: str, storage: RetriedStorage) -> None:
    study, _ = begun(storage)
    same = {"names": ["latency", "loss"], "note": "the same"}
    with opened(url) as other, ThreadPoolExecutor(1) as second:
        late: list[Future[None]] = []

        def begin_late(_: object) -> None:
            if not late:
                late.append(second.submit(other.set_study_system_attrs, study._study_id, same))
                wait(late, timeout=0.5)  # until it cannot go on before this one is stored

        event.listen(storage.engine, "commit", begin_late)
        storage.set_study_system_attrs(study._study_id, same)
        late[0].result(60)
    with opened(url) as third:
        seen = third.get_study_system_attrs(study._study_id)
    assert {name: seen[name] for name in same} == same


def test_a_trial_has_its_marks_from_the_transaction_that_makes_it(url: str, storage: RetriedStorage) -> None:
    study, _ = begun(storage)
    study.enqueue_trial(dict.fromkeys(NAMES, 1), user_attrs={"retry": 1})
    for number, attributes in ((2, {"retry": 1, "worker": "w"}), (3, {"worker": "w"})):
        with storage.together({"worker": "w"}):
            assert study.ask().user_attrs == attributes
            seen = seen_by_another(url, number)  # as it is left by a process that is killed here
            assert (seen.state, seen.user_attrs) == (TrialState.RUNNING, attributes)


def test_what_a_trial_is_given_together_with_an_error_is_not_stored(url: str, storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    with pytest.raises(ZeroDivisionError):
        suggest_together(storage, trial, lambda: 1 / 0)
    assert seen_by_another(url, 1).params == study.get_trials()[1].params == {}
    trial = study.ask()
    suggest(trial)
    assert len(study.get_trials()[2].params) == len(NAMES)  # at once again


def test_a_trial_that_another_process_finished_meanwhile_is_given_nothing(url: str, storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    with opened(url) as other:
        others = optuna.load_study(study_name="s", storage=other)
        with pytest.raises(UpdateFinishedTrialError):
            suggest_together(storage, trial, lambda: others.tell(trial.number, state=TrialState.FAIL))
    for seen in (seen_by_another(url, 1), study.get_trials()[1]):
        assert (seen.state, seen.params) == (TrialState.FAIL, {})
    with pytest.raises(ValueError, match="FAIL"):
        study.tell(trial.number, (1.0, 1.0))


def test_a_trial_that_another_process_took_from_the_queue_is_not_taken(url: str, storage: RetriedStorage) -> None:
    study, _ = begun(storage)
    for code in range(3):
        study.enqueue_trial(dict.fromkeys(NAMES, code))
    assert [trial.state for trial in study.get_trials()[2:]] == [TrialState.WAITING] * 3
    with opened(url) as other:
        taken = optuna.load_study(study_name="s", storage=other).ask()
        assert suggest(taken) == dict.fromkeys(NAMES, 0)
        mine = study.ask()
        assert (mine.number, suggest(mine)) == (3, dict.fromkeys(NAMES, 1))
        assert study.get_trials()[2].params == taken.params
        optuna.load_study(study_name="s", storage=other).tell(taken.number, (2.0, 3.0))
    assert [trial.values for trial in study.get_trials()[2:4]] == [[2.0, 3.0], None]


@SQLITE_ALONE
def test_the_trials_of_this_process_are_not_read_again(storage: RetriedStorage) -> None:
    study, trial = begun(storage)
    suggest(trial)
    study.tell(0, (1.0, 1.0))
    assert [each.values for each in study.get_trials()] == [[1.0, 1.0], None]
    statements: list[str] = []
    event.listen(storage.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert study.get_trials()[1].params == trial.params
    assert len([text for text in statements if text.startswith("SELECT")]) == 1


@SQLITE_ALONE
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


def test_tables_that_a_killed_process_made_without_their_indices_get_them(url: str, storage: RetriedStorage) -> None:
    names = optuna.storages._rdb.models.StudyModel.__table__.indexes
    for index in names:
        index.drop(storage.engine)
    for _ in range(2):
        with opened(url) as again:
            optuna.create_study(storage=again, study_name="s", directions=["minimize"], load_if_exists=True)
    assert [study.study_name for study in optuna.get_all_study_summaries(storage=storage)] == ["s"]
