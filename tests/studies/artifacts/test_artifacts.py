"""The artifact folder: named by content, whole or absent, checked when read, safe on a full disk and after a kill."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from search.errors import ArtifactError
from studies.artifacts.folder import STALE_S, Artifacts
from tests.support.command_line import environment
from tests.support.forks.processes import run_python
from tests.support.paths import ROOT


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path / "study.db.artifacts")


def names(artifacts: Artifacts) -> set[str]:
    return {path.name for path in artifacts.folder.iterdir()}


def test_what_is_put_is_found_by_its_content(artifacts: Artifacts, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "engine").write_bytes(data)
    digest = artifacts.put_file(tmp_path / "engine", "engine")
    assert digest == hashlib.sha256(data).hexdigest()
    assert artifacts.put_bytes(data, "engine") == digest
    assert names(artifacts) == {digest}
    assert artifacts.path(digest).read_bytes() == artifacts.read_bytes(digest) == data
    assert (tmp_path / "engine").read_bytes() == data
    with artifacts.open(digest) as file:
        assert file.read(10) == data[:10]


def test_reading_makes_no_folder(artifacts: Artifacts) -> None:
    digest = "a" * 64
    assert digest not in artifacts
    with pytest.raises(ArtifactError, match=f"Artifact {digest} is not in"):
        artifacts.path(digest)
    artifacts.remove(digest)
    artifacts.remove_half_written()
    assert artifacts.old() == frozenset()
    assert not artifacts.folder.exists()


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_only_digests_name_artifacts(artifacts: Artifacts, digest: str) -> None:
    for use in (artifacts.path, artifacts.read_bytes, artifacts.remove, artifacts.__contains__):
        with pytest.raises(ArtifactError, match="is not an artifact digest"):
            use(digest)


def test_a_damaged_artifact_is_not_handed_out(artifacts: Artifacts) -> None:
    digest = artifacts.put_bytes(b"engine", "engine")
    artifacts.path(digest).write_bytes(b"engina")
    with pytest.raises(ArtifactError, match="changed or damaged"), artifacts.open(digest):
        pytest.fail("was handed out")
    assert artifacts.put_bytes(b"engine", "engine") == digest
    assert artifacts.read_bytes(digest) == b"engine"


def test_what_is_damaged_is_let_go_of(artifacts: Artifacts) -> None:
    good, bad = artifacts.put_bytes(b"good", "engine"), artifacts.put_bytes(b"bad", "engine")
    artifacts.path(bad).write_bytes(b"ba")
    assert [artifacts.is_whole(digest) for digest in (good, bad, "0" * 64)] == [True, False, False]
    assert names(artifacts) == {good}
    assert artifacts.put_bytes(b"bad", "engine") == bad
    assert artifacts.is_whole(bad)


def test_a_source_that_cannot_be_read_is_named(artifacts: Artifacts, tmp_path: Path) -> None:
    for source in (tmp_path / "missing", tmp_path):
        with pytest.raises(ArtifactError, match=f"Could not read the engine {source}"):
            artifacts.put_file(source, "engine")
    assert not artifacts.folder.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="Could not keep the ranges in"):
        Artifacts(tmp_path / "file").put_bytes(b"x", "ranges")


def grow_old(path: Path) -> None:
    os.utime(path, (1, os.stat(path).st_mtime - 2 * STALE_S))


def test_what_is_old_and_half_written_goes(artifacts: Artifacts) -> None:
    young, old = (artifacts.put_bytes(data, "engine") for data in (b"young", b"old"))
    fresh, stale, foreign = (artifacts.folder / name for name in (".tmp-1", ".tmp-2", "README"))
    for path in (fresh, stale, foreign):
        path.write_bytes(b"123")
    for path in (stale, foreign, artifacts.folder / old):
        grow_old(path)
    artifacts.remove_half_written()
    assert names(artifacts) == {young, old, fresh.name, foreign.name}
    assert artifacts.old() == {old}
    artifacts.prune_copies(set())  # a folder holds no copies
    artifacts.remove_old(young)
    assert artifacts.put_bytes(b"old", "engine") == old  # by another process, meanwhile
    artifacts.remove_old(old)
    assert young in artifacts
    assert old in artifacts
    artifacts.remove(young)
    assert young not in artifacts


LIMITED = """
import resource, sys
from pathlib import Path
from search.errors import ArtifactError
from studies.artifacts.folder import Artifacts
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
artifacts = Artifacts(Path(sys.argv[1]))
print(artifacts.put_bytes(b"small", "engine"))
try:
    artifacts.put_bytes(bytes(2 << 20), "engine")
except ArtifactError as error:
    print(error)
"""


def run_child(code: str, folder: Path) -> list[str]:
    command = [sys.executable, "-c", code, str(folder)]
    done = run_python(command, cwd=ROOT, env=environment())
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_file_that_may_not_grow_leaves_nothing_half_written(artifacts: Artifacts) -> None:
    digest, message = run_child(LIMITED, artifacts.folder)
    assert "Could not keep the engine" in message
    assert "File too large" in message
    assert names(artifacts) == {digest}


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("may not mount a small disk here")
    try:
        artifacts = Artifacts(disk / "artifacts")
        digest = artifacts.put_bytes(b"small", "engine")
        (tmp_path / "engine").write_bytes(os.urandom(2 << 20))
        with pytest.raises(ArtifactError, match=r"No space left on device.*Free some space"):
            artifacts.put_file(tmp_path / "engine", "engine")
        assert names(artifacts) == {digest}
        assert artifacts.read_bytes(digest) == b"small"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


KILLED = """
import os, signal, sys
from pathlib import Path
from studies.artifacts.folder import Artifacts
def pieces():
    yield bytes(1 << 20)
    os.kill(os.getpid(), signal.SIGKILL)
Artifacts(Path(sys.argv[1]))._put(pieces(), "engine")
"""


def test_a_kill_while_writing_leaves_no_artifact(artifacts: Artifacts) -> None:
    assert run_child(KILLED, artifacts.folder) == []
    (left,) = artifacts.folder.iterdir()
    assert left.name.startswith(".tmp-")
    os.utime(left, (1, 1))
    artifacts.remove_half_written()
    assert names(artifacts) == set()
