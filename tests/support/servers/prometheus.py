"""A real Prometheus for tests, where it is installed: its server on a free port, and promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.servers.databases import free_port
from tests.support.servers.local_pages import read_page

START_S = 120


class MissingPrometheusError(Exception):
    """This machine has no Prometheus; the message says how to get it."""


def find_program(name: str) -> str:
    """Path of `prometheus` or `promtool`."""
    path = shutil.which(name)
    if path is None:
        raise MissingPrometheusError(f"{name} is not installed; Debian and Ubuntu have it in the package prometheus")
    return path


class Prometheus:
    """The API of a server that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **parameters: str) -> Any:
        """What a page of the API says: `data` of its JSON; raises OSError."""
        return json.loads(read_page(f"{self._url}{path}?{urlencode(parameters)}"))["data"]

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Labels and value of every series now."""
        result = self.get("/api/v1/query", query=expression)["result"]
        return [(row["metric"], float(row["value"][1])) for row in result]


@contextmanager
def run_prometheus(folder: Path, targets: Mapping[str, int]) -> Iterator[Prometheus]:
    """A server that scrapes ports of this machine twice a second, until it is left.

    Args:
        targets: job → port.

    Raises:
        MissingPrometheusError: it is not installed.
    """
    program, port = find_program("prometheus"), free_port()
    jobs = [
        {"job_name": job, "scrape_interval": "500ms", "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]}
        for job, at in targets.items()
    ]
    config = folder / "prometheus.json"
    config.write_text(json.dumps({"scrape_configs": jobs}))  # JSON is YAML
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait(server, f"http://127.0.0.1:{port}/-/ready", folder / "log")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        server.kill()
        server.wait()


def _wait(server: subprocess.Popen[bytes], ready: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text(encoding="utf-8")
        with suppress(OSError):
            read_page(ready, timeout_s=5)
            return
        time.sleep(0.05)
    raise AssertionError(f"Prometheus was not ready after {START_S} s: {log.read_text(encoding='utf-8')}")
