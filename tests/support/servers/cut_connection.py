"""A wire to a database server that is cut at a chosen moment: when the client says a certain word."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import make_url


class Wire:
    """Passes bytes between clients and a server, until `cut` says otherwise.

    Attributes:
        url: the database behind the wire.
        cuts: how many connections were cut.
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._server = (str(parsed.host), int(parsed.port or 0))
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = parsed.set(port=port).render_as_string(hide_password=False)
        self.cuts = 0
        self._word = b""
        self._answered = False
        self._left = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, word: bytes, *, answered: bool, times: int = 1) -> None:
        """Cut the next connections that say a word.

        Args:
            answered: after the server has done it, so that only its answer is lost; else before it hears of it.
        """
        self._word, self._answered, self._left = word, answered, times

    def close(self) -> None:
        for end in (self._listening, *self._open):
            _close(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        cut = threading.Event()
        answers = threading.Thread(target=self._to_client, args=(server, client, cut), daemon=True)
        answers.start()
        with contextlib.suppress(OSError):
            while said := client.recv(1 << 16):
                if self._left > 0 and self._word in said:
                    self._left -= 1
                    self.cuts += 1
                    cut.set()
                    if self._answered:
                        server.sendall(said)
                        server.shutdown(socket.SHUT_WR)  # it does what it was told, answers, and ends
                        answers.join()
                    break
                server.sendall(said)
        _close(client)
        _close(server)

    def _to_client(self, server: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while said := server.recv(1 << 16):
                if not cut.is_set():
                    client.sendall(said)
        if not cut.is_set():
            _close(client)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def wire_to(url: str) -> Iterator[Wire]:
    wire = Wire(url)
    try:
        yield wire
    finally:
        wire.close()
