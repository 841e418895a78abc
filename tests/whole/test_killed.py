"""Runs that are cut off: by kill -9, Ctrl-C, a full disk, a metric that raises, an evaluator that keeps dying."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import DATABASE, command, environment, invoke, tree, write_inputs
from tests.support.crashes import worker_processes
from tests.support.crashes.kill_and_resume import evaluator_of, rows, started, stored, survive, untold, wait_for_end
from tests.support.networks import mobile_cnn, residual_cnn

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals and mounts"), pytest.mark.slow]


METRIC = """
import pathlib, time, numpy as np
def score(outputs, labels):
    '''Works on the float model and the first evaluations, then as the file says.'''
    logits = outputs['logits'] if isinstance(outputs, dict) else outputs
    scores = (logits.argmax(axis=1) == labels).astype(float)
    count = pathlib.Path('calls')
    calls = int(count.read_text()) + 1 if count.exists() else 1
    count.write_text(str(calls))
    mode = pathlib.Path('mode')
    while calls > 45 and mode.read_text() == 'hold':
        pathlib.Path('held').touch()
        time.sleep(0.02)
    if calls > 45 and mode.read_text() == 'raise':
        raise ValueError('the scorer broke')
    return np.full(len(scores), np.nan) if calls > 45 and mode.read_text() == 'nan' else scores
