"""Evaluator processes on one machine do not measure on one core. Real processes, locks and affinities."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from evaluators import cores

pytestmark = [
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
        reason="there are no two cores to bind to",
    ),
    pytest.mark.slow,
]
PIN = "from evaluators.cores import pin_to_one_cpu; print(pin_to_one_cpu(), flush=True); input()"
# A worker with two evaluator processes, the second started while the first is there.
WORKER = f"""
import subprocess, sys
children = []
for _ in range(2):
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    children.append(subprocess.Popen([sys.executable, "-c", {PIN!r}], **pipes))
    print(children[-1].stdout.readline().strip(), flush=True)
input()
for child in children:
    child.communicate("\\n")
"""


@pytest.fixture(autouse=True)
def two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Locks of this test's own, and two cores to choose from."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # what this process has asked for is kept there
    allowed = os.sched_getaffinity(0)
    chosen = set(sorted(allowed)[:2])
    os.sched_setaffinity(0, chosen)
    yield chosen
    os.sched_setaffinity(0, allowed)


@contextmanager
def started(code: str, *wrapper: str) -> Iterator[subprocess.Popen[str]]:
    """Ends it at the end, by a line if it waits for one."""
    with subprocess.Popen(
        [*wrapper, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.communicate("\n", timeout=400)


def said(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_workers_take_cores_apart_and_their_own_processes_share_one(two_cores: set[int]) -> None:
    with started(WORKER) as one, started(WORKER) as other:
        first, second = [said(one), said(one)], [said(other), said(other)]
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert {first[0], second[0]} == two_cores


def test_parents_of_two_containers_are_told_apart_though_both_are_process_1(two_cores: set[int]) -> None:
    container = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*container, "true"], check=False).returncode != 0:
        pytest.skip("needs the right to make namespaces")
    with started(WORKER, *container) as one, started(WORKER, *container) as other:
        first, second = {said(one), said(one)}, {said(other), said(other)}
    assert first | second == two_cores
    assert len(first) == len(second) == 1


def test_a_link_in_place_of_a_lock_file_is_not_followed(two_cores: set[int], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for cpu in two_cores:
        (tmp_path / f"bitfront-cpu-{cpu}.lock").symlink_to(victim)
    with started(PIN) as process:
        assert said(process) in two_cores
    assert victim.read_text() == "precious"
    for cpu in two_cores:
        (tmp_path / f"bitfront-cpu-{cpu}.lock").unlink()
        os.link(victim, tmp_path / f"bitfront-cpu-{cpu}.lock")
    with started(PIN) as process:
        assert said(process) in two_cores
    assert victim.read_text() == "precious"


def _wait_until_free(lock: Path) -> None:
    """The children of a killed process end when they find nobody to read from."""
    until = time.monotonic() + 300
    while not _is_free(lock):
        assert time.monotonic() < until, f"{lock} is still kept"
        time.sleep(0.02)


def _is_free(lock: Path) -> bool:
    with lock.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_core_is_free_again_when_its_process_was_killed(two_cores: set[int], tmp_path: Path) -> None:
    with started(WORKER) as kept:
        core = said(kept)
        with started(WORKER) as lost:
            assert {core, said(lost)} == two_cores
            said(lost)
            lost.kill()
        _wait_until_free(tmp_path / f"bitfront-cpu-{(two_cores - {core}).pop()}.lock")
        with started(WORKER) as third:
            assert {core, said(third)} == two_cores


def test_where_every_core_is_taken_one_is_shared(two_cores: set[int]) -> None:
    with started(WORKER) as one, started(WORKER) as two:
        assert {said(one), said(two)} == two_cores
        with started(WORKER) as third:
            assert said(third) in two_cores


def test_the_second_thread_of_a_kept_core_comes_last(monkeypatch: pytest.MonkeyPatch, two_cores: set[int]) -> None:
    low, high = sorted(two_cores)
    monkeypatch.setattr(cores, "_kept_cpus", lambda cpus: {-1})
    monkeypatch.setattr(cores, "_siblings", lambda cpu: {-1} if cpu == high else set())
    monkeypatch.setattr(cores, "_held", [])
    monkeypatch.setattr(
        psutil, "cpu_percent", lambda interval, percpu: [99.0 * (cpu == low) for cpu in range(high + 1)]
    )
    assert cores.pin_to_one_cpu() == low, "though it is busy"
    for descriptor in cores._held:
        os.close(descriptor)


def test_files_that_cannot_be_used_lock_nothing(two_cores: set[int], tmp_path: Path) -> None:
    for core in two_cores:
        (tmp_path / f"bitfront-cpu-{core}.lock").mkdir()
    with started(PIN) as process:
        assert said(process) in two_cores


def test_one_core_that_is_allowed_is_left_as_it_is(two_cores: set[int]) -> None:
    os.sched_setaffinity(0, {min(two_cores)})
    with started(PIN) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "None"


SPARE = (
    "from evaluators.cores import pin_to_one_cpu, spare_cpus, bind_thread; import os, threading; free = spare_cpus(); "
    "pin_to_one_cpu(); spare = spare_cpus(); found = []; "
    "thread = threading.Thread(target=lambda: (bind_thread(spare), found.append(os.sched_getaffinity(0)))); "
    "thread.start(); thread.join(); import json; "
    "print(json.dumps([sorted(cpus) for cpus in (free, spare, found[0], os.sched_getaffinity(0))]), flush=True)"
)


def test_threads_beside_a_measuring_one_are_bound_elsewhere(two_cores: set[int]) -> None:
    with started(SPARE) as alone:
        assert alone.stdout is not None
        free, spare, thread, own = json.loads(alone.stdout.readline())
    assert set(free) == two_cores, "nothing is measured where nothing is bound"
    assert len(own) == 1, "binding a thread binds no other"
    assert set(spare) == set(thread) == two_cores - set(own)


def test_they_leave_the_core_of_another_evaluator_alone(two_cores: set[int]) -> None:
    with started(WORKER) as other:
        kept = {said(other), said(other)}
        with started(SPARE) as mine:
            assert mine.stdout is not None
            _, spare, thread, own = json.loads(mine.stdout.readline())
    assert set(own) == two_cores - kept
    assert spare == thread == own, "rather its own than that one's"
