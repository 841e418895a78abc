"""Starting optuna-dashboard on a database: the verb `dashboard` as a function."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from search.errors import StudyError
from search.installation import install_command
from studies.store.store import Store, default_url


def dashboard(storage: str | None = None, port: int = 8080) -> int:
    """Run optuna-dashboard on a database until it ends, in a process of its own; its exit code.

    Raises:
        StudyError: there is no such database, or optuna-dashboard is not installed.
    """
    command, environment = dashboard_command(storage, port)
    return subprocess.run(command, env=environment).returncode


def dashboard_command(storage: str | None = None, port: int = 8080, said: str = "") -> tuple[list[str], dict[str, str]]:
    """Command line and environment of optuna-dashboard on a database, for what `bitfront dashboard` becomes.

    Args:
        said: line that it prints when it listens; empty for a sentence.

    Raises:
        StudyError: there is no such database, or optuna-dashboard is not installed.
    """
    url = storage or default_url()
    Store.open(url, write=False).close()
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise StudyError(f"starting the dashboard: it is not installed. Install it: {install_command('dashboard')}")
    # Not on the command line, where every user of the machine could read a password in it.
    environment = {**os.environ, "BITFRONT_STORAGE": url}
    # wsgiref answers a Ctrl-C that comes within a request with "server error" and serves on, so nobody may catch it.
    start = (
        "import os, signal\n"
        "if signal.getsignal(signal.SIGINT) is signal.default_int_handler:\n"
        "    signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "from studies.show.dashboard import serve\n"
        f"serve(os.environ['BITFRONT_STORAGE'], {port}, {said or _listening_text(port)!r})\n"
    )
    return [sys.executable, "-c", start], environment


def dashboard_url(port: int) -> str:
    """Where it is seen on this machine."""
    return f"http://localhost:{port}/"


def _listening_text(port: int) -> str:
    return f"Listening on {dashboard_url(port)}; Ctrl-C ends it."
