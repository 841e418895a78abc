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
from search.values import Precision
from studies.store.database import database, tables
from studies.store.database.database import artifact_folder, close_optuna, default_url, hide_password
from studies.store.database.database_url import parse_url
from studies.store.database.transactions import Database
from studies.store.store import Store, optuna_storage
from tests.support import toy_migration
from tests.support.command_line import run_sql
from tests.support.paths import DATA, ROOT
from tests.support.records import study_record
from tests.support.study_rows import LAYERS, assignment

STORED = DATA / f"schema_v{tables.VERSION}.db"
STUDY = study_record("demo")
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
    store.studies.create(STUDY)
    store.close()
    assert (tmp_path / "bitfront.db").is_file()


def test_opening_twice_keeps_what_is_there(tmp_path: Path) -> None:
    for _ in range(2):
        with Store.open(url_of(tmp_path / "a.db"), create=True) as store:
            if not store.studies.summaries():
                store.studies.create(STUDY)
    with Store.open(url_of(tmp_path / "a.db"), write=False) as store:
        assert [study.name for study in store.studies.summaries()] == ["demo"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="not a folder that can be written"):
        Store.open(url_of(tmp_path / "no" / "a.db"), create=True)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:a.db?uri=true"])
def test_a_database_that_is_no_plain_file_is_refused(url: str) -> None:
    with pytest.raises(StudyError, match="is not a plain file"):
        Store.open(url, create=True)


@pytest.mark.parametrize("create", [False, True])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, create: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, and long enough for a header")
    with pytest.raises(StudyError, match="not an SQLite database"):
        Store.open(url_of(path), create=create)
    with pytest.raises(StudyError, match="expected a readable file"):
        Store.open(url_of(tmp_path), create=create)


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"SQLite format 3\0" + b"\7" * 5000)
    with pytest.raises(StudyError, match=r"Cannot open the database .* Restore a copy of it"):
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
        with pytest.raises(StudyError, match=r"expected version .* or older, got .*To upgrade bitfront, "):
            Store.open(url_of(path), create=write, write=write)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process knows one version of the tables more."""
    monkeypatch.setitem(database.STEPS, tables.VERSION, toy_migration.add_toy)
    monkeypatch.setattr(database, "VERSION", toy_migration.NEXT)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A stored database of the present version, see `data/make_schema.py`, with Optuna's tables."""
    path = tmp_path / "old.db"
    shutil.copy(STORED, path)
    close_optuna(optuna_storage(url_of(path)))
    return path


def test_the_stored_database_is_read_with_its_rows(old: Path, tmp_path: Path) -> None:
    with Store.open(url_of(old)) as store:
        study = store.studies.load("demo")
        (target,) = store.targets.of_study(study.id)
        assert [group.id for group in store.studies.groups(study.id)] == ["g000", "g001"]
        assert list(store.evaluations.table(target.id).status) == ["ok", "failed", "running"]
        good = store.trials.load(target.id, 0)
        assert good.evaluation.assignment == assignment(0, 2)
        assert [row.got for row in good.evaluation.audit] == [Precision.FP32, Precision.INT8]
        assert good.evaluation.latency is not None
        assert list(good.evaluation.latency.samples_ms) == [1.25, 1.5]
        assert store.engines.profile(good.id) == LAYERS
        failure = store.trials.load(target.id, 1).evaluation.failure
        assert failure is not None
        assert failure.message == "no such kernel"
        assert store.spaces.sensitivities(target.id) == {("g000", Precision.INT8): 1e-3}
        (worker,) = store.workers.of_target(target.id)
        assert (worker.host, worker.trial) == ("here", 2)


def test_the_stored_database_has_the_tables_of_its_version(old: Path, tmp_path: Path) -> None:
    """Else the tables were changed without a step; before the first release, make the stored database again."""
    Store.open(url_of(tmp_path / "new.db"), create=True).close()
    assert columns(old) == columns(tmp_path / "new.db"), "run tests/data/make_schema.py, or add a step of migration"
    assert indexes(old) == indexes(tmp_path / "new.db")


