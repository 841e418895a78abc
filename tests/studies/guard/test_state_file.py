"""The file of a guard's state where it cannot be written or read: nothing is counted twice, forgotten or waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.guard import BreakerState, Guard, GuardError, GuardOptions, state_file
from studies.guard.breaker import leave
from studies.guard.reports import TroubleReports
from studies.guard.state import Breaker
from studies.guard.state_file import StateKeeper


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def keeper(tmp_path: Path, said: list[str]) -> StateKeeper:
    keeper = StateKeeper(tmp_path / "state.json", TroubleReports(said.append))
    change(keeper)
    assert not said
    return keeper


def change(keeper: StateKeeper) -> None:
    keeper.change(lambda known: replace(known, bad=known.bad + 1))
    keeper.synchronize()


def stored(folder: Path) -> Breaker:
    return StateKeeper(folder / "state.json", TroubleReports(print)).breaker


def block(folder: Path) -> Path:
    """Let no state be written: what is left under the name of a new file is a folder and cannot be removed."""
    obstacle = folder / "state.json.1.new"
    obstacle.mkdir()
    return obstacle


def test_what_cannot_be_written_counts_once_and_is_kept_in_memory(
    keeper: StateKeeper, tmp_path: Path, said: list[str]
) -> None:
    block(tmp_path)
    for bad in (2, 3, 4):
        change(keeper)
        assert keeper.breaker.bad == bad
        keeper.synchronize()
        assert keeper.breaker.bad == bad
    assert stored(tmp_path).bad == 1
    assert len(said) == 1
    assert "It is kept in memory for now" in said[0]


def test_what_was_kept_in_memory_is_written_once_that_works_again(keeper: StateKeeper, tmp_path: Path) -> None:
    obstacle = block(tmp_path)
    change(keeper)
    obstacle.rmdir()
    keeper.synchronize()
    assert stored(tmp_path).bad == 2


def test_what_a_killed_process_left_goes_and_a_stranger_names_no_file_to_write_to(
    keeper: StateKeeper, tmp_path: Path
) -> None:
    """Numbers of processes repeat in containers that share a folder, and can be foretold."""
    left, victim = tmp_path / "state.json.4711.new", tmp_path / "victim"
    victim.write_text("precious")
    left.symlink_to(victim)
    (tmp_path / f"state.json.{os.getpid()}.new").symlink_to(victim)
    change(keeper)
    assert victim.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.json", "state.json.lock", "victim"]


def test_what_another_process_has_written_meanwhile_counts_too(keeper: StateKeeper, tmp_path: Path) -> None:
    obstacle = block(tmp_path)
    change(keeper)
    obstacle.rmdir()
    other = StateKeeper(tmp_path / "state.json", TroubleReports(print))
    other.change(lambda known: replace(known, bad=7))
    other.synchronize()
    change(keeper)
    assert keeper.breaker.bad == stored(tmp_path).bad == 9


HOLD = """
import sys, filelock
lock = filelock.FileLock(sys.argv[1])
with lock:
    print(1, flush=True)
    sys.stdin.read()
"""


@contextmanager
def stopped_holder(state: Path) -> Iterator[None]:
    """A process that holds the lock of a state and is stopped."""
    words = [sys.executable, "-c", HOLD, f"{state}.lock"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            yield
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process")
def test_no_request_waits_for_a_stopped_process_that_holds_the_lock(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "_TELL_LOCKED_S", 0.2)

    def fail(inputs: Any) -> Any:
        raise RuntimeError("planted")

    def answer(inputs: Any) -> Any:
        return {"y": np.ones(1)}

    state = tmp_path / "state.json"
    waited: list[str] = []
    monkeypatch.setattr(state_file.FileLock, "acquire", noting(state_file.FileLock.acquire, waited))
    with Guard(fail, answer, GuardOptions(share=0), state=state, tell=said.append) as guard:
        with stopped_holder(state):
            for _ in range(5):
                guard.run({})
            assert guard.state().breaker is BreakerState.OPEN
            until(lambda: any("another process has held its lock for" in line for line in said))
            assert not state.exists()
        until(state.exists)
    assert stored(tmp_path).state is BreakerState.OPEN
    assert set(waited) == {"bitfront guard"}


def noting(acquire: Any, threads: list[str]) -> Any:
    def note(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)
        return acquire(*arguments, **named)

    return note


def until(condition: Any) -> None:
    deadline = threading.Event()
    for _ in range(600):
        if condition():
            return
        deadline.wait(0.05)
    raise AssertionError("it never happened")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", -1),
        ("samples", 10**30),
        ("bad", 1.5),
        ("trials", 10**400),
        ("agreement", float("nan")),
        ("agreement", 10**400),
        ("agreement", 7.0),  # of no sample
        ("probe_at", float("inf")),
        ("probe_at", -1e300),
        ("good", True),
        ("reason", None),
        ("state", "ajar"),
        ("colour", "red"),
    ],
)
def test_an_absurd_value_is_refused_by_its_name(tmp_path: Path, name: str, value: Any) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"version": 1, "breaker": {**Breaker().to_json(), name: value}}))
    with pytest.raises(GuardError, match=f"{name if name != 'state' else 'ajar'}.*Delete the file") as raised:
        StateKeeper(file, TroubleReports(print))
    assert len(str(raised.value)) < 600


@pytest.mark.skipif(sys.platform == "win32", reason="makes a pipe")
def test_what_is_no_small_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    for name in ("pipe", "large"):
        with pytest.raises(GuardError, match="no file of at most 65536 bytes"):
            StateKeeper(tmp_path / name, TroubleReports(print))


def test_many_trials_do_not_make_the_rest_longer_than_the_longest() -> None:
    often = leave(Breaker(trials=10**9), "planted", GuardOptions(probe_after_s=1), 0.0)
    assert often.probe_at == 16
