"""The verb that starts optuna-dashboard on a database: `dashboard`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from bitfront.verbs.command import Typed, prints
from search.errors import ConfigError, StudyError
from search.installation import install_command
from studies.store.store import Store, default_url


@dataclass(frozen=True)
class Dashboard:
    """A dashboard that is ready to start: `run` serves it until it ends."""

    storage: str
    port: int

    @property
    def url(self) -> str:
        """Where it is seen on this machine."""
        return f"http://localhost:{self.port}/"

    def run(self) -> int:
        """Serve it in a process of its own, until that ends; its exit code."""
        command, environment = self.command(f"Listening on {self.url}; Ctrl-C ends it.")
        return subprocess.run(command, env=environment).returncode

    def command(self, said: str) -> tuple[list[str], dict[str, str]]:
        """Command line and environment of its process.

        Args:
            said: line that it prints when it listens.
        """
        # Not on the command line, where every user of the machine could read a password in it.
        environment = {**os.environ, "BITFRONT_STORAGE": self.storage}
        # wsgiref answers a Ctrl-C that comes within a request with "server error" and serves on, so nobody catches it.
        start = (
            "import os, signal\n"
            "if signal.getsignal(signal.SIGINT) is signal.default_int_handler:\n"
            "    signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
            "from studies.show.dashboard import serve\n"
            f"serve(os.environ['BITFRONT_STORAGE'], {self.port}, {said!r})\n"
        )
        return [sys.executable, "-c", start], environment


def dashboard(storage: str | None = None, *, port: Annotated[int, Typed("N")] = 8080) -> Dashboard:
    """Start optuna-dashboard on the studies of a database.

    Args:
        port: Port on this machine where the dashboard is served.

    Raises:
        ConfigError: there is no such port.
        StudyError: there is no such database, or optuna-dashboard is not installed.
    """
    if not 1 <= port <= 65535:
        raise ConfigError(f"--port {port}: expected a port from 1 to 65535. Give another.")
    url = storage or default_url()
    Store.open(url, write=False).close()
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise StudyError(f"starting the dashboard: it is not installed. Install it: {install_command('dashboard')}")
    return Dashboard(url, port)


def _become(server: Dashboard, said: str) -> Any:
    """Let this process be the server: killed as its parent it would leave it behind, with the port taken."""
    command, environment = server.command(said)
    os.execve(command[0], command, environment)


def _serve_json(server: Dashboard) -> Mapping[str, Any]:
    from bitfront.printing.output import json_line

    _become(server, json_line("dashboard", {"url": server.url}))
    raise AssertionError("the server took its place")


@prints(dashboard, json=_serve_json)
def _serve(server: Dashboard) -> None:
    _become(server, f"Listening on {server.url}; Ctrl-C ends it.")
