"""Serving the metrics of a search on a port of this machine while it runs."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from search.errors import ConfigError
from search.installation import install_command
from studies.bounded_server import BoundedServer
from studies.judging.search_events import SearchEvents
from studies.monitoring.search_metrics import SearchMetrics

HOST = "127.0.0.1"


@contextmanager
def serve_metrics(events: SearchEvents, port: int | None) -> Iterator[SearchEvents]:
    """Events that are counted on their way, with metrics on a port while it is held.

    Args:
        events: told everything that the result is told.
        port: of `HOST`; None for no metrics, where the events are given back as they are.

    Raises:
        ConfigError: the port is taken or not allowed, or `prometheus_client` is not installed.
    """
    if port is None:
        yield events
        return
    client = _import_client()
    registry = client.CollectorRegistry()
    server, thread = _listen(client, registry, port)
    try:
        yield SearchMetrics(events, client, registry)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(client: Any, registry: Any, port: int) -> tuple[Any, Any]:
    try:
        server = BoundedServer(HOST, port, client.make_wsgi_app(registry))
    except (OSError, OverflowError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"--metrics-port {port}: expected a free port of {HOST}, got {reason}. Another program "
            "listens on it, or this user may not use it; name another."
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="bitfront-metrics", daemon=True)
    thread.start()
    return server, thread


def _import_client() -> Any:
    try:
        return importlib.import_module("prometheus_client")
    except ImportError as error:
        raise ConfigError(
            f"--metrics-port: prometheus_client is not installed ({error}). Install it: "
            f"{install_command('metrics')}; or leave the option out."
        ) from error
