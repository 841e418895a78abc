"""Serving processes that share one state file: their samples fill the same windows, and any may be killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from studies.guard import BreakerState
from studies.guard.reports import TroubleReports
from studies.guard.state_file import StateKeeper
from tests.support.paths import ROOT

SERVICE = """
import json, sys
import numpy as np
from studies.guard import Guard, GuardOptions

options = GuardOptions(share=1, window=10, windows=2, probe_after_s=1e6, queue=100_000)
guard = Guard(lambda given: {"y": -given["x"]}, lambda given: {"y": given["x"]}, options, state=sys.argv[1])
for line in sys.stdin:
    for _ in range(int(line)):
        guard.run({"x": np.ones((1, 2)) * [1, 2]})
    guard.drain()
    print(json.dumps(guard.state().breaker.value), flush=True)
"""


class Service:
    """A process with a guard whose fast engine is always wrong."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, requests: int) -> None:
        pipe = _pipe(self.process.stdin)
        pipe.write(f"{requests}\n")
        pipe.flush()

    def ask(self, requests: int) -> str:
        """The state of its breaker after so many requests."""
        self.send(requests)
        return str(json.loads(_pipe(self.process.stdout).readline()))


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextmanager
def serving(state: Path) -> Iterator[Service]:
    words = [sys.executable, "-c", SERVICE, str(state)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield Service(process)
    finally:
        process.kill()
        process.communicate()


def wait_for(service: Service, state: str) -> None:
    end = time.monotonic() + 300
    while service.ask(0) != state:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_samples_of_all_processes_fill_the_same_windows(tmp_path: Path) -> None:
    with serving(tmp_path / "guard.json") as one, serving(tmp_path / "guard.json") as two:
        assert [one.ask(9), two.ask(9)] == ["closed", "closed"]
        assert one.ask(2) == "open"  # the twentieth of both together
        wait_for(two, "open")
    with serving(tmp_path / "guard.json") as again:
        assert again.ask(0) == "open"


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_a_state_that_all_can_use(tmp_path: Path) -> None:
    state = tmp_path / "guard.json"
    with ExitStack() as stack:
        other = stack.enter_context(serving(state))
        assert other.ask(3) == "closed"
        for _ in range(3):
            killed = stack.enter_context(serving(state))
            assert killed.ask(0) in ("closed", "open")
            killed.send(100_000)  # each of the first twenty is written
            killed.process.kill()
        assert other.ask(20) == "open"
    said: list[str] = []
    assert StateKeeper(state, TroubleReports(said.append)).breaker.state is BreakerState.OPEN
    assert said == []
