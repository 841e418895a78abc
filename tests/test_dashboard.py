"""`bitfront dashboard` becomes the server: a signal to the one is a signal to the other."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from searched import command, copy_finished, environment
from servers import free_port

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("optuna_dashboard") is None, reason="optuna-dashboard is not installed"
)
WAIT_S = 120


@contextmanager
def serving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process group of its own, nothing of which is left at the end."""
    words = command("dashboard", "--port", port)
    process = subprocess.Popen(words, cwd=folder, env=environment(), start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + WAIT_S
        while not answers(port):
            assert process.poll() is None, f"ended with {process.returncode}"
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.05)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/api/studies", timeout=10) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_and_frees_its_port(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    copy_finished(tmp_path)
    port = free_port()
    with serving(tmp_path, port) as process:
        assert psutil.Process(process.pid).children(recursive=True) == []
        process.send_signal(sent)
        assert process.wait(WAIT_S) == code
        assert not answers(port)
        with pytest.raises(ProcessLookupError):  # nobody is left of its group
            os.killpg(process.pid, 0)
