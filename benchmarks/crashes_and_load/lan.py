"""Two hosts and a database server on one machine: network namespaces, with a home and a folder of their own each."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from benchmarks import ROOT
from tests.support.servers.databases import NOBODY, PASSWORD, USER, _give, _postgresql_programs, _run

DATABASE, S3_PORT = "10.231.0.1", 9000
PORT = 5432
NUMBERS = {"host1": 1, "host2": 2}
STOP_S, START_S = 30.0, 120.0


def missing() -> str:
    """What this machine lacks for it; empty where nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root."
    absent = [name for name in ("ip", "unshare", "setpriv", "mount", "hostname") if shutil.which(name) is None]
    return f"expected these programs, which are not installed: {', '.join(absent)} (Debian: iproute2)." * bool(absent)


@dataclass
class Host:
    """A host: its namespace and the folder that it alone sees."""

    name: str
    namespace: str
    folder: Path


class Process:
    """A program on a host, whose output is kept."""

    def __init__(self, name: str, command: list[str], log: Path, environment: dict[str, str], folder: Path) -> None:
        self.name, self._log = name, log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def poll(self) -> int | None:
        return self._process.poll()

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@dataclass
class Lan:
    """The machines and the cables, from entering to leaving the context.

    Args:
        folder: for what they write.
    """

    folder: Path
    processes: list[Process] = field(default_factory=list)
    bucket: str = "s3://bitfront/study"

    def __enter__(self) -> Lan:
        self._tag = secrets.token_hex(2)
        self._server = f"bf{self._tag}db"
        self.hosts = {
            name: Host(name, f"bf{self._tag}h{number}", self.folder / name) for name, number in NUMBERS.items()
        }
        self._services: list[Process] = []
        try:
            self._lay_cables()
            self._start_postgresql()
            self._start_s3()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    # -- what a host does ----------------------------------------------------------------------------------------------

    def start(self, host: str, *words: Any) -> Process:
        """Run bitfront on a host."""
        at, others = self.hosts[host], [other for name, other in self.hosts.items() if name != host]
        hidden = " && ".join(f"mount -t tmpfs none '{other.folder}'" for other in others)
        inside = f'{hidden} && hostname {host} && cd "$0" && exec "$@"'
        program = [sys.executable, "-m", "bitfront", *map(str, words)]
        command = ["ip", "netns", "exec", at.namespace, "unshare", "--mount", "--uts", "sh", "-c", inside]
        log = self.folder / f"{len(self.processes):02}-{host}-{words[0]}.log"
        name = f"{host} {words[0]}"
        process = Process(name, [*command, str(at.folder), *program], log, self._environment(at), at.folder)
        self.processes.append(process)
        return process

    def run(self, host: str, *words: Any) -> Process:
        """As `start`; waits for the end."""
        process = self.start(host, *words)
        self.processes.remove(process)
        process.wait(START_S)
        return process

    def pull(self, host: str) -> None:
        """Take a host off the network, at the other end of its cable."""
        _ip("-n", self._server, "link", "set", f"to{NUMBERS[host]}", "down")

    def plug(self, host: str) -> None:
        _ip("-n", self._server, "link", "set", f"to{NUMBERS[host]}", "up")

    def _environment(self, host: Host) -> dict[str, str]:
        home = host.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        return {
            **kept,
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "BITFRONT_STORAGE": f"postgresql+psycopg://{USER}@{DATABASE}/bitfront",
            "PGPASSWORD": PASSWORD,
            "AWS_ENDPOINT_URL": f"http://{DATABASE}:{S3_PORT}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "not-so-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    # -- the machines --------------------------------------------------------------------------------------------------

    def _lay_cables(self) -> None:
        """The server at its own address, a cable to each host; and one to this machine, which looks on."""
        _ip("netns", "add", self._server)
        _ip("-n", self._server, "link", "set", "lo", "up")
        _ip("-n", self._server, "address", "add", f"{DATABASE}/32", "dev", "lo")
        for host in self.hosts.values():
            number = NUMBERS[host.name]
            host.folder.mkdir(parents=True, exist_ok=True)
            _ip("netns", "add", host.namespace)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            self._cable(f"to{number}", ("-n", host.namespace), "eth0", number, ("netns", host.namespace))
            _ip("-n", host.namespace, "route", "add", "default", "via", f"10.231.{number}.1")
        self._cable("to3", (), f"bf{self._tag}", 3, ())
        _ip("route", "add", f"{DATABASE}/32", "via", "10.231.3.1")

    def _cable(self, name: str, inside: tuple[str, ...], far: str, number: int, place: tuple[str, ...]) -> None:
        _ip("-n", self._server, "link", "add", name, "type", "veth", "peer", "name", far, *(place or ("netns", "1")))
        _ip("-n", self._server, "address", "add", f"10.231.{number}.1/24", "dev", name)
        _ip("-n", self._server, "link", "set", name, "up")
        _ip(*inside, "address", "add", f"10.231.{number}.2/24", "dev", far)
        _ip(*inside, "link", "set", far, "up")

    def _start_postgresql(self) -> None:
        folder = self.folder / "database"
        folder.mkdir()
        programs, data, secret = _postgresql_programs(folder), folder / "data", folder / "secret"
        secret.write_text(PASSWORD)
        _give(folder, secret)
        for parent in folder.parents[:-2]:  # the server's user has to get there
            parent.chmod(parent.stat().st_mode | 0o111)
        who = ["--username", USER, "--pwfile", str(secret), "--auth=scram-sha-256"]
        _run([str(programs / "initdb"), "-D", str(data), *who, "--encoding=utf8", "--no-locale", "--no-sync"], folder)
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all {USER} 10.231.0.0/16 scram-sha-256\n")
        options = [f"listen_addresses={DATABASE}", f"port={PORT}", f"unix_socket_directories={folder}", "fsync=off"]
        command = [str(programs / "postgres"), "-D", str(data), *(word for o in options for word in ("-c", o))]
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        self._serve("postgresql", [*user, *command], folder)
        self._wait_for_postgresql()

    def _wait_for_postgresql(self) -> None:
        base = f"postgresql+psycopg://{USER}:{PASSWORD}@{DATABASE}:{PORT}"
        engine = create_engine(f"{base}/postgres", isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 5})
        deadline = time.monotonic() + START_S
        while True:
            try:
                with engine.connect() as connection:
                    connection.exec_driver_sql("create database bitfront")
                break
            except OperationalError:
                if time.monotonic() > deadline:
                    raise RuntimeError(self._services[-1].output()) from None
                time.sleep(0.2)
        engine.dispose()
        self.url = f"{base}/bitfront"

    def _start_s3(self) -> None:
        import boto3

        folder = self.folder / "s3"
        folder.mkdir()
        self._serve("s3", [sys.executable, "-m", "moto.server", "-H", DATABASE, "-p", str(S3_PORT)], folder)
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection((DATABASE, S3_PORT), 5).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise RuntimeError(self._services[-1].output()) from None
                time.sleep(0.2)
        client = boto3.client(
            "s3", endpoint_url=f"http://{DATABASE}:{S3_PORT}", region_name="us-east-1",
            aws_access_key_id="key", aws_secret_access_key="not-so-secret",
        )  # fmt: skip
        client.create_bucket(Bucket=self.bucket.split("/")[2])

    def _serve(self, name: str, command: list[str], folder: Path) -> None:
        within = ["ip", "netns", "exec", self._server, *command]
        self._services.append(Process(name, within, self.folder / f"{name}.log", dict(os.environ), folder))

    def _end(self) -> None:
        for process in [*self.processes, *reversed(self._services)]:
            process.stop()
        for namespace in (*(host.namespace for host in self.hosts.values()), self._server):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
