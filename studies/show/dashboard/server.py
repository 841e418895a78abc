"""Serving optuna-dashboard on a database until the process ends."""

from __future__ import annotations

from studies.bounded_server import BoundedServer
from studies.show.dashboard.completed_answers import CompletedAnswers
from studies.store.store import Store, close_optuna, optuna_storage


def serve(url: str, port: int, said: str) -> None:
    """Serve on this machine alone, as optuna-dashboard itself does.

    Args:
        url: of the database.
        said: line to print when it listens.

    Raises:
        OSError: the port is taken.
    """
    import optuna_dashboard

    with Store.open(url, write=False) as store:
        storage = optuna_storage(url)
        try:
            app = CompletedAnswers(optuna_dashboard.wsgi(storage), store)
            with BoundedServer("localhost", port, app) as server:
                print(said, flush=True)  # noqa: T201
                server.serve_forever()
        finally:
            close_optuna(storage)
