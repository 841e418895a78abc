"""Opening: whose database it is, what is refused, old tables, connection settings, URLs without passwords."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateTable

from search.errors import StudyError
from search.values import Assignment, Precision
from stored import LAYERS, count
from studies import tables
from studies.database import artifact_folder, default_url, hide_password
from studies.records import Counts, SensitivityRecord, Taken
from studies.store import NewStudy, Store, optuna_storage

ROOT = Path(__file__).parent.parent
SCHEMA_V1 = Path(__file__).parent / "data" / "schema_v1.db"
SCHEMA_V2 = Path(__file__).parent / "data" / "schema_v2.db"
SCHEMA_V3 = Path(__file__).parent / "data" / "schema_v3.db"
SCHEMA_V4 = Path(__file__).parent / "data" / "schema_v4.db"
STUDY = NewStudy("demo", "model.onnx", "a" * 64, {}, {}, {}, {}, {})
NOBODY = 65534


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def execute(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def columns(path: Path) -> dict[str, set[tuple[str, str, bool]]]:
    engine = create_engine(url_of(path))
    found = inspect(engine)
    ours = [name for name in found.get_table_names() if name.startswith("bf_")]
    shape = {name: {(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(name)} for name in ours}
    engine.dispose()
    return shape


def indexes(path: Path) -> set[tuple[str, tuple[str | None, ...]]]:
    engine = create_engine(url_of(path))
    found = inspect(engine)
    ours = [name for name in found.get_table_names() if name.startswith("bf_")]
    there = {(str(i["name"]), tuple(i["column_names"])) for name in ours for i in found.get_indexes(name)}
    engine.dispose()
    return there


def test_reading_never_creates_a_database(tmp_path: Path) -> None:
    for write in (False, True):
        with pytest.raises(StudyError, match=r"There is no database at .*missing\.db"):
            Store.open(url_of(tmp_path / "missing.db"), write=write)
    assert list(tmp_path.iterdir()) == []


def test_the_default_is_a_file_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.open(default_url(), create=True)
    monkeypatch.chdir("/")
    store.create_study(STUDY)
    store.close()
    assert (tmp_path / "bitfront.db").is_file()


def test_opening_twice_keeps_what_is_there(tmp_path: Path) -> None:
    for _ in range(2):
        with Store.open(url_of(tmp_path / "a.db"), create=True) as store:
            if not store.studies():
                store.create_study(STUDY)
    with Store.open(url_of(tmp_path / "a.db"), write=False) as store:
        assert [study.name for study in store.studies()] == ["demo"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no folder that can be written"):
        Store.open(url_of(tmp_path / "no" / "a.db"), create=True)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:a.db?uri=true"])
def test_a_database_that_is_no_plain_file_is_refused(url: str) -> None:
    with pytest.raises(StudyError, match="is no plain file"):
        Store.open(url, create=True)


@pytest.mark.parametrize("create", [False, True])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, create: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, and long enough for a header")
    with pytest.raises(StudyError, match="no SQLite database"):
        Store.open(url_of(path), create=create)
    with pytest.raises(StudyError, match="expected a readable file"):
        Store.open(url_of(tmp_path), create=create)


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"SQLite format 3\0" + b"\7" * 5000)
    with pytest.raises(StudyError, match="Cannot open the database"):
        Store.open(url_of(path), write=False)


def test_databases_of_others_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    execute(tmp_path / "other.db", "CREATE TABLE customers (id INTEGER)")
    optuna_storage(url_of(tmp_path / "optuna.db"))
    for name, words in {
        "empty.db": "is empty",
        "other.db": "is not bitfront's: it holds customers",
        "optuna.db": "holds Optuna studies, none of bitfront",
    }.items():
        with pytest.raises(StudyError, match=words):
            Store.open(url_of(tmp_path / name), write=False)


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Store.open(url_of(path), create=True).close()
    execute(path, f"UPDATE bf_schema SET version = {tables.VERSION + 1}")
    for write in (False, True):
        with pytest.raises(StudyError, match=r"Upgrade bitfront: `git pull` in its clone, then `pip install"):
            Store.open(url_of(path), create=write, write=write)


@pytest.mark.parametrize("write", [False, True])
def test_an_old_database_is_upgraded_with_its_rows(tmp_path: Path, write: bool) -> None:
    path = tmp_path / "old.db"
    shutil.copy(SCHEMA_V1, path)
    with Store.open(url_of(path), write=write) as store:
        study = store.study("old")
        (target,) = store.targets(study.id)
        table = store.evaluations(target.id)
        assert (study.state, study.config, [g.id for g in store.groups(study.id)]) == (
            "finished",
            {"trials": 2},
            ["g000"],
        )
        assert store.edges(study.id) == ()
        assert (list(table.status), list(table.memory_bytes)) == (["ok", "failed"], [-1, -1])
        good = store.evaluation(target.id, 0)
        assert good.evaluation.latency is not None
        assert good.evaluation.latency.warnings == ()
        assert (good.evaluation.latency.value_ms, list(good.evaluation.latency.samples_ms)) == (1.5, [1.25, 1.5])
        assert [row.got for row in good.evaluation.audit] == [Precision.INT8]
        assert store.evaluation(target.id, 1).evaluation.failure is not None
    Store.open(url_of(tmp_path / "new.db"), create=True).close()
    assert columns(path) == columns(tmp_path / "new.db")


def test_version_2_is_upgraded_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copy(SCHEMA_V2, path)
    with Store.open(url_of(path)) as store:
        (target,) = store.targets(store.study("old").id)
        record = store.evaluation(target.id, 0)
        latency = record.evaluation.latency
        assert latency is not None
        assert latency.warnings == ("spread 12.0% of the median, more than 2%",)
        assert (latency.around_ms, latency.conditions) == ({}, {})
        assert (record.evaluation.engine, record.evaluation.memory_bytes) == (None, 4096)
        assert [row.details for row in record.evaluation.audit] == [{}]
        assert record.asked == Assignment({"g000": Precision.FP16})
        assert [choice.buildable for choice in store.choices(target.id)] == [True, True]
        store.mark_unbuildable(target.id, "g000", Precision.INT8)
        store.set_profile(record.id, LAYERS)
        assert store.unbuildable(target.id) == {("g000", Precision.INT8)}
        assert store.profile(record.id) == LAYERS
        assert store.delete_study("old") == {"c" * 64}
        assert count(store, tables.Profile) == 0
    Store.open(url_of(tmp_path / "new.db"), create=True).close()
    assert columns(path) == columns(tmp_path / "new.db")


def test_version_3_is_upgraded_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copy(SCHEMA_V3, path)
    with Store.open(url_of(path)) as store:
        (target,) = store.targets(store.study("old").id)
        record = store.evaluation(target.id, 0)
        assert record.evaluation.engine is not None
        assert (record.evaluation.engine.moves, [layer.ms for layer in store.profile(record.id)]) == (1, [0.75, 0.25])
        assert store.unbuildable(target.id) == {("g000", Precision.INT8)}
        assert store.sensitivities(target.id) == {}
        row = SensitivityRecord("g000", Precision.FP16, 1e-6, 0.0, 60.0, 0.001, 0.99, 0.0, 64)
        store.set_sensitivities(target.id, [row])
        assert store.sensitivity_rows(target.id) == (row,)
        store.delete_study("old")
        assert count(store, tables.Sensitivity) == 0
    Store.open(url_of(tmp_path / "new.db"), create=True).close()
    assert columns(path) == columns(tmp_path / "new.db")


def test_version_4_is_upgraded_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copy(SCHEMA_V4, path)
    with Store.open(url_of(path)) as store:
        (target,) = store.targets(store.study("old").id)
        assert (store.counts(target.id), len(store.sensitivity_rows(target.id))) == (Counts(1, 1), 1)
        (running,) = store.running(target.id)
        assert (running.worker, running.trial, running.takeovers) == ("pid-1", 1, 0)
        name = store.join_worker(target.id, host="here", device="CPU", pid=1)
        assert store.take_task(target.id, "band", name, 60)
        assert store.take_over(target.id, name, 60) == Taken(running.id, "pid-1", 1)
        (worker,) = store.workers(target.id)
        assert (worker.name, worker.evaluations, worker.trial) == (name, 0, 1)
        assert store.delete_study("old") == {"c" * 64}
        assert [count(store, table) for table in (tables.Worker, tables.Task)] == [0, 0]
    Store.open(url_of(tmp_path / "new.db"), create=True).close()
    assert columns(path) == columns(tmp_path / "new.db")
    assert indexes(path) == indexes(tmp_path / "new.db")


def test_an_upgrade_leaves_the_tables_of_optuna_alone(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copy(SCHEMA_V1, path)
    optuna_storage(url_of(path))
    connection = sqlite3.connect(path)
    before = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    Store.open(url_of(path)).close()
    assert before
    assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == before
    assert connection.execute("SELECT version FROM bf_schema").fetchall() == [(tables.VERSION,)]
    connection.close()


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copy(SCHEMA_V1, path)
    execute(path, "ALTER TABLE bf_sample RENAME TO gone")  # the last step fails
    before = columns(path)
    with pytest.raises(Exception, match="bf_sample"):
        Store.open(url_of(path))
    assert columns(path) == before


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that an unprivileged child can reach; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


AS_NOBODY = """
import os, sys
import sqlalchemy.dialects.sqlite
import studies.migrations
from search.errors import StudyError
from studies.store import Store
if os.getuid() == 0:  # root may write anything; imports come first, for others may not read root's Python
    os.setgid({nobody})
    os.setuid({nobody})
