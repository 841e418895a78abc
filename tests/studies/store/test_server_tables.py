"""Tables on servers: made and upgraded by many processes at once, completed after one that died, those of others."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages._rdb import models
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url

from search.errors import StudyError
from studies.store.database import database, tables
from studies.store.database.database import check_usable, close_optuna, optuna_storage
from studies.store.store import Store
from tests.support import toy_migration
from tests.support.command_line import environment
from tests.support.docs_pages import blocks
from tests.support.forks.processes import popen
from tests.support.paths import ROOT
from tests.support.servers.databases import mariadb_url
from tests.support.study_rows import KINDS, SERVERS, STUDY, TARGET, finish, fresh_url

pytestmark = pytest.mark.slow

PROCESSES = 3
OPEN = """
import sys
from contextlib import suppress
from tests.support import toy_migration
from studies.store.store import Store, optuna_storage, close_optuna
if sys.argv[2] == "open":
    toy_migration.install()
else:
    import optuna, studies.store.database.trial_storage
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "dashboard":
    with suppress(Exception):  # it knows of no others
        optuna.storages.RDBStorage(sys.argv[1]).remove_session()
    sys.exit()
with Store.open(sys.argv[1], create=sys.argv[2] == "create") as store:
    if sys.argv[2] == "create":
        close_optuna(optuna_storage(sys.argv[1]))
    print(len(store.studies.summaries()))
