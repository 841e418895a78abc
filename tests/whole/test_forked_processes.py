"""Processes that tests fork instead of starting them: threads may start them and wait for them, as for any other."""

from __future__ import annotations

import select
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.support.command_line import environment
from tests.support.crashes.shared_study import until
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


# By their words evaluators are told from commands, so this one may not hold the words whole.
COMMAND = """
import os, sys, time
from evaluators.process import child
sleeping = "'evaluators.process." + "server'; import time; time.sleep(600)"
print(child.subprocess.Popen([sys.executable, "-c", sleeping], env=dict(os.environ)).pid, flush=True)
time.sleep(600)
"""


def test_what_a_forked_command_starts_is_forked_by_a_helper_that_ends_with_it() -> None:
    with start(COMMAND) as process:
        try:
            pid = int(process.stdout.readline())
            [evaluator] = until(lambda: processes.evaluators_of(process.pid))
            helper = psutil.Process(evaluator.ppid())
            assert (evaluator.pid, helper.ppid()) == (pid, process.pid)
        finally:
            process.kill()
    assert psutil.wait_procs([helper], timeout=400)[1] == []
    evaluator.kill()
