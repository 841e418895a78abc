"""`bitfront worker`: a process that joins a study beside others, and leaves it when it is told to."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.command_line import DATABASE, copy_finished, invoke, write_inputs
from tests.support.crashes.kill_and_resume import started, stored
from tests.support.crashes.shared_study import assert_whole, finished, rows, until
from tests.support.crashes.worker_processes import METRIC
from tests.support.networks import residual_cnn
from tests.support.servers.databases import postgresql_url

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with inputs, and temporary files of its own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    write_inputs(tmp_path / "here" / "in", residual_cnn(channels=8))
    (tmp_path / "here" / "slow.py").write_text(METRIC)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


OPTIONS = ("in/model.onnx", "--data", "in/data.npz", "--study", "s", "--artifacts", "engines", "--metric", "slow:score")


def test_a_worker_joins_a_search_and_is_interrupted(here: Path) -> None:
    """The search goes on to its end, and what the other was at is evaluated again."""
    url = postgresql_url()
    with started("search", *OPTIONS, "--trials", 8, "--storage", url, cwd=here, HELD="hold") as first:
        until(lambda: finished(url) >= 2)
        (here / "hold").touch()
        with started("worker", "s", cwd=here, BITFRONT_STORAGE=url) as second:
            live = "select name from bf_worker where state = 'searching'"
            until(lambda: len(rows(url, live)) == 2)
            until(lambda: rows(url, "select 1 from bf_lease l join bf_worker w on w.name = l.worker where w.id = 2"))
            second.send_signal(signal.SIGINT)
            said, _ = second.communicate(timeout=400)
        (here / "hold").unlink()
        assert second.returncode == 130, said
        assert "go on with: bitfront worker s\n" in said
        assert "Traceback" not in said
        assert "s3cret" not in said
        output, _ = first.communicate(timeout=400)
    assert first.returncode == 0, output
    assert "8 evaluations are done." in output
    assert_whole(url, 8)
    assert [state for (state,) in rows(url, "select state from bf_worker order by id")] == ["ended", "ended"]
    again = invoke("worker", "s", "--storage", url)
    assert (again.exit_code, "8 evaluations are done." in again.stdout) == (0, True), again
    assert finished(url) == 8


def test_on_sqlite_one_process_at_a_time(here: Path) -> None:
    with started("search", *OPTIONS, "--trials", 40, cwd=here) as first:
        until(lambda: len(stored(here)) >= 2)
        done = invoke("worker", "s")
        assert done.exit_code == 2, done
        assert "another process" in done.stderr
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=400)
    total = len(stored(here)) + 1
    done = invoke("worker", "s", "--trials", total, "--quiet")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert len(stored(here)) == total


def test_a_study_or_database_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("worker", "small").exit_code == 2
    assert not (tmp_path / DATABASE).exists()
    copy_finished(tmp_path)
    before = (tmp_path / DATABASE).read_bytes()
    done = invoke("worker", "smal")
    assert (done.exit_code, "Did you mean 'small'" in done.stderr) == (2, True)
    done = invoke("worker", "small", "--storage", "postgresql+psycopg://me:s3cret@127.0.0.1:1/x")
    assert (done.exit_code, "s3cret" in done.output, "me:***@127.0.0.1" in done.stderr) == (2, False, True), done.output
    done = invoke("worker", "small", "--device", "cuda:7", "--trials", "nine")
    assert (done.exit_code, "--trials" in done.stderr) == (2, True)
    assert (tmp_path / DATABASE).read_bytes() == before
    assert os.listdir(tmp_path) != []
