"""Real database servers for tests and benchmarks: PostgreSQL from the `pgserver` wheel, MariaDB where it is installed.

A server listens on a free port of this machine, keeps its files in folders of its own, under /tmp and, for tests, in
memory, and goes with its folders when the process that started it ends, however that ends: a guard process waits for
the end of its input.
As root, servers run as nobody, because PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

USER, PASSWORD = "bitfront", "s3cret"
NOBODY = 65534
START_S, STOP_S = 120, 120
# What cuts connections and keeps all data, and what ends a server whose folder goes with it.
STOP_AND_DROP = {
    "postgresql": (signal.SIGINT.value, signal.SIGQUIT.value),
    "mariadb": (signal.SIGTERM.value, signal.SIGKILL.value),
}
PORTS = (20_000, 32_000)  # below those that outgoing connections get, so that a stopped server's port stays free
# MariaDB waits for the disk several times per table: 2 s for a study's tables on a disk, 0.3 s in memory.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 << 30
IN_MEMORY = {
    "postgresql": ["-c", "max_wal_size=128MB", "-c", "min_wal_size=32MB"],  # else its log takes up to a gigabyte
    "mariadb": ["--debug-no-sync"],  # where there is no such room, too
}
GUARD = """
import os, shutil, signal, subprocess, sys
user, folder, data, stop, drop, *command = sys.argv[1:]
who = {"user": int(user), "group": int(user), "extra_groups": []} if int(user) else {}
server = None
end = lambda number: server and server.poll() is None and (server.send_signal(number), server.wait())
for line in iter(sys.stdin.readline, ""):
    if line == "start\\n" and (server is None or server.poll() is not None):
        with open(os.path.join(folder, "log"), "ab") as log:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, **who)
    elif line == "stop\\n":
        end(int(stop))
    elif line == "kill\\n":
        end(signal.SIGKILL)
    print("done", flush=True)
end(int(drop))
for path in (folder, data):
    shutil.rmtree(path, ignore_errors=True)
"""


class MissingServerError(Exception):
    """This machine has no such server; the message says how to get it."""


class Server:
    """One database server with its own folders; `stop`, `kill` and `start` keep its data, its port and its URL.

    Args:
        kind: `postgresql` or `mariadb`.
        in_memory: keep the data in memory where this machine has room, else on its disk.
    """

    def __init__(self, kind: str, *, in_memory: bool = False) -> None:
        self._kind = kind
        self._folder = Path(tempfile.mkdtemp(prefix=f"bf-{kind[:2]}-", dir="/tmp"))
        self._data = Path(tempfile.mkdtemp(prefix=self._folder.name, dir=_data_folder(in_memory)))
        self._port = free_port()
        self._names = itertools.count()
        self._templates: dict[Callable[[str], None], str] = {}
        self.database = "main"
        try:
            set_up = {"postgresql": _set_up_postgresql, "mariadb": _set_up_mariadb}[kind]
            command = set_up(self._folder, self._data, self._port)
            command += IN_MEMORY[kind] if in_memory else []
        except BaseException:
            shutil.rmtree(self._folder)
            shutil.rmtree(self._data)
            raise
        folders, signals = map(str, (self._folder, self._data)), map(str, STOP_AND_DROP[kind])
        guard = [sys.executable, "-c", GUARD, str(_unprivileged()), *folders, *signals, *command]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._guard = subprocess.Popen(guard, text=True, start_new_session=True, **pipes)
        try:
            self.start()
            self.database = self.new_database("main")
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The database `main`."""
        return self.url_of(self.database)

    def url_of(self, database: str) -> str:
        scheme = {"postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}[self._kind]
        return f"{scheme}://{USER}:{PASSWORD}@127.0.0.1:{self._port}/{database}"

    def new_database(self, name: str = "", template: str = "") -> str:
        """Create a database, empty or as another one; its name."""
        name = name or f"t{next(self._names)}"
        self._execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return name

    def new_url(self, make_tables: Callable[[str], None] | None = None) -> str:
        """The URL of a new database: an empty one, or with the tables that were made in the first of its kind."""
        if make_tables is None or self._kind != "postgresql":  # MariaDB copies no database
            return self.url_of(self.new_database())
        if make_tables not in self._templates:
            self._templates[make_tables] = self.new_database()
            make_tables(self.url_of(self._templates[make_tables]))
        return self.url_of(self.new_database(template=self._templates[make_tables]))

    def start(self) -> None:
        """Start the server, unless it runs, and wait until it answers."""
        deadline = time.monotonic() + START_S
        while True:
            # Again and again: PostgreSQL refuses and ends while a process of one that was killed is still there.
            self._say("start")
            if self._answers():
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._kind} did not start:\n{self.log()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Shut the server down as an administrator would: open connections are cut, what is committed is kept."""
        self._say("stop")

    def kill(self) -> None:
        """The server dies at once (SIGKILL); `start` recovers from its log."""
        self._say("kill")

    def restart(self) -> None:
        """Stop, then start."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its folders."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()
        self._guard.wait(STOP_S)
        if self._guard.stdout is not None:
            self._guard.stdout.close()

    def log(self) -> str:
        """The end of what the server wrote."""
        path = self._folder / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _say(self, word: str) -> None:
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.write(f"{word}\n")
        self._guard.stdin.flush()
        assert self._guard.stdout.readline() == "done\n", self.log()

    def _answers(self) -> bool:
        try:
            self._execute("SELECT 1")
        except OperationalError:
            return False
        return True

    def _execute(self, statement: str) -> None:
        # The database that is always there.
        url = self.url_of({"postgresql": "postgres", "mariadb": "mysql"}[self._kind])
        engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 30})
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()


