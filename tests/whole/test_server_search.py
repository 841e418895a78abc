"""Whole studies on PostgreSQL and MariaDB: every verb, and a server that restarts meanwhile. ONNX Runtime evaluates."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command_line import child, command, environment, ok, write_inputs
from tests.support.crashes.shared_study import assert_whole, finished, rows, until
from tests.support.forks.processes import popen
from tests.support.networks import mobile_cnn
from tests.support.servers.databases import PASSWORD, postgresql_server
from tests.support.study_rows import SERVERS, fresh_url

pytestmark = pytest.mark.slow

TRIALS = 12
SEARCH = ("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--sampler", "random", "--quiet")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", SERVERS)
def test_every_verb_works_on_a_server(kind: str, folder: Path) -> None:
    write_inputs(folder / "in")
    url = fresh_url(kind, folder)
    there = ("--storage", url)
    ok(*SEARCH, "--trials", 4, "--max-drop", "50%", "--keep-engines", "all", "--artifacts", "engines", *there)
    ok("resume", "s", "--trials", 6, "--quiet", *there)
    said = [ok("status", *there), ok("show", "s", 0, *there), ok("status", "s", *there)]
    assert "s" in said[0].split()
    assert len(json.loads(ok("front", "s", "--json", *there))["rows"]) >= 1
    ok("report", "s", "--out", "report.html", *there)
    ok("export", "s", "--pick", "accurate", "--out", "deploy", *there)
    written = [*said, *(path.read_text() for path in (folder / "report.html", folder / "deploy/manifest.json"))]
    assert not any(PASSWORD in text for text in written)
    assert any((folder / "engines").iterdir())
    ok("delete", "s", "--yes", *there)
    for table in ("bf_study", "bf_evaluation", "bf_sample", "bf_trial", "studies", "trials", "trial_params"):
        assert rows(url, f"select count(*) from {table}") == [(0,)], table


def test_a_server_that_restarts_and_dies_in_the_middle_of_a_study_costs_nothing(folder: Path) -> None:
    """Its trials are those of a quiet study, each once."""
    write_inputs(folder / "in", mobile_cnn())
    more = ("--trials", TRIALS, "--seed", 3)
    quiet = child(*SEARCH, *more, cwd=folder)
    assert quiet.returncode == 0, quiet.stderr
    with postgresql_server() as server:
        command_line = command(*SEARCH, *more, "--artifacts", "engines", "--storage", server.url)
        with popen(command_line, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True) as search:
            try:
                for away, enough in ((server.stop, 3), (server.kill, 6), (server.stop, 9)):
                    until(lambda enough=enough: finished(server.url) >= enough or search.poll() is not None)
                    away()
                    time.sleep(1)  # long enough for the search to need it
                    server.start()
                _, said = search.communicate(timeout=300)
            finally:
                search.kill()
        assert search.returncode == 0, said
        assert_whole(server.url, TRIALS)
        evaluations = rows(server.url, "select digest, status from bf_evaluation")
    assert set(evaluations) == {(digest, "ok") for digest in digests(folder / "bitfront.db")}


def digests(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    found = [row[0] for row in connection.execute("select digest from bf_evaluation")]
    connection.close()
    return found
