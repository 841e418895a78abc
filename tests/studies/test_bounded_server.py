"""No client holds up a server for the others, and there are only so many at a time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
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


def test_clients_that_never_send_a_whole_request_make_room_for_others(port: int) -> None:
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(bounded_server.MOST_CONNECTIONS + 8)
        ]
        for connection in silent[16:]:
            connection.sendall(b"GET / HT")
        for _ in range(3):
            assert get(port) == b"hello"
        assert silent[0].recv(1) == b"", "the oldest one was closed"
        silent[-1].sendall(b"TP/1.0\r\n\r\n")
        assert silent[-1].recv(8).startswith(b"HTTP/1"), "and one that goes on is answered"


def test_where_all_are_being_answered_a_further_connection_is_closed_at_once() -> None:
    answered, go = threading.Semaphore(0), threading.Event()

    def slow(environ: object, start_response: object) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])  # type: ignore[operator]
        answered.release()
        go.wait(60)
        return [b"hello"]

    with BoundedServer("127.0.0.1", 0, slow) as server, contextlib.ExitStack() as stack:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(bounded_server.MOST_CONNECTIONS):
            asking = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=60))
            asking.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answered.acquire(timeout=60)
        until = time.monotonic() + 60
        while server._asking and time.monotonic() < until:
            time.sleep(0.01)
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as further:
            assert further.recv(1) == b""
        go.set()
        server.shutdown()


def test_silent_connections_hold_up_nobody(port: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(b"GET / HT")
        assert get(port) == b"hello"


def test_a_client_that_stays_silent_is_left(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(bounded_server._Handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        assert silent.recv(1) == b""