"""


def at_once(url: str, *what: str) -> list[str]:
    """What processes say that open a database at the same moment, each to do its own."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [sys.executable, "-c", OPEN, url]
    children = [popen([*command, one], cwd=ROOT, env=environment(), text=True, **pipes) for one in what]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        return [child.communicate(timeout=400)[0].strip() for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found


def shape(url: str) -> dict[str, set[tuple[str, bool]]]:
    """Our tables with their columns and whether each may be empty."""
    engine = create_engine(url)
    found = inspect(engine)
    ours = [name for name in found.get_table_names() if name.startswith("bf_")]
    columns = {name: {(c["name"], bool(c["nullable"])) for c in found.get_columns(name)} for name in ours}
    engine.dispose()
    return columns


def put_study(url: str) -> None:
    """A study of the present version with two evaluations."""
    with Store.open(url, create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")
        finish(store, target, 0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_many_processes_make_the_tables_at_once(kind: str, tmp_path: Path) -> None:
    url = fresh_url(kind, tmp_path)
    assert at_once(url, *["create"] * PROCESSES, "dashboard")[:-1] == ["0"] * PROCESSES
    assert rows(url, "select version from bf_schema") == [(tables.VERSION,)]
    assert len(rows(url, "select * from alembic_version")) == len(rows(url, "select * from version_info")) == 1


def test_a_new_sqlite_file_that_another_is_writing_is_waited_for(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.3, other.rollback)
    done.start()
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        assert store.studies.summaries() == ()
    done.join()
    other.close()


@pytest.mark.parametrize("kind", SERVERS)
def test_many_processes_upgrade_older_tables_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_url(kind, tmp_path)
    put_study(url)
    before = shape(url)
    assert at_once(url, *["open"] * PROCESSES) == ["1"] * PROCESSES
    assert rows(url, "select version from bf_schema") == [(toy_migration.NEXT,)]
    before["bf_study"].add(("toy", True))
    assert shape(url) == before
    monkeypatch.setattr(database, "VERSION", toy_migration.NEXT)
    with Store.open(url) as store:
        (study,) = store.studies.summaries()
        (target,) = store.targets.of_study(study.id)
        there = len(store.evaluations.table(target.id))
        finish(store, target.id, 99, 1, 2)
        assert len(store.evaluations.table(target.id)) == there + 1
        store.studies.delete(study.name)
        assert rows(url, "select * from bf_sample") == []


@pytest.mark.parametrize("kind", SERVERS)
def test_a_reader_upgrades_older_tables_and_writes_nothing_else(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_url(kind, tmp_path)
    put_study(url)
    monkeypatch.setitem(database.STEPS, tables.VERSION, toy_migration.add_toy)
    monkeypatch.setattr(database, "VERSION", toy_migration.NEXT)
    with Store.open(url, write=False) as store:
        assert len(store.studies.summaries()) == 1
        with pytest.raises(StudyError, match=r"Could not create the study.*a user who may write"):
            store.studies.create(STUDY)
    assert rows(url, "select version from bf_schema") == [(toy_migration.NEXT,)]


@pytest.mark.parametrize("kind", SERVERS)
def test_looking_at_a_server_makes_nothing_there(kind: str, tmp_path: Path) -> None:
    url = fresh_url(kind, tmp_path)
    with pytest.raises(StudyError, match="is empty"):
        Store.open(url, write=False)
    assert check_usable(url) is False
    assert shape(url) == {}
    Store.open(url, create=True).close()
    assert check_usable(url) is True


def test_tables_half_made_by_a_process_that_died_are_completed() -> None:
    """MySQL and MariaDB commit every table by itself."""
    url = mariadb_url()
    engine = create_engine(url)
    some = tables.Base.metadata.sorted_tables[:7]
    tables.Base.metadata.create_all(engine, tables=some)
    engine.dispose()
    with pytest.raises(StudyError, match="is empty"):
        Store.open(url, write=False)
    with Store.open(url, create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")
        finish(store, target, 0, 1)
    assert rows(url, "select version from bf_schema") == [(tables.VERSION,)]


@pytest.mark.parametrize("kind", KINDS)
def test_tables_that_optuna_is_making_are_waited_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """optuna-dashboard knows nothing of our lock, and MySQL commits its tables one by one."""
    monkeypatch.setattr(database, "OTHERS_S", 90.0)
    url = fresh_url(kind, tmp_path)
    patient = {"timeout": 60} if kind == "sqlite" else {}
    engine, metadata = create_engine(url, connect_args=patient), models.BaseModel.metadata
    metadata.create_all(engine, tables=metadata.sorted_tables[:4])
    done = threading.Timer(0.5, metadata.create_all, [engine])
    done.start()
    Store.open(url, create=True).close()
    done.join()
    engine.dispose()
    assert rows(url, "select version from bf_schema") == [(tables.VERSION,)]


def test_the_names_of_optunas_tables_are_its_own() -> None:
    assert frozenset(models.BaseModel.metadata.tables) | {"alembic_version"} == database.ALL_OPTUNA_TABLES


@pytest.mark.parametrize("kind", SERVERS)
def test_databases_of_others_on_servers_are_told_apart(kind: str, tmp_path: Path) -> None:
    url = fresh_url(kind, tmp_path)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE customers (id INTEGER)"))
    engine.dispose()
    for create in (False, True):
        with pytest.raises(StudyError, match="is not bitfront's: it holds customers"):
            Store.open(url, create=create)
    assert shape(url) == {}


@pytest.mark.parametrize(("kind", "block"), [("postgresql", 0), ("mariadb", 1)])
def test_a_user_as_the_documentation_makes_one_is_enough(kind: str, block: int, tmp_path: Path) -> None:
    admin, name = fresh_url(kind, tmp_path), f"plain{os.getpid()}"
    said = blocks(ROOT / "docs/servers.md", "sql")[block]
    engine = create_engine(admin, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in filter(str.strip, said.split(";")):
            connection.execute(text(statement.replace("bitfront", name)))
    engine.dispose()
    url = make_url(admin).set(username=name, password="a password", database=name).render_as_string(False)
    with Store.open(url, create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")
        finish(store, target, 0, 1)
        close_optuna(optuna_storage(url))
        assert list(store.evaluations.table(target).status) == ["ok"]


def test_mariadb_may_be_called_by_its_name() -> None:
    url = mariadb_url().replace("mysql+", "mariadb+")
    with Store.open(url, create=True) as store:
        storage = optuna_storage(url)
        study = optuna.create_study(storage=storage, study_name="s")
        study.tell(study.ask(), 1.0)
        storage.remove_session()
        storage.engine.dispose()
        assert store.url.startswith("mysql+pymysql://")
