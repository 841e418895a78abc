"""Transactions that a server cuts off are run again and happen once; servers that stay away are said so."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
from sqlalchemy import create_engine, select, text, update

from evaluators.diagnose.group_error import GroupError
from search.errors import RunError, StudyError
from search.values import Precision
from studies.store.database import database, retries, tables
from studies.store.database.database import check_shareable, optuna_storage, parse_url
from studies.store.database.retries import is_repeat, report_errors, retry
from studies.store.records import StoredEvaluation, TargetRecord
from studies.store.store import Store
from tests.support.command_line import environment
from tests.support.forks.processes import popen
from tests.support.paths import ROOT
from tests.support.records import choice_record, file_record
from tests.support.servers.cut_connection import wire_to
from tests.support.servers.databases import PASSWORD, Server, mariadb_server, postgresql_server
from tests.support.study_rows import LAYERS, SERVERS, STUDY, TARGET, assignment, finish, fresh_url, group, measured

pytestmark = pytest.mark.slow

TIMES = ("created_at", "started_at", "finished_at", "heartbeat", "ended_at")


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(request.param, tmp_path)


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def stoppable(request: pytest.FixtureRequest) -> Iterator[Server]:
    with {"postgresql": postgresql_server, "mariadb": mariadb_server}[request.param]() as server:
        yield server


@pytest.fixture
def server(stoppable: Server) -> Server:
    """It runs, with an empty database, whatever the test before did to it."""
    stoppable.start()
    stoppable.database = stoppable.new_database()
    return stoppable


def story(store: Store, step: Callable[[], None]) -> list[Any]:
    """Something of everything that a study writes; what the store said. `step` comes before each of the writes."""
    said: list[Any] = []

    def do(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        step()
        said.append(method(*arguments, **options))
        return said[-1]

    first = TargetRecord(target=TARGET, optuna_study="demo/cpu", details={})
    study = do(store.studies.create, STUDY, groups=[group(0)], files=[file_record("k")], target=first)
    target = do(store.targets.add, study, TARGET, "demo/cpu")
    do(store.spaces.set_choices, target, "s" * 64, [choice_record("g000", Precision.INT8, 0, True, "")])
    do(store.spaces.mark_unbuildable, target, "g000", Precision.INT8)
    do(store.studies.update, study, state="running")
    do(store.targets.settle, target, details={"rebuild": 0.1}, latency_band=0.1)
    do(store.targets.add_details, target, seen=1)
    step()
    worker = store.workers.join(target, host="here", device="CPU", pid=1)
    said.append(worker)
    do(store.workers.set_state, worker, "searching")
    said.append(store.tasks.take(target, "calibration", worker, 60.0))
    do(store.tasks.release, target, "calibration", worker)
    first = do(store.claims.begin, target, assignment(1), assignment(1).digest, worker, 0)
    do(store.claims.record, first, measured(assignment(1)), "e" * 64, worker=worker)
    lost = do(store.claims.begin, target, assignment(2), assignment(2).digest, worker, 1, most=2)
    do(store.claims.abandon, lost)
    again = do(store.claims.begin, target, assignment(2), assignment(2).digest, worker, 2)
    do(store.claims.record, again, measured(assignment(2), audit=()), "f" * 64, worker=worker)
    do(store.trials.link, target, 3, first)
    do(store.claims.note_late, first, worker)
    latency = measured(assignment(1)).latency
    assert latency is not None
    do(store.measurements.add_round, target, {first: latency})
    do(store.engines.set_profile, first, LAYERS)
    row = GroupError("g000", Precision.FP16, 1e-6, 0.0, 60.0, 0.001, 0.99, 0.0, 64)
    do(store.spaces.set_sensitivities, target, [row])
    do(store.files.add, "r" * 64, "ranges", 10, key="ranges of demo")
    do(store.files.release_engines, [again])
    do(store.files.forget, "f" * 64)
    do(store.files.set_inputs, study, [file_record("m")])
    do(store.targets.add_options, target, {"trials": 4})
    do(store.workers.end, worker)
    do(store.workers.end_others, target, "nobody")
    other = do(store.studies.create, STUDY.with_values(name="other"))
    do(store.files.set_inputs, other, [file_record("n")])
    do(store.files.release_study, other)
    do(store.studies.delete, "other")
    return said


def everything(url: str) -> dict[str, Counter[str]]:
    """All rows of our tables without ids, of which a transaction that is rolled back uses some up, and times."""
    engine = create_engine(url)
    found = {}
    with engine.connect() as connection:
        for table in tables.Base.metadata.sorted_tables:
            columns = [column for column in table.c if not column.name.endswith("id") and column.name not in TIMES]
            rows = map(repr, connection.execute(select(*columns)).all())
            found[table.name] = Counter(re.sub(r"[0-9.]+ s later", "later", row) for row in rows)
    engine.dispose()
    return found


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_whatever_is_cut_off_happens_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "abcdef")
    quiet_url = fresh_url("postgresql" if "postgresql" in url else "mariadb", tmp_path)
    with Store.open(quiet_url, create=True) as store:
        quiet = story(store, lambda: None)
    steps = 0
    with wire_to(url) as wire, Store.open(wire.url, create=True) as store:

        def cut() -> None:
            nonlocal steps
            assert wire.cuts == steps, "the step before committed nothing"
            steps += 1
            wire.cut(b"COMMIT", answered=answered)

        cut_off = story(store, cut)
        assert wire.cuts == steps
    assert everything(url) == everything(quiet_url)
    assert [of_no_run(value) for value in cut_off] == [of_no_run(value) for value in quiet]


def of_no_run(value: Any) -> Any:
    """What a method gave, times and ids aside, of which a transaction that is rolled back uses some up."""
    if isinstance(value, StoredEvaluation):
        return value.digest, value.status, value.role, value.worker, value.trials
    is_id = isinstance(value, int) and not isinstance(value, bool)
    return "id" if is_id else re.sub(r"[0-9.]+ s later", "later", value) if isinstance(value, str) else value


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_a_trial_of_optuna_that_is_cut_off_happens_once(url: str, answered: bool) -> None:
    Store.open(url, create=True).close()
    with wire_to(url) as wire:
        study = optuna.create_study(
            storage=optuna_storage(wire.url), study_name="s", directions=["minimize"] * 2, load_if_exists=True
        )
        study.enqueue_trial({"x": 3})
        for word in (b"COMMIT", b"UPDATE trials", b"INSERT INTO trial_params", b"trial_values"):
            wire.cut(word, answered=answered)
            trial = study.ask()
            x = trial.suggest_int("x", 0, 10)
            trial.set_user_attr("seen", x)
            study.tell(trial.number, (x, -x))
            wire.cut(b"", answered=answered, times=0)
        trials = study.get_trials()
        states = optuna.trial.TrialState
        whole = [trial for trial in trials if trial.state == states.COMPLETE]
        assert wire.cuts >= 3
        assert [trial.values for trial in whole] == [[trial.params["x"], -trial.params["x"]] for trial in whole]
        assert len(whole) == 4
        # What was made twice has no parameters, so that nothing of it can be taken for a result.
        assert all(trial.state == states.RUNNING and not trial.params for trial in trials if trial not in whole)
        assert len({trial.number for trial in trials}) == len(trials) <= 6
        storage = study._storage._backend  # type: ignore[attr-defined]
        wire.cut(b"COMMIT", answered=answered)
        optuna.delete_study(study_name="s", storage=storage)
        assert storage.get_all_studies() == []
        storage.remove_session()
        storage.engine.dispose()


def test_a_server_that_restarts_is_waited_for(server: Server) -> None:
    with Store.open(server.url, create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")
        storage = optuna_storage(server.url)
        study = optuna.create_study(storage=storage, study_name="s", directions=["minimize"])
        for number, away in enumerate((server.stop, server.kill)):
            away()
            back = threading.Timer(0.5, server.start)
            back.start()
            finish(store, target, number, number)
            back.join()
            away()
            back = threading.Timer(0.5, server.start)
            back.start()
            study.tell(study.ask(), 1.0)
            back.join()
        assert list(store.evaluations.table(target).status) == ["ok", "ok"]
        assert [trial.state.name for trial in study.get_trials()].count("COMPLETE") == 2
        storage.remove_session()
        storage.engine.dispose()


def test_a_server_that_stays_away_is_said_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_S", 0.5)
    with Store.open(server.url, create=True) as store:
        storage = optuna_storage(server.url)
        study = optuna.create_study(storage=storage, study_name="s", directions=["minimize"])
        trial = study.ask()
        server.stop()
        for action, call in {
            "create the study": lambda: store.studies.create(STUDY),
            "read the study": store.studies.summaries,
            "store a trial": lambda: study.tell(trial, 1.0),
        }.items():
            with pytest.raises(RunError, match=rf"Could not {action} in .*in vain. Try again") as raised:
                call()
            assert PASSWORD not in str(raised.value)
        server.start()
        assert store.studies.summaries() == ()
        study.tell(trial, 1.0)
        storage.remove_session()
        storage.engine.dispose()


def test_a_server_that_is_away_at_the_start_is_said_at_once(server: Server) -> None:
    server.stop()
    with pytest.raises(StudyError, match="Cannot open the database"):
        Store.open(server.url, create=True)


def test_a_server_on_its_way_up_is_waited_for_at_the_start(server: Server) -> None:
    with wire_to(server.url) as wire:
        wire.cut(
            b"", answered=False, times=2
        )  # as a server does that is going down: it takes a connection and drops it
        Store.open(wire.url, create=True).close()
        assert wire.cuts == 2
        for word in (b"version_info", b"alembic_version"):  # what opening Optuna's storage asks for
            wire.cut(word, answered=False)
            database.close_optuna(optuna_storage(wire.url))
        assert wire.cuts == 4


def test_who_is_ending_does_not_wait_for_long(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_S", 1e6)
    monkeypatch.setattr(retries, "CLEAN_UP_S", 0.2)
    with Store.open(server.url, create=True) as store:
        server.stop()
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            with pytest.raises(RunError, match="Could not read the study"):
                store.studies.summaries()


def test_the_victim_of_a_deadlock_runs_again(url: str) -> None:
    with Store.open(url, create=True) as store:
        ids = [store.studies.create(STUDY.with_values(name=name)) for name in "ab"]
        both, tries = threading.Barrier(2), Counter[str]()

        @retry
        def change(name: str, first: int, second: int) -> None:
            tries[name] += 1
            with (
                report_errors("change both", parse_url(url)),
                database.begin_write(store.database.engine) as connection,
            ):
                for step, number in enumerate((first, second)):
                    study = tables.StudyRecord.id == number
                    connection.execute(update(tables.StudyRecord).where(study).values(state=f"of {name}"))
                    if step == 0 and tries[name] == 1:
                        both.wait(300)

        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(change, "x", *ids), pool.submit(change, "y", *reversed(ids))]
            assert [future.result() for future in done] == [None, None]
        assert sum(tries.values()) == 3
        assert len({study.state for study in store.studies.summaries()}) == 1


def test_a_serialization_failure_runs_again(tmp_path: Path) -> None:
    """One that a proxy or a cluster raises, whatever isolation was asked for."""
    url = fresh_url("postgresql", tmp_path)
    with Store.open(url, create=True) as store:
        strict = store.database.engine.execution_options(isolation_level="SERIALIZABLE")
        ids = [store.studies.create(STUDY.with_values(name=name)) for name in "ab"]
        both, tries = threading.Barrier(2), Counter[int]()

        @retry
        def move(mine: int, other: int) -> None:
            """Take over the state of the other, as one does who may not be disturbed."""
            tries[mine] += 1
            with report_errors("move", parse_url(url)), database.begin_write(strict) as connection:
                state = connection.scalar(select(tables.StudyRecord.state).where(tables.StudyRecord.id == other))
                if tries[mine] == 1:
                    both.wait(300)
                connection.execute(
                    update(tables.StudyRecord).where(tables.StudyRecord.id == mine).values(state=f"{state}+")
                )

        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(move, *ids), pool.submit(move, *reversed(ids))]
            assert [future.result() for future in done] == [None, None]
        assert sum(tries.values()) >= 3
        assert sorted(len(study.state) - len(STUDY.state) for study in store.studies.summaries()) == [1, 2]


def test_what_the_method_does_wrong_is_not_run_again(url: str) -> None:
    runs = []

    @retry
    def wrong() -> None:
        runs.append(is_repeat())
        with report_errors("do it", parse_url(url)), database.begin_write(store.database.engine) as connection:
            connection.execute(text("select nothing from nowhere"))

    with Store.open(url, create=True) as store, pytest.raises(RunError, match="Could not do it"):
        wrong()
    assert runs == [False]


STOPPED = """
import sys
from sqlalchemy import update
from studies.store.database import connections, database, tables
connections.HOLD_S = 1
from studies.store.store import Store
with Store.open(sys.argv[1]) as store, database.begin_write(store.database.engine) as connection:
    connection.execute(update(tables.StudyRecord).values(state="mine"))
    print("holds the row", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_is_stopped_in_a_transaction_holds_nobody_up_for_ever(url: str) -> None:
    with Store.open(url, create=True) as store:
        study = store.studies.create(STUDY)
        command = [sys.executable, "-c", STOPPED, url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with popen(command, cwd=ROOT, env=environment(), text=True, **pipes) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "holds the row\n"
            child.send_signal(signal.SIGSTOP)
            try:
                store.studies.update(study, state="ours")
                assert store.studies.load("demo").state == "ours"
            finally:
                child.send_signal(signal.SIGCONT)
                child.stdin.close()
            assert child.wait(300) == 1
        assert store.studies.load("demo").state == "ours"


def test_only_servers_are_shared(url: str, tmp_path: Path) -> None:
    check_shareable(url)
    with pytest.raises(StudyError, match=r"(?s)is an SQLite file.*--storage postgresql\+psycopg://") as raised:
        check_shareable(f"sqlite:///{tmp_path / 'a.db'}")
    assert "docker run" in str(raised.value)