@pytest.mark.parametrize("write", [False, True])
def test_an_older_database_is_upgraded_with_its_rows(old: Path, newer: None, write: bool) -> None:
    before = columns(old)
    optunas = run_sql("SELECT version_num FROM alembic_version", path=old)
    with Store.open(url_of(old), write=write) as store:
        assert [study.name for study in store.studies.summaries()] == ["demo"]
    before["bf_study"].add(("toy", "INTEGER", True))
    assert columns(old) == before
    assert run_sql("SELECT version FROM bf_schema", path=old) == [(toy_migration.NEXT,)]
    assert optunas
    assert run_sql("SELECT version_num FROM alembic_version", path=old) == optunas


def test_an_upgrade_that_fails_changes_nothing(old: Path, newer: None) -> None:
    execute(old, "CREATE TABLE bf_gone (id INTEGER)")
    before = columns(old)
    with pytest.raises(Exception, match="no such column"):
        Store.open(url_of(old))
    assert columns(old) == before
    assert run_sql("SELECT version FROM bf_schema", path=old) == [(tables.VERSION,)]


def test_every_version_before_the_present_one_has_a_step() -> None:
    assert sorted(database.STEPS) == list(range(1, tables.VERSION))


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
from tests.support import toy_migration
from search.errors import StudyError
from studies.store.store import Store
if os.getuid() == 0:  # root may write anything; imports come first, for others may not read root's Python
    os.setgid({nobody})
    os.setuid({nobody})
if {newer}:
    toy_migration.install()
for write in (True, False):
    try:
        print([study.name for study in Store.open(sys.argv[1], write=write).studies.summaries()])
    except StudyError as error:
        print("read-only" in str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("newer", "read"), [(False, "['demo']"), (True, "True")])
def test_a_read_only_database(shared_folder: Path, newer: bool, read: str) -> None:
    path = shared_folder / "a.db"
    with Store.open(url_of(path), create=True) as store:
        store.studies.create(STUDY)
    path.chmod(0o444)
    shared_folder.chmod(0o555)
    command = [sys.executable, "-c", AS_NOBODY.format(nobody=NOBODY, newer=newer), url_of(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert (done.stderr, done.stdout.split()) == ("", ["True", read])


def test_a_store_for_reading_cannot_write(tmp_path: Path) -> None:
    url = url_of(tmp_path / "a.db")
    Store.open(url, create=True).close()
    with Store.open(url, write=False) as store, pytest.raises(StudyError, match="create the study"):
        store.studies.create(STUDY)


def test_connection_settings_hold_for_ours_and_optunas(tmp_path: Path) -> None:
    url = url_of(tmp_path / "a.db")
    store = Store.open(url, create=True)
    storage = optuna_storage(url)
    for engine in (store.database.engine, storage.engine):
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
    assert f"raw_ms {number}" in text["bf_evaluation"]
    assert ("log LONGTEXT" in text["bf_evaluation"]) == (dialect.name == "mysql")


def test_a_link_to_a_database_is_the_database(tmp_path: Path) -> None:
    """Locks and engines lie beside the file, so every way to it has to lead to the same place."""
    (tmp_path / "real.db").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/link.db").symlink_to("../real.db")
    real, link = (parse_url(f"sqlite:///{tmp_path / name}") for name in ("real.db", "other/link.db"))
    assert link == real


def test_what_cannot_be_imported_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "find_damage", lambda _: "every value needs the module that is missing")
    with Store.open(url_of(tmp_path / "a.db"), create=True) as store:
        store.studies.create(STUDY)
        with pytest.raises(ModuleNotFoundError, match="missing"), store.database.begin_read("read the study"):
            raise ModuleNotFoundError("missing")
