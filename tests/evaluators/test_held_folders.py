"""Temporary folders are held by locks: across containers nobody removes a live one, and those of the dead go."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evaluators.held_folders import held_folder
from tests.support.command_line import environment

HOLD = """
import sys
from pathlib import Path
from evaluators.held_folders import held_folder
with held_folder(Path(sys.argv[1])) as folder:
    (folder / "samples.npz").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def can_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*CONTAINER, "true"], check=False).returncode == 0


@contextmanager
def holder(place: Path, *wrapper: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that holds a folder in `place` until it is ended."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [*wrapper, sys.executable, "-c", HOLD, str(place)], env=environment(), text=True, **pipes
    ) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


@pytest.mark.slow
def test_processes_of_two_containers_leave_each_other_their_folders(tmp_path: Path) -> None:
    if not can_unshare():
        pytest.skip("needs the right to make namespaces")
    with holder(tmp_path, *CONTAINER) as (first, one), holder(tmp_path, *CONTAINER) as (second, other):
        # Each is process 1 of its namespace and can see nothing of the other.
        assert one != other
        assert (one / "samples.npz").exists()
        assert (other / "samples.npz").exists()
        first.kill()  # and with it the process inside, by --kill-child
        first.wait()
        wait_until_unlocked(one)
        with holder(tmp_path, *CONTAINER):
            assert not one.exists()
            assert (other / "samples.npz").exists()
        assert second.poll() is None


def wait_until_unlocked(folder: Path) -> None:
    """Until the kernel has ended the process inside a namespace, whose outer one is dead."""
    while subprocess.run(["flock", "--nonblock", str(folder), "true"], check=False).returncode != 0:
        time.sleep(0.05)


@pytest.mark.slow
def test_the_folder_of_a_killed_process_goes_with_the_next_one(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, folder):
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder / "samples.npz").exists()
        with held_folder(tmp_path) as mine:
            assert list(tmp_path.iterdir()) == [mine]
    assert list(tmp_path.iterdir()) == []


def test_neither_links_nor_what_is_being_made_is_swept(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    place = tmp_path / "temporary"
    place.mkdir()
    (place / "bitfront-run-link").symlink_to(precious)
    (place / "bitfront-run-file").touch()
    (place / ".new-bitfront-run-now").mkdir()
    (place / ".new-bitfront-run-old").mkdir()
    os.utime(place / ".new-bitfront-run-old", (0, 0))
    with held_folder(place):
        left = {
            path.name for path in place.iterdir() if path.name.partition("run-")[2] in ("link", "file", "now", "old")
        }
    assert left == {"bitfront-run-link", "bitfront-run-file", ".new-bitfront-run-now"}
    assert (precious / "file").exists()


def test_it_lies_among_the_temporary_files_of_the_system() -> None:
    with held_folder() as folder:
        assert folder.parent == Path(tempfile.gettempdir())
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
