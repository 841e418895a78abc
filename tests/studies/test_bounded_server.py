"""No client holds up a server for the others, and there are only so many at a time."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from studies import bounded_server
from studies.bounded_server import BoundedServer


@pytest.fixture
def port() -> Iterator[int]:
    def hello(environ: object, start_response: object) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])  # type: ignore[operator]
        return [b"hello"]

    with BoundedServer("127.0.0.1", 0, hello) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()


def get(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        return bytes(answer.read())


def test_more_connections_than_there_is_room_for_are_closed_at_once(port: int) -> None:
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(bounded_server.MOST_CONNECTIONS)
        ]
        with socket.create_connection(("127.0.0.1", port), timeout=60) as further:
            assert further.recv(1) == b""
        assert all(connection.fileno() >= 0 for connection in silent)
    for _ in range(bounded_server.MOST_CONNECTIONS):  # those that were closed leave their room
        with contextlib.suppress(OSError):
            if get(port) == b"hello":
                break
    else:
        pytest.fail("nobody is answered any more")


def test_silent_connections_hold_up_nobody(port: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(b"GET / HT")
        assert get(port) == b"hello"


def test_a_client_that_stays_silent_is_left(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(bounded_server._Handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        assert silent.recv(1) == b""