@contextmanager
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL server of its own for one test, which may stop and start it. Skips where there is none."""
    yield from _server("postgresql")


@contextmanager
def mariadb_server() -> Iterator[Server]:
    """A MariaDB server of its own for one test, which may stop and start it. Skips where there is none."""
    yield from _server("mariadb")


def postgresql_url(make_tables: Callable[[str], None] | None = None) -> str:
    """A new database, empty or with tables, on the PostgreSQL server of this test run. Skips where there is none."""
    return _shared_or_skip("postgresql").new_url(make_tables)


def mariadb_url() -> str:
    """A new, empty database on the MariaDB server of this test run. Skips where there is none."""
    return _shared_or_skip("mariadb").new_url()


def _server(kind: str) -> Iterator[Server]:
    try:
        server = Server(kind, in_memory=True)
    except MissingServerError as error:
        _skip(kind, str(error))
    try:
        yield server
    finally:
        server.close()


def _shared_or_skip(kind: str) -> Server:
    try:
        return _shared(kind)
    except MissingServerError as error:
        return _skip(kind, str(error))


@cache
def _shared(kind: str) -> Server:
    server = Server(kind, in_memory=True)
    atexit.register(server.close)
    return server


def _skip(kind: str, reason: str) -> Server:
    import pytest

    required = f"BITFRONT_REQUIRE_{kind.upper()}"
    if os.environ.get(required):
        pytest.fail(f"{reason} {required} is set, so it may not be missing.")
    pytest.skip(reason)


def _data_folder(in_memory: bool) -> Path:
    """Where a server's data goes. Programs stay under /tmp: memory may be mounted so that nothing runs from there."""
    with suppress(OSError):
        if in_memory and shutil.disk_usage(MEMORY).free > ROOM_BYTES < psutil.virtual_memory().available:
            return MEMORY
    return Path("/tmp")


def _set_up_postgresql(folder: Path, data: Path, port: int) -> list[str]:
    """Make the files of a PostgreSQL server; the command that runs it."""
    programs, secret = _postgresql_programs(folder), folder / "secret"
    secret.write_text(PASSWORD)
    _give(folder, data, secret)
    who = ["--username", USER, "--pwfile", str(secret), "--auth=scram-sha-256"]
    _run([str(programs / "initdb"), "-D", str(data), *who, "--encoding=utf8", "--no-locale", "--no-sync"], folder)
    # No disk fails in a test: what the kernel has is safe, and waiting for the disk takes most of the time.
    options = ["fsync=off", "full_page_writes=off", "max_connections=300", "listen_addresses=127.0.0.1"]
    options += [f"unix_socket_directories={folder}", f"port={port}"]
    command = [str(programs / "postgres"), "-D", str(data)]
    return command + [word for option in options for word in ("-c", option)]


def _postgresql_programs(folder: Path) -> Path:
    spec = importlib.util.find_spec("pgserver")
    if spec is None or not spec.submodule_search_locations:
        return _debian_postgresql()
    package = Path(next(iter(spec.submodule_search_locations)))
    if _unprivileged() and not all(parent.stat().st_mode & 1 for parent in package.parents):
        # Nobody cannot reach a virtual environment in root's home. Libraries lie beside the package.
        for part in ("pgserver", "pgserver.libs"):
            if (package.parent / part).exists():
                shutil.copytree(package.parent / part, folder / "programs" / part)
        package = folder / "programs" / "pgserver"
    return package / "pginstall" / "bin"


def _debian_postgresql() -> Path:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    if not programs:
        raise MissingServerError(
            "No PostgreSQL: neither the pgserver wheel (which has none for Python 3.13 and later) nor Debian's "
            "postgresql package is installed."
        )
    return programs[-1].parent


def _set_up_mariadb(folder: Path, data: Path, port: int) -> list[str]:
    """Make the files of a MariaDB server; the command that runs it."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    server, installer = (shutil.which(name, path=path) for name in ("mariadbd", "mariadb-install-db"))
    if server is None or installer is None:
        raise MissingServerError("No MariaDB: install it with `apt-get install mariadb-server`; it need not run.")
    users = folder / "users.sql"
    options = [
        f"--datadir={data}",
        f"--tmpdir={folder}",
        f"--socket={folder / 'socket'}",
        "--innodb-log-file-size=16M",
        "--skip-log-bin",
    ]
    options += ["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=128M", "--skip-name-resolve"]
    users.write_text(
        f"CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
        f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;\n"
    )
    _give(folder, data, users)
    _run([installer, "--no-defaults", "--skip-test-db", "--auth-root-authentication-method=socket", *options], folder)
    options += ["--bind-address=127.0.0.1", f"--port={port}", f"--init-file={users}", "--max-connections=300"]
    options += [f"--pid-file={folder / 'pid'}", "--character-set-server=utf8mb4"]
    return [server, "--no-defaults", *options]


def _run(command: list[str], folder: Path) -> None:
    user = _unprivileged()
    settings = {"cwd": folder, "capture_output": True, "text": True, "timeout": START_S}
    if user:
        settings |= {"user": user, "group": user, "extra_groups": []}
    environment = {**os.environ, "HOME": str(folder), "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, **settings)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def _unprivileged() -> int:
    """The user that servers run as; 0 for the user of this process, who is not root."""
    return NOBODY if os.geteuid() == 0 else 0


def _give(*paths: Path) -> None:
    """Let the server's user own its folders."""
    user = _unprivileged()
    if user:
        for path in paths:
            os.chown(path, user, user)


def free_port() -> int:
    """One that nobody listens on, and that no other process of this test run takes before its server listens."""
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.randrange(PORTS[0] + first, PORTS[1], int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
