"""Artifacts that nothing needs any more: what is cut off is finished later, and nobody loses what is in use."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import update

from search.errors import ArtifactError
from studies.artifacts.folder import STALE_S, Artifacts
from studies.artifacts.leftovers import clear, drop, kept_engine
from studies.store.database import column_types, database, tables
from studies.store.store import LostEvaluationError, Store
from tests.support.command_line import child, environment, write_inputs
from tests.support.forks.processes import run_python
from tests.support.study_rows import STUDY, TARGET, assignment, finish, measured

pytestmark = pytest.mark.slow


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path / "engines")


def built(folder: Path, content: bytes = b"the same engine") -> Path:
    path = folder / f"{threading.get_ident()}.engine"
    path.write_bytes(content)
    return path


def names(artifacts: Artifacts) -> set[str]:
    return {path.name for path in artifacts.folder.iterdir()}


def known(store: Store) -> dict[str, str]:
    return {record.digest: record.kind for record in store.files.all()}


def other_target(store: Store) -> int:
    return store.targets.add(store.studies.create(STUDY.with_values(name="two")), TARGET, "two/cpu")


def test_an_engine_that_another_study_lets_go_of_meanwhile_is_put_again(
    store: Store, target: int, artifacts: Artifacts, tmp_path: Path
) -> None:
    with kept_engine(store, artifacts, built(tmp_path)) as digest:
        first = finish(store, target, 0, 1, artifact=digest)
    two, chosen = other_target(store), assignment(1)
    number = store.claims.begin(two, chosen, chosen.digest, "w2", 0)
    with kept_engine(store, artifacts, built(tmp_path)) as digest:
        drop(store, artifacts, store.files.release_engines([first]))
        assert names(artifacts) == set()
        store.claims.record(number, measured(chosen), digest, worker="w2")
    assert names(artifacts) == {digest}
    assert known(store) == {digest: "engine"}
    assert list(tmp_path.glob("*.engine")) == []
    drop(store, artifacts, [str(digest)])  # it is in use
    assert names(artifacts) == {digest}


def test_an_engine_that_nobody_needs_any_more_once_it_is_recorded_is_not_put_again(
    store: Store, target: int, artifacts: Artifacts, tmp_path: Path
) -> None:
    """Another worker of the study prunes just then."""
    with kept_engine(store, artifacts, built(tmp_path)) as digest:
        drop(store, artifacts, store.files.release_engines([finish(store, target, 0, 1, artifact=digest)]))
    assert (names(artifacts), known(store)) == (set(), {})


def test_what_is_not_recorded_goes_at_once_or_when_it_is_old(
    store: Store, target: int, artifacts: Artifacts, tmp_path: Path
) -> None:
    number = finish(store, target, 0, 1)
    with pytest.raises(LostEvaluationError), kept_engine(store, artifacts, built(tmp_path)):
        store.claims.record(number, measured(assignment(1)), "d" * 64, worker="late")
    assert (names(artifacts), known(store)) == (set(), {})
    with pytest.raises(KeyboardInterrupt), kept_engine(store, artifacts, built(tmp_path)):
        raise KeyboardInterrupt
    assert (names(artifacts), known(store)) == (set(), {})
    store.files.add(artifacts.put_bytes(b"by a process that was killed then", "engine"), "engine", 1)
    clear(store, artifacts, own=True)
    assert len(names(artifacts)) == 1, "somebody may be about to record it"
    with database.begin_write(store.database.engine) as connection:
        connection.execute(update(tables.ArtifactRecord).values(created_at=column_types.utc_ago(2 * STALE_S)))
    store.files.add("c" * 64, "ranges", 1, key="for the next study of this model")
    clear(store, artifacts, own=True)
    assert (names(artifacts), known(store)) == (set(), {"c" * 64: "ranges"})


def test_a_file_that_cannot_be_removed_is_removed_later(
    store: Store, target: int, artifacts: Artifacts, tmp_path: Path
) -> None:
    with kept_engine(store, artifacts, built(tmp_path)) as digest:
        number = finish(store, target, 0, 1, artifact=digest)
    away = Artifacts(tmp_path / "elsewhere")  # another study of this database keeps its engines there
    path = artifacts.path(str(digest))
    path.unlink()
    path.mkdir()  # which no unlink removes
    with pytest.raises(ArtifactError, match="Could not remove artifact"):
        drop(store, artifacts, store.files.release_engines([number]))
    assert known(store) == {digest: "unused engine"}
    path.rmdir()
    path.write_bytes(b"the same engine")
    clear(store, away, own=False)
    assert known(store) == {digest: "unused engine"}
    clear(store, artifacts, own=False)
    assert (names(artifacts), known(store)) == (set(), {})


def test_only_a_folder_of_our_own_is_cleared_of_what_is_not_known(store: Store, artifacts: Artifacts) -> None:
    young, old = (artifacts.put_bytes(content, "engine") for content in (b"young", b"old"))
    temporary = artifacts.folder / ".tmp-1"
    temporary.touch()
    for path in (artifacts.path(old), temporary):
        os.utime(path, (1, 1))
    clear(store, artifacts, own=False)
    assert names(artifacts) == {young, old}, "it may be another database's"
    clear(store, artifacts, own=True)
    assert names(artifacts) == {young}


KILLED = """
import os, signal
from studies.artifacts import folder as artifacts; from bitfront.cli import main as cli
artifacts.Artifacts.remove = lambda self, digest: os.kill(os.getpid(), signal.SIGKILL)
cli.main()
"""


def test_a_deletion_that_is_killed_is_finished_by_deleting_again(tmp_path: Path) -> None:
    write_inputs(tmp_path / "in")
    made = child(
        "search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 2, "--keep-engines", "all",
        cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    command = [sys.executable, "-c", KILLED, "delete", "s", "--yes"]
    killed = run_python(command, cwd=tmp_path, env=environment())
    assert killed.returncode == -9
    engines = tmp_path / "bitfront.db.artifacts"
    assert len([path for path in engines.iterdir() if len(path.name) == 64]) >= 2
    again = child("delete", "s", "--yes", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert [path for path in engines.iterdir() if len(path.name) == 64] == []
    with Store.open(f"sqlite:///{tmp_path / 'bitfront.db'}") as store:
        assert (known(store), store.studies.summaries()) == ({}, ())
