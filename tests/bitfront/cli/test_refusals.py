"""What the system refuses, and what is ended in the middle: one message, the right exit code, nothing left."""

from __future__ import annotations

import csv
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sqlalchemy.engine import make_url

from search.forecast.quality import Quality
from studies.trials.forecasts import error_text
from tests.support.command_line import (
    DATABASE,
    command,
    copy_finished,
    environment,
    finished,
    invoke,
    ok,
    run_sql,
    tree,
    write_inputs,
)
from tests.support.forks.processes import popen
from tests.support.networks import Net, plain_session, save

pytestmark = pytest.mark.slow

LONG = "x" * 300


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose default database holds the finished study `small`."""
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    return tmp_path


def refused(*arguments: Any, says: str, code: int = 2) -> str:
    """Run a command that must fail with one message and change nothing here."""
    before = tree(Path.cwd())
    result = invoke(*arguments)
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    assert result.stderr.count("error: ") == 1
    assert says in result.stderr
    assert tree(Path.cwd()) == before
    return result.stderr


def search(*arguments: Any) -> tuple[Any, ...]:
    inputs = finished() / "in"
    return ("search", inputs / "model.onnx", "--data", inputs / "data.npz", "--trials", 2, "--quiet", *arguments)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [("report", "small", "--out"), ("sensitivity", "small", "--plot")], ids=lambda given: given[0]
)
def test_a_pipe_is_not_replaced_by_a_file(here: Path, arguments: tuple[str, ...]) -> None:
    os.mkfifo(here / "pipe")
    before = (here / "pipe").stat()
    result = invoke(*arguments, "pipe")
    assert result.exit_code == 2
    assert "pipe: expected a file in an existing folder, got no regular file" in result.stderr
    assert (here / "pipe").stat() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demo", "--out", DATABASE), "it is a file"),
        (("demo", "--out", LONG), "File name too long"),
        (("report", "small", "--out", LONG), "File name too long"),
        (("export", "small", "--out", LONG), "File name too long"),
        (("sensitivity", "small", "--plot", LONG), "File name too long"),
        (("front", "small", "--storage", f"sqlite:///{LONG}"), LONG),
    ],
)
def test_paths_that_cannot_be(here: Path, arguments: tuple[str, ...], says: str) -> None:
    refused(*arguments, says=says)


def test_a_page_of_the_database_that_is_lost(here: Path) -> None:
    with sqlite3.connect(DATABASE) as connection:
        (page,) = connection.execute("select rootpage from sqlite_master where name = 'bf_evaluation'").fetchone()
        (size,) = connection.execute("pragma page_size").fetchone()
        connection.execute("pragma journal_mode = delete")
    connection.close()
    with Path(DATABASE).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))
    assert "Restore a copy of it" in refused("front", "small", says="is damaged: database disk image is malformed")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "small", "0", "--against", "1"), "--against is for layers' times. Give --profile too"),
        (("show", "small", "0", "--again"), "--again is for layers' times. Give --profile too"),
        (("front", "small", "--sort", "loss"), "Give --all with it"),
        (("front", "small", "--sort", "loss", "--json"), "Give --all with it"),
    ],
)
def test_options_that_would_do_nothing(here: Path, arguments: tuple[str, ...], says: str) -> None:
    refused(*arguments, says=says)


@pytest.mark.parametrize("way", ["delete", "replace"])
def test_a_study_with_a_limit_of_a_package_that_is_gone_can_go(here: Path, way: str) -> None:
    run_sql("update bf_study set config = json_insert(config, '$.max_build_time_s', 30.0)")
    refused("front", "small", says="got max_build_time_s")
    if way == "delete":
        ok("delete", "small", "--yes")
        assert "no study yet" in ok("status")
    else:
        ok(*search("--study", "small", "--replace"))
        assert "small" in ok("status", "small")


def test_a_metric_that_has_to_declare_something_else_is_not_to_be_resumed(here: Path) -> None:
    """FP32 scores 0 everywhere, which is taken for a share, and INT8 does not."""
    with np.load(finished() / "in/data.npz") as stored:
        data = dict(stored)
    session = plain_session(onnx.load(finished() / "in/model.onnx"))
    (name,) = (each.name for each in session.get_inputs())
    size = session.get_inputs()[0].shape[0]
    rows = [session.run(None, {name: data[name][at : at + size]})[0] for at in range(0, len(data[name]), size)]
    np.savez("own.npz", **{name: data[name]}, labels=np.concatenate(rows))
    Path("far.py").write_text(
        "import numpy as np\n\n\ndef far(outputs, labels):\n    (y,) = outputs.values()\n"
        "    return np.rint(1e4 * np.abs(y - labels).max(axis=1))\n",
        encoding="utf-8",
    )
    result = invoke("search", finished() / "in/model.onnx", "--data", "own.npz", "--metric", "far.py:far",
                    "--study", "new", "--trials", 4)  # fmt: skip
    assert result.exit_code == 1, result.output
    assert "begin the study again with --replace" in result.stderr
    assert "go on with" not in result.stderr


def test_a_float_model_beside_an_engine(here: Path) -> None:
    model = finished() / "in/model.onnx"
    rows = list(csv.DictReader(ok("inspect", model, "--csv").splitlines()))
    assert len(rows) > 2
    assert {"group", "node", "may", "why_not"} <= rows[0].keys()
    refused("inspect", model, "--batch", "2", "--against", model, says="with --against or --profile files are engines")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_place_for_engines_where_no_folder_can_be_made(here: Path) -> None:
    refused(*search("--study", "new", "--artifacts", "/proc/x"), says="/proc/x")


# -- standard streams --------------------------------------------------------------------------------------------------


def plain(*arguments: Any) -> list[str]:
    """What starts a verb that measures nothing: it need not be made quick."""
    return [sys.executable, "-c", "from bitfront.cli import main as cli; cli.main()", *arguments]


def run(*arguments: Any, redirected: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """A command, its streams redirected as a shell does."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *plain(*arguments)],
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("front", "small"), ("front", "small", "--json")])
def test_standard_output_that_is_full(here: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, redirected=">/dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "error: reading or writing: No space left on device. Correct that, then try again.\n",
    )


