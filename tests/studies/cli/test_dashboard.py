"""`bitfront dashboard` becomes the server: a signal to the one is a signal to the other."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.command_line import command, copy_finished, environment
from tests.support.servers.databases import free_port

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("optuna_dashboard") is None, reason="optuna-dashboard is not installed"
    ),
    pytest.mark.slow,
]
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


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_frees_its_port(tmp_path: Path, sent: signal.Signals) -> None:
    copy_finished(tmp_path)
    port = free_port()
    with serving(tmp_path, port) as process:
        assert psutil.Process(process.pid).children(recursive=True) == []
        process.send_signal(sent)
        assert process.wait(WAIT_S) == -sent
        assert not answers(port)
        with pytest.raises(ProcessLookupError):  # nobody is left of its group
            os.killpg(process.pid, 0)


def test_ctrl_c_ends_a_server_that_is_answering(tmp_path: Path) -> None:
    copy_finished(tmp_path)
    port = free_port()
    with serving(tmp_path, port) as process, socket.create_connection(("localhost", port)) as asked:
        asked.sendall(b"POST /api/studies HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n")
        end = time.monotonic() + WAIT_S
        while not taken(asked.getsockname()[1]):
            assert time.monotonic() < end, "the server does not take the request"
        time.sleep(0.2)  # now it waits for the rest
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == -signal.SIGINT


def taken(port: int) -> bool:
    """Whether the server has read what was sent from a port."""
    with open("/proc/net/tcp") as plain, open("/proc/net/tcp6") as newer:
        rows = [line.split() for line in [*plain, *newer]]
    return any(row[2].endswith(f":{port:04X}") and row[4].endswith(":00000000") for row in rows)