score.higher_is_better = True
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and temporary files of its own."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def options(*more: Any) -> tuple[Any, ...]:
    return ("in/model.onnx", "--data", "in/data.npz", "--study", "s", *more)


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 300) -> Any:
    """What the condition gives once it is true, while the process lives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        assert process.poll() is None, "it ended too early"
        time.sleep(0.02)
    raise AssertionError("nothing happened")


def resumed(folder: Path, total: int) -> None:
    """Resume to the end; nothing may be left open or untold."""
    done = invoke("resume", "s")
    assert done.exit_code == 0, done.stderr
    assert len(stored(folder)) == total
    assert rows(folder, "select count(*) from trials where state = 'RUNNING'") == [(0,)]
    assert rows(folder, "select count(*) from bf_lease") == [(0,)]
    assert untold(folder) == []


def test_kill_9_at_random_moments(here: Path) -> None:
    write_inputs(here / "in", mobile_cnn())
    story = survive(here, options("--trials", 12, "--patience", "none", "--quiet"), "s", kills=4, trials=12, seed=1)
    assert story.main + story.evaluator == 4
    assert (story.lost, story.changed, story.duplicated, story.running_left, story.untold) == (0, 0, 0, 0, 0), story
    assert (story.evaluations, story.front_equal) == (12, True), story
    left = [path.name for path in Path(os.environ["TMPDIR"]).iterdir() if path.name.startswith("bitfront-run-")]
    assert left == []  # the folders of killed runs were swept up


@contextmanager
def holding(folder: Path, *more: Any) -> Iterator[subprocess.Popen[str]]:
    """A search in the middle of an evaluation, which lasts until the file `mode` says otherwise."""
    write_inputs(folder / "in", residual_cnn(channels=8))
    (folder / "mine.py").write_text(METRIC)
    (folder / "mode").write_text("hold")
    with started("search", *options("--metric", "mine:score", *more), cwd=folder) as process:
        wait_until((folder / "held").exists, process)
        yield process


def test_an_evaluator_killed_once_goes_on(here: Path) -> None:
    with holding(here, "--trials", 6) as process:
        evaluator = evaluator_of(process)
        assert evaluator is not None
        evaluator.kill()
        (here / "mode").write_text("go on")
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert len(stored(here)) == 6
    assert rows(here, "select count(*) from bf_evaluation where status = 'failed'") == [(0,)]


def test_an_evaluator_killed_again_and_again_ends_the_run(here: Path) -> None:
    write_inputs(here / "in", residual_cnn(channels=8))
    with started("search", *options("--trials", 12), cwd=here) as process:
        wait_until(lambda: len(stored(here)) >= 3, process)
        while process.poll() is None:
            evaluator = evaluator_of(process)
            if evaluator is not None:
                evaluator.kill()
            time.sleep(0.01)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    assert "died" in output
    assert "SIGKILL" in output
    assert "bitfront resume s" in output
    resumed(here, 12)


def interrupt_at(terminal: int, process: subprocess.Popen[bytes], *patterns: bytes) -> str:
    """Read a terminal until it has shown every pattern, press Ctrl-C there, and read on to the end."""
    seen, pressed = b"", False
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not piece:
            break
        seen += piece
        if not pressed and all(re.search(pattern, seen) for pattern in patterns):
            os.write(terminal, b"\x03")
            pressed = True
    process.wait(timeout=300)
    assert pressed, seen
    return seen.decode(errors="replace")


def test_ctrl_c_on_a_terminal(here: Path) -> None:
    """A real terminal: the live display is drawn, Ctrl-C reaches the whole process group, the screen is given back."""
    write_inputs(here / "in", residual_cnn(channels=8))
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        command("search", *options("--trials", 40)),
        cwd=here,
        env=environment({"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}),
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )
    os.close(inside)
    try:
        # The time left is shown once it can be known, on a busy machine evaluations after the first.
        screen = interrupt_at(
            terminal, process, rb"\d+ of 40 evaluations", rb"(?:about|at most) \w+ left", rb"best", rb"last"
        )
    finally:
        os.close(terminal)
        process.kill()
        process.wait()
    assert process.returncode == 130, screen
    assert "go on with: bitfront resume s" in screen
    assert "Traceback" not in screen
    for shown in ("best", "FP32", "last", "evaluations", "left"):
        assert shown in screen
    assert screen.rfind("\x1b[?25h") > screen.rfind("\x1b[?25l")  # the cursor is shown again
    assert rows(here, "select state from bf_study") == [("interrupted",)]
    assert rows(here, "select count(*) from bf_evaluation where status = 'running'") == [(0,)]
    assert invoke("resume", "s", "--trials", 6, "--quiet").exit_code == 0
    assert untold(here) == []


def test_sigterm_ends_a_run_as_ctrl_c_does(here: Path) -> None:
    with holding(here, "--trials", 6) as process:
        evaluator = evaluator_of(process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert output.endswith("interrupted\ngo on with: bitfront resume s\n")
    assert "Traceback" not in output
    if evaluator is not None:
        wait_for_end([evaluator.pid])
    assert not list(Path(os.environ["TMPDIR"]).glob("bitfront-run-*"))
    (here / "mode").write_text("go on")
    resumed(here, 6)


def test_ctrl_c_before_there_is_a_study(here: Path) -> None:
    write_inputs(here / "in")
    (here / "slow.py").write_text("import time\ndef data():\n    open('called', 'w').close()\n    time.sleep(60)\n")
    with started("search", "in/model.onnx", "--data", "slow:data", cwd=here) as process:
        wait_until((here / "called").exists, process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "resume" not in output  # there is nothing to resume
    assert not (here / DATABASE).exists()


def test_two_processes_cannot_run_or_delete_one_study_at_once(here: Path) -> None:
    write_inputs(here / "in", residual_cnn(channels=8))
    (here / "slow.py").write_text(worker_processes.METRIC)
    with started("search", *options("--trials", 100, "--metric", "slow:score"), cwd=here) as process:
        wait_until(lambda: len(stored(here)) >= 1, process)
        for arguments in (["resume", "s", "--trials", 110], ["delete", "s", "--yes"]):
            done = invoke(*arguments)
            assert (done.exit_code, "another process" in done.stderr) == (2, True), done
        assert json.loads(invoke("front", "s", "--json").stdout)["state"] == "running"
        assert json.loads(rows(here, "select config from bf_study")[0][0])["trials"] == 100
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    done = invoke("delete", "s", "--yes")
    assert done.exit_code == 0, done.stderr


def test_a_metric_that_fails_midway(here: Path) -> None:
    write_inputs(here / "in", residual_cnn(channels=8))
    (here / "mine.py").write_text(METRIC)
    searching = ("search", *options("--trials", 10, "--metric", "mine:score"))
    for verb, mode, says in ((searching, "raise", "the scorer broke"), (("resume", "s"), "nan", "nan")):
        (here / "mode").write_text(mode)
        (here / "calls").unlink(missing_ok=True)
        done = invoke(*verb)
        assert done.exit_code == 1, done
        assert "mine:score" in done.stderr
        assert says in done.stderr
        assert "bitfront resume s" in done.stderr
        assert "Traceback" not in done.stderr
        assert 2 <= len(stored(here)) < 10
        assert rows(here, "select count(*) from bf_evaluation where status <> 'ok'") == [(0,)]
    (here / "mode").write_text("mended")
    resumed(here, 10)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_while_engines_are_kept(here: Path, tiny_disk: Path) -> None:
    write_inputs(here / "in", residual_cnn(channels=8))
    kept = ("--artifacts", tiny_disk / "engines", "--keep-engines", "all")
    done = invoke("search", *options("--trials", 10, *kept))
    assert done.exit_code == 1, done
    assert "No space left" in done.stderr
    assert "bitfront resume s" in done.stderr
    assert "Traceback" not in done.stderr
    assert 1 <= len(stored(here)) < 10
    held = {digest for (digest,) in rows(here, "select digest from bf_artifact")}
    files = {name for name in tree(tiny_disk / "engines") if not name.endswith(".lock")}
    assert files == held  # nothing half-written
    again = invoke("resume", "s")
    assert (again.exit_code, "No space left" in again.stderr) == (1, True)
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True)
    resumed(here, 10)


def test_a_disk_that_fills_up_under_the_database(here: Path, tiny_disk: Path) -> None:
    write_inputs(here / "in", residual_cnn(channels=8))
    subprocess.run(["mount", "-o", "remount,size=1400k", str(tiny_disk)], check=True)
    storage = ("--storage", f"sqlite:///{tiny_disk / DATABASE}")
    elsewhere = ("--artifacts", here / "engines")
    done = invoke("search", *options("--trials", 60, *storage, *elsewhere))
    assert done.exit_code == 1, done
    assert "full" in done.stderr
    assert "Traceback" not in done.stderr
    before = stored(tiny_disk)
    subprocess.run(["mount", "-o", "remount,size=32m", str(tiny_disk)], check=True)
    total = len(before) + 2
    done = invoke("resume", "s", "--trials", total, *storage)
    assert done.exit_code == 0, done.stderr
    after = stored(tiny_disk)
    assert len(after) == total
    assert {digest: after[digest] for digest in before} == before
    assert untold(tiny_disk) == []
