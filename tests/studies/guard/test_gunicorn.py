"""A guard in gunicorn, loaded before its workers are forked: workers are killed and stopped under load."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

pytest.importorskip("gunicorn")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="forks")]

WORKERS = 4
APPLICATION = """
import json, os
import numpy as np
from studies.guard import Guard, GuardOptions

def fast(given):
    return {"y": -given["x"] if os.path.exists("wrong") else given["x"]}

options = GuardOptions(share=1, window=10, windows=2, probe_after_s=0.2, good_windows=1, queue=1000)
guard = Guard(fast, lambda given: {"y": given["x"]}, options, state="guard.json")
for _ in range(3):
    guard.run({"x": np.ones((1, 4), np.float32)})  # as an application that warms its engines up

def application(environ, start):
    answer = guard.run({"x": np.arange(4, dtype=np.float32)[np.newaxis]})
    state = guard.state()
    start("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([os.getpid(), state.engine, answer["y"].tolist()]).encode()]
"""


class Service:
    """gunicorn with its workers, which listen on a socket in a folder."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "socket"
        self.seen: dict[int, str] = {}  # worker → engine that answered last
        self.failed = 0

    def ask(self) -> tuple[int, str, list[list[float]]]:
        """One request: the worker, the engine that serves, and the answer."""
        connection = http.client.HTTPConnection("localhost", timeout=300)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(300)
        try:
            connection.sock.connect(str(self._socket))
            connection.request("GET", "/")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return answer[0], answer[1], answer[2]

    def ask_until(self, condition: Callable[[], Any]) -> None:
        """Ask from four threads; a request whose worker is killed is counted as failed."""
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                self._note_answer()

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 300
            while not condition():
                assert time.monotonic() < end, self.seen
                time.sleep(0.02)
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _note_answer(self) -> None:
        try:
            worker, engine, _ = self.ask()
            self.seen[worker] = engine
        except (OSError, http.client.HTTPException, ValueError):
            self.failed += 1

    def serve(self, engine: str, workers: int = WORKERS) -> bool:
        """Whether so many workers have answered, all of them with this engine."""
        seen = dict(self.seen)  # other threads add to it
        return len(seen) == workers and set(seen.values()) == {engine}


@contextmanager
def serving(folder: Path) -> Iterator[Service]:
    (folder / "served.py").write_text(APPLICATION)
    words = [sys.executable, "-W", "ignore", "-m", "gunicorn", "served:application", "--preload", "--workers"]
    words += [str(WORKERS), "--bind", f"unix:{folder / 'socket'}", "--timeout", "2", "--log-level", "error"]
    paths = os.pathsep.join([str(ROOT), *sys.path[1:]])
    with subprocess.Popen(words, cwd=folder, env={**os.environ, "PYTHONPATH": paths}) as process:
        service = Service(folder)
        try:
            while not (folder / "socket").exists():
                assert process.poll() is None
                time.sleep(0.02)
            yield service
        finally:
            process.terminate()


def test_workers_that_are_killed_and_stopped_leave_the_others_guarded(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.ask_until(lambda: service.serve("fast"))
        assert service.failed == 0
        killed, stopped, *_ = list(service.seen)
        os.kill(killed, signal.SIGKILL)
        os.kill(stopped, signal.SIGSTOP)  # gunicorn kills it after two seconds
        service.seen.clear()
        (tmp_path / "wrong").touch()
        service.ask_until(lambda: any(service.serve("safe", workers) for workers in (2, 3, 4)))
        service.ask_until(lambda: len(set(dict(service.seen)) - {killed, stopped}) == WORKERS)
        (tmp_path / "wrong").unlink()
        for worker in (killed, stopped):
            service.seen.pop(worker, None)
        service.ask_until(lambda: service.serve("fast"))
        failed = service.failed
        assert failed <= 8  # requests that were in the two workers, or in the queue of one that was stopped
        assert service.ask()[2] == [[0.0, 1.0, 2.0, 3.0]]