for write in (True, False):
    try:
        print([study.name for study in Store.open(sys.argv[1], write=write).studies()])
    except StudyError as error:
        print("read-only" in str(error))
"""


@pytest.mark.parametrize(("upgraded", "read"), [(True, "['old']"), (False, "True")])
def test_a_read_only_database(shared_folder: Path, upgraded: bool, read: str) -> None:
    path = shared_folder / "a.db"
    shutil.copy(SCHEMA_V1, path)
    if upgraded:
        Store.open(url_of(path)).close()
    path.chmod(0o444)
    shared_folder.chmod(0o555)
    command = [sys.executable, "-c", AS_NOBODY.format(nobody=NOBODY), url_of(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.stdout.split()) == ("", ["True", read])


def test_a_store_for_reading_cannot_write(tmp_path: Path) -> None:
    url = url_of(tmp_path / "a.db")
    Store.open(url, create=True).close()
    with Store.open(url, write=False) as store, pytest.raises(StudyError, match="create the study"):
        store.create_study(STUDY)


def test_connection_settings_hold_for_ours_and_optunas(tmp_path: Path) -> None:
    url = url_of(tmp_path / "a.db")
    store = Store.open(url, create=True)
    storage = optuna_storage(url)
    for engine in (store._engine, storage.engine):
        with engine.connect() as connection:
            names = ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
            assert [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names] == ["wal", 1, 30000, 1]
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/studies",
        "postgresql+psycopg://me@127.0.0.1:1/studies?password=s3cret",
        "mysql+pymysql://me:s3cret@127.0.0.1:1/studies",
        "nosuchdatabase://me:s3cret@host/studies",
        "postgresql://me:s3cret@host:port/studies",
        "me:s3cret@host/studies",
    ],
)
def test_passwords_never_reach_a_message(url: str) -> None:
    with pytest.raises(StudyError) as raised:
        Store.open(url, write=False)
    assert "s3cret" not in str(raised.value)
    assert "s3cret" not in repr(raised.value.__cause__)


def test_hide_password() -> None:
    assert hide_password("postgresql://me:s3cret@db:5/x?sslpassword=t") == "postgresql://me:***@db:5/x?sslpassword=***"


def test_artifacts_lie_beside_an_sqlite_file(tmp_path: Path) -> None:
    assert artifact_folder(url_of(tmp_path / "a.db")) == tmp_path / "a.db.artifacts"
    assert artifact_folder("postgresql://me@db/x", tmp_path) == tmp_path
    with pytest.raises(StudyError, match="need a folder of their own"):
        artifact_folder("postgresql://me:s3cret@db/x")


@pytest.mark.parametrize(
    ("dialect", "blob", "number"),
    [
        (mysql.dialect(), "BLOB(4294967295)", "DOUBLE"),
        (postgresql.dialect(), "BYTEA", "DOUBLE PRECISION"),
        (sqlite.dialect(), "BLOB", "DOUBLE"),
    ],
)
def test_the_tables_fit_every_database(dialect: Dialect, blob: str, number: str) -> None:
    text = {t.name: str(CreateTable(t).compile(dialect=dialect)) for t in tables.Base.metadata.sorted_tables}
    assert all(name.startswith("bf_") for name in text)
    assert f"scores {blob} NOT NULL" in text["bf_score"]
    assert f"latency_ms {number}" in text["bf_evaluation"]
    assert ("log LONGTEXT" in text["bf_evaluation"]) == (dialect.name == "mysql")
