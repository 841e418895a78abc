"""Small servers of HTTP for this machine, which no client can hold up for the others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
MOST_CONNECTIONS = 32
SILENT_S = 30.0  # after this a client that sends or takes nothing is left
_LEAVING_S = 1.0  # that one that has to leave is waited for


class _Handler(WSGIRequestHandler):
    timeout = SILENT_S

    def address_string(self) -> str:
        return str(self.client_address[0])  # no name is looked up, which may take long

    def log_message(self, *_: object) -> None:
        """What is asked is nobody's news."""


class BoundedServer(ThreadingMixIn, WSGIServer):
    """A server with a thread for each connection, of which there are only so many.

    Where there is no room for another one, the oldest that has not sent its whole request is closed for it. So clients
    that send nothing, or a byte now and then, keep nobody out. If all are being answered, the new one is closed.

    The application is called by one thread at a time.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, application: Application) -> None:
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._turn = threading.Lock()
        self._asking: dict[int, Any] = {}  # thread → connection whose request is not there as a whole, oldest first
        self._answer = application
        super().__init__((host, port), _Handler)
        self.set_app(self._call)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False) and not self._make_room():
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._asking[threading.get_ident()] = request
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._asking.pop(threading.get_ident(), None)
            self._room.release()

    def _make_room(self) -> bool:
        """Close the oldest connection that still asks; whether its room is ours."""
        oldest = next(iter(self._asking.copy().values()), None)
        if oldest is None:
            return False
        with suppress(OSError):  # it has just gone by itself
            oldest.shutdown(socket.SHUT_RDWR)
        return self._room.acquire(timeout=_LEAVING_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or sends what is no HTTP, is no error of ours."""

    def server_bind(self) -> None:
        """Bind without looking up the name of this host, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def _call(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self._asking.pop(threading.get_ident(), None)
        with self._turn:
            return list(self._answer(environ, start_response))