@pytest.mark.parametrize("arguments", [("front", "small"), ("front", "small", "--json")])
def test_standard_output_that_is_closed_is_not_missed(here: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, redirected=">&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_enough(here: Path) -> None:
    process = subprocess.Popen(
        plain("front", "small", "--json"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=400) == 1


def test_nobody_can_be_asked_where_standard_input_is_closed(here: Path) -> None:
    done = run("delete", "small", redirected="<&-")
    assert done.returncode == 2
    assert "Expected a terminal to ask on. Add --yes to do it without asking." in done.stderr
    assert "Traceback" not in done.stderr


def test_an_encoding_that_lacks_characters(here: Path) -> None:
    done = run("front", "small", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout
    assert "?" not in ok("front", "small")


# -- signals -----------------------------------------------------------------------------------------------------------


def ended(process: subprocess.Popen[str], number: int, when: Callable[[], bool]) -> tuple[int, str]:
    """Send a signal once something is so; exit code and what was printed."""
    deadline = time.monotonic() + 300
    while not when():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=400)
    return process.returncode, printed


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return popen(words, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_sigterm_leaves_no_half_written_export(here: Path) -> None:
    before = {path.name for path in here.iterdir()}
    words = command("export", "small", "--trial", "1", "--out", "engine")
    words[2] = (
        f"import time; from studies.export import export; export.check_outputs = lambda *_: time.sleep(60)\n{words[2]}"
    )
    process = start(*words, cwd=here)
    code, printed = ended(process, signal.SIGTERM, lambda: any(here.glob(".engine-*/*")))
    assert (code, "Traceback" in printed) == (130, False)
    assert printed.endswith("interrupted\n")
    assert {path.name for path in here.iterdir()} == before


def test_ctrl_c_while_modules_are_imported(tmp_path: Path) -> None:
    """A module of the verb takes its time, and says when it has begun to."""
    code = (
        "import importlib, time; from pathlib import Path; from bitfront.cli import main as cli\n"
        "def slow(name):\n    Path('begun').touch()\n    time.sleep(60)\n"
        "importlib.import_module = slow\ncli.main()"
    )
    process = start(sys.executable, "-c", code, "status", cwd=tmp_path)
    assert ended(process, signal.SIGINT, (tmp_path / "begun").exists) == (130, "interrupted\n")


# -- words -------------------------------------------------------------------------------------------------------------


def test_names_between_colons_are_no_emoji(here: Path) -> None:
    assert "':smile:'" in refused("front", ":smile:", says="smile")


def test_commands_to_copy_are_quoted_for_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = f"sqlite:///{tmp_path}/it's here.db"
    inputs = finished() / "in"
    options = ("--study", "a; b", "--storage", storage, "--trials", 2, "--max-drop", "90%")
    said = ok("search", inputs / "model.onnx", "--data", inputs / "data.npz", *options)
    line = next(line for line in said.splitlines() if line.startswith("Export it: "))
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {line.partition(': ')[2]}"], capture_output=True, text=True)
    *most, where = words.stdout.splitlines()
    assert most == ["bitfront", "export", "a; b", "--out", "engine/", "--storage"]
    assert make_url(where) == make_url("sqlite:///it's here.db"), "the database is named as seen from this folder"
    assert "a; b" in ok("status", "--storage", where)
    again = invoke("search", inputs / "model.onnx", "--data", inputs / "data.npz", *options)
    assert again.exit_code == 2
    assert f"`bitfront resume 'a; b' --storage {shlex.quote(where)}`" in again.stderr


def test_a_database_file_takes_no_options(here: Path) -> None:
    refused("front", "small", "--storage", f"sqlite:///{DATABASE}?mode=ro", says="Leave out the ?")
    refused(*search("--storage", "sqlite:///new.db?mode=ro"), says="options, mode")


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none(here: Path, port: int) -> None:
    refused("dashboard", "--port", port, says=f"--port {port}: expected a port from 1 to 65535")


def test_a_lease_that_no_worker_outlives(here: Path) -> None:
    refused(*search("--study", "new", "--lease", "1e9d"), says="--lease: expected at most 7d")


def test_an_error_relative_to_nothing_is_not_told() -> None:
    assert error_text(Quality(0.5, 3.86e290, 1.0, 1.0, 9)) == "–"
    assert error_text(Quality(0.5, float("nan"), 1.0, 1.0, 9)) == "–"
    assert error_text(Quality(0.5, 0.25, 1.0, 1.0, 9)) == "25 %"


# -- a search that cannot even begin -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "says"),
    [
        ("raise ValueError('no')", "ValueError on samples"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("os._exit(3)", "died (exit code 3)"),
    ],
)
def test_a_metric_that_cannot_be_tried_leaves_nothing_to_resume(here: Path, score: str, says: str) -> None:
    (here / "scores.py").write_text(f"import os, sys\ndef own(outputs, labels): {score}\n")
    message = refused(*search("--study", "new", "--metric", "scores:own"), says=says)
    assert "resume" not in message


def test_too_little_memory_to_begin_leaves_nothing_to_resume(here: Path) -> None:
    message = refused(*search("--study", "new", "--evaluation-memory", "10MB"), says="memory")
    assert "resume" not in message


def test_a_wrong_label_among_the_final_ones_is_found_before_anything_is_made(here: Path) -> None:
    write_inputs(here / "in")
    with np.load(here / "in/data.npz") as stored:
        arrays = dict(stored)
    arrays["labels"][-1] = 10
    np.savez(here / "apart.npz", **arrays)
    refused(
        *search("--study", "new", "--final-data", "apart.npz"), says="final samples: sample 59: metric top1: label 10"
    )


@pytest.mark.parametrize("more", [(), ("--workers", 1)])
def test_a_study_that_calibration_refuses_is_taken_back(here: Path, more: tuple[Any, ...]) -> None:
    n = Net(0)
    n.head(n.conv(n.op("Sqrt", ["image"], "root"), "conv", 3, 8), 8)
    save(n.model([4, 3, 8, 8], "logits", [4, 10]), here / "roots.onnx")
    images = np.abs(np.random.default_rng(0).standard_normal((16, 3, 8, 8))).astype(np.float32)
    for name, sign in (("good", 1), ("bad", -1)):
        np.savez(f"{name}.npz", image=sign * images, labels=np.zeros(16, np.int64))
    before, kept = ok("status", "--json"), files(here)
    words = ("search", "roots.onnx", "--data", "good.npz", "--trials", 2, "--study", "again")
    result = invoke(*words, *more, "--calibration-data", "bad.npz")
    assert result.exit_code == 2, result.output
    assert "output of Sqrt node 'root', holds NaN" in result.stderr
    assert ok("status", "--json") == before
    assert files(here) == kept
    ok(*words)


def files(folder: Path) -> set[str]:
    return {name for name in tree(folder) if not name.endswith(".lock")}
