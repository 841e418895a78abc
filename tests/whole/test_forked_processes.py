"""Processes that tests fork instead of starting them: threads may start them and wait for them, as for any other."""

from __future__ import annotations

import select
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.command_line import environment
from tests.support.forks import processes

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="forks"), pytest.mark.slow]


def start(code: str) -> Any:
    return processes.popen([sys.executable, "-c", code], env=environment(), stdout=processes.subprocess.PIPE)


def test_a_thread_that_comes_second_gets_the_exit_code_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when one thread ends an evaluator process while another one finds that it has ended."""
    found: list[int] = []

    class Poll:
        """Whoever is told that the process has ended is overtaken by another one before it reads the exit code."""

        def __init__(self) -> None:
            self._poll = select.poll()
            self.register = self._poll.register

        def poll(self, timeout: float | None) -> list[tuple[int, int]]:
            ready = self._poll.poll(timeout)
            monkeypatch.setattr(processes, "select", select)
            found.append(process.wait())
            return ready

    with start("raise SystemExit(3)") as process:
        monkeypatch.setattr(processes, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
        found.append(process.wait())
    assert found == [3, 3]


def test_threads_that_start_processes_at_once_get_each_its_own() -> None:
    def pids(_: int) -> tuple[int, int]:
        with start("import os; print(os.getpid())") as process:
            return process.pid, int(process.communicate()[0])

    with ThreadPoolExecutor(4) as pool:
        for known, told in pool.map(pids, range(8)):
            assert known == told
