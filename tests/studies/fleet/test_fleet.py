"""Worker processes of one host: started, watched, started again, ended; and `search --workers` as a whole."""

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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from search.errors import InputError, RunError
from studies.fleet import processes as fleet
from studies.fleet.processes import Fleet
from studies.options.slots import Slot, usable_cores
from studies.run_clock import clocked_run, limit_start
from studies.store.store import Store
from tests.support.command_line import child, command, environment, invoke, write_inputs
from tests.support.crashes.shared_study import assert_whole, finished, rows, tree, until
from tests.support.crashes.worker_processes import METRIC
from tests.support.forks.processes import evaluators_of, popen
from tests.support.networks import residual_cnn
from tests.support.paths import ROOT
from tests.support.servers.databases import postgresql_server, postgresql_url

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals and looks into /proc"),
    pytest.mark.slow,
]
needs_two_cores = pytest.mark.skipif(len(usable_cores()) < 2, reason="two workers need two cores")


# Small programs instead of workers ----------------------------------------------------------------------------------


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let workers run a small program, and be started again at once."""

    def become(code: str) -> None:
        monkeypatch.setattr(fleet, "_BOOT", f"import os, signal, sys, time\n{code}")
        monkeypatch.setattr(fleet, "_FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(fleet, "_LONGEST_PAUSE_S", 0.01)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

    return become


def run(folder: Path, *slots: Slot) -> tuple[Fleet, list[str], bool]:
    """Watch workers until all are over; the fleet, what it noted, and whether it was done."""
    notes: list[str] = []
    end = time.monotonic() + 300
    with Fleet("s", "sqlite:///none.db", slots or (Slot("cpu 0"),), folder, notes.append) as crew:
        try:
            while crew.look():
                assert time.monotonic() < end, notes
                time.sleep(0.01)
        except RunError as error:
            return crew, [*notes, str(error)], False
    return crew, notes, True


def pids_of(crew: Fleet) -> list[int]:
    return [post.process.pid for post in crew._posts if post.process is not None]


def test_a_worker_that_is_done(worker: Callable[..., None], tmp_path: Path) -> None:
    worker("print('half way', flush=True); print('done: 7 evaluations are done')")
    crew, notes, good = run(tmp_path)
    assert (crew.reason, notes, good) == ("7 evaluations are done", ["cpu 0: half way"], True)


def test_what_two_workers_say_alike_is_told_once(worker: Callable[..., None], tmp_path: Path) -> None:
    worker("print('the same'); print(os.environ['NAME'])")
    _, notes, _ = run(tmp_path, *(Slot(f"cpu {i}", environment={"NAME": f"I am {i}"}) for i in range(2)))
    assert sorted(note.partition(": ")[2] for note in notes) == ["I am 0", "I am 1", "the same"]


def test_a_worker_gets_the_url_in_its_environment_alone(worker: Callable[..., None], tmp_path: Path) -> None:
    shown = "open('/proc/self/cmdline').read().count('none' + '.db')"
    worker(f"print(os.environ['BITFRONT_STORAGE']); print(sys.argv); print({shown})")
    assert run(tmp_path)[1] == ["cpu 0: sqlite:///none.db", "cpu 0: ['-c', 'worker', 's']", "cpu 0: 0"]


def test_a_time_limit_of_workers_counts_from_the_start_of_their_parents_command(
    worker: Callable[..., None], tmp_path: Path
) -> None:
    worker(
        "sys.path.insert(0, os.environ['PYTHONPATH'])\nfrom studies.run_clock import clocked_run, limit_start\n"
        "with clocked_run(): print(limit_start())"
    )
    with clocked_run():
        began = limit_start()
        assert run(tmp_path)[1] == [f"cpu 0: {began}"]


def test_a_worker_is_bound_to_its_processors(worker: Callable[..., None], tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    worker("print(sorted(os.sched_getaffinity(0)))")
    assert run(tmp_path, Slot("cpu 0", frozenset({last})))[1] == [f"cpu 0: [{last}]"]


def test_a_worker_that_dies_is_started_again(worker: Callable[..., None], tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    worker(f"again = os.path.exists({mark!r}); open({mark!r}, 'w')\nagain or os.kill(os.getpid(), 9)")
    _, notes, good = run(tmp_path)
    assert (notes, good) == (["cpu 0: the worker ended with SIGKILL and is started again"], True)


def test_a_worker_that_dies_again_and_again_is_given_up(worker: Callable[..., None], tmp_path: Path) -> None:
    worker("print('error: no room', flush=True); sys.exit(1)")
    _, notes, good = run(tmp_path)
    assert not good
    assert sum("is started again" in note for note in notes) == 5
    assert notes[-2:] == [
        "cpu 0: the worker ended with exit code 1 for the 6th time, so it is not started again",
        "running study 's': every worker of this host has ended:\n  cpu 0: exit code 1: error: no room",
    ]


def test_a_worker_that_finds_a_limit_out_of_reach_is_not_started_again(
    worker: Callable[..., None], tmp_path: Path
) -> None:
    worker("print('unreachable: FP32 itself misses it', flush=True); sys.exit(1)")
    _, notes, good = run(tmp_path, Slot("cpu 0"), Slot("cpu 1"))
    assert not good
    assert sorted(notes[:-1]) == ["cpu 0: the worker ended", "cpu 1: the worker ended"]
    assert notes[-1] == "FP32 itself misses it"


@pytest.mark.parametrize("code", [2, 130])
def test_a_worker_that_is_refused_or_interrupted_is_not_started_again(
    code: int, worker: Callable[..., None], tmp_path: Path
) -> None:
    worker(f"sys.exit({code} if os.environ['NAME'] == 'a' else 0)")
    _, notes, good = run(tmp_path, Slot("gpu 0", environment={"NAME": "a"}), Slot("gpu 1", environment={"NAME": "b"}))
    assert (notes, good) == ([f"gpu 0: the worker ended with exit code {code} and is not started again"], True)
    if code == 2:
        with pytest.raises(InputError, match="every worker of this host was refused:\n  gpu 0: exit code 2"):
            run(tmp_path, Slot("gpu 0", environment={"NAME": "a"}))
    else:
        assert not run(tmp_path, Slot("gpu 0", environment={"NAME": "a"}))[2]


def test_a_worker_that_was_able_to_work_is_started_again_though_it_is_refused(
    worker: Callable[..., None], tmp_path: Path
) -> None:
    """As when its database is just being restarted."""
    count = str(tmp_path / "count")
    worker(f"n = os.path.exists({count!r}) and len(open({count!r}).read()) or 0; open({count!r}, 'a').write('x')")
    code = fleet._BOOT + "\nsys.exit((1, 2, 0)[n])"
    worker(code)
    _, notes, good = run(tmp_path)
    assert (len(notes), good) == (2, True)
    assert notes[1] == "cpu 0: the worker ended with exit code 2 and is started again"


def test_a_worker_waits_for_a_database_that_is_restarted_as_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not refused as by a wrong address: its parent was there a moment ago."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with postgresql_server() as server:
        Store.open(server.url, create=True).close()
        server.stop()
        with Fleet("s", server.url, [Slot("cpu 0")], tmp_path, print) as crew:
            end = time.monotonic() + 6
            while time.monotonic() < end:  # longer than a worker takes to find that nobody is there
                assert crew.look()
                time.sleep(0.1)
            assert pids_of(crew)
            server.start()
            with pytest.raises(InputError, match="exit code 2: error: There is no study 's'"):
                until(lambda: not crew.look())


def test_workers_that_do_not_listen_are_killed(
    worker: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_END_S", 0.2)
    worker("signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)")
    notes: list[str] = []
    with Fleet("s", "sqlite:///none.db", (Slot("a"), Slot("b")), tmp_path, notes.append) as crew:
        until(lambda: crew.look() and notes)
        pids = pids_of(crew)
        assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


STYLES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")  # of a terminal
PARENT = """
import sys, time
from pathlib import Path
from studies.fleet import processes as fleet
from studies.options.slots import Slot
fleet._BOOT = '''
import json, os, sys, time
sys.path[:] = json.loads(os.environ.pop('BITFRONT_PATH'))
from studies.fleet import processes as fleet
assert fleet.follow()
print('up', os.getpid(), flush=True)
time.sleep(600)
'''
note = lambda text: print(text, flush=True)
with fleet.Fleet('s', 'sqlite:///none.db', (Slot('a'), Slot('b')), Path(sys.argv[1]), note) as crew:
    while crew.look():
        time.sleep(0.05)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(number: signal.Signals, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment()
    )
    assert parent.stdout is not None
    with parent:
        pids = [int(parent.stdout.readline().split()[-1]) for _ in range(2)]
        parent.send_signal(number)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


# Real searches --------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with inputs, and temporary files of its own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    write_inputs(tmp_path / "here" / "in", residual_cnn(channels=8))
    return tmp_path / "here"


@pytest.fixture
def url() -> str:
    return postgresql_url()


def search(url: str, folder: Path, *more: Any) -> tuple[Any, ...]:
    where = ("--storage", url, "--artifacts", folder / "engines")
    return ("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", *where, *more)


@contextmanager
def started(*arguments: Any, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command in a session of its own, all of which is gone at the end."""
    process = popen(
        command(*arguments),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        below = tree(process.pid)
        process.kill()
        for left in below:
            if left.is_running():
                left.kill()
        process.communicate(timeout=300)


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; nothing of one that has just ended."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def workers(pid: int) -> list[psutil.Process]:
    return [found for found in tree(pid) if "worker" in words_of(found)]


@needs_two_cores
def test_two_workers_and_one_that_is_killed(here: Path, url: str) -> None:
    (here / "slow.py").write_text(METRIC)
    more = ("--trials", 14, "--patience", "none", "--workers", 2, "--lease", "2s", "--metric", "slow:score")
    who = "select count(distinct worker) from bf_evaluation where status <> 'running'"
    with started(*search(url, here, *more), cwd=here) as process:
        until(lambda: finished(url) >= 3 and rows(url, who) == [(2,)])
        first = workers(process.pid)
        affinities = {tuple(found.cpu_affinity()) for found in first}
        assert sorted(map(len, affinities)) == [1, 1]
        assert all("s3cret" not in " ".join(words_of(found)) for found in tree(process.pid))
        first[0].kill()
        output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert re.search(r"cpu \d: the worker ended with SIGKILL and is started again", output)
    assert "Traceback" not in output
    assert "; 14 evaluations are done." in output or "\n14 evaluations are done." in output
    assert "Best, the knee of the front: trial " in output
    assert len(re.findall(r"^\d+/14 trial \d+ by w-", output, re.MULTILINE)) == 14
    assert "s3cret" not in output
    assert_whole(url, 14)
    assert len(rows(url, "select distinct worker from bf_evaluation")) >= 2
    assert len(rows(url, "select name from bf_worker")) == 3
    assert not list(Path(os.environ["TMPDIR"]).glob("bitfront-run-*"))
    status = json.loads(child("status", "s", "--json", cwd=here, env={"BITFRONT_STORAGE": url}).stdout)
    assert (status["state"], status["targets"][0]["evaluations"]) == ("done", 14)


@needs_two_cores
def test_a_limit_that_fp32_itself_misses_ends_all_workers(here: Path, url: str) -> None:
    (here / "half.py").write_text(
        "import numpy as np\n\n\ndef score(outputs, labels):\n    return np.arange(len(labels)) % 2.0\n"
    )
    more = ("--trials", 14, "--workers", 2, "--metric", "half:score", "--accuracy-limit", "0.9")
    with started(*search(url, here, *more), cwd=here) as process:
        output, _ = process.communicate(timeout=400)
    assert process.returncode == 1, output
    assert "FP32 itself misses --accuracy-limit" in output
    assert "--accuracy-limit VALUE" in output
    assert "started again" not in output, output
    assert finished(url) <= 2  # what the other worker had begun meanwhile
    assert rows(url, "select state from bf_study") == [("interrupted",)]
    assert rows(url, "select count(*) from bf_evaluation where status = 'running'") == [(0,)]
    assert rows(url, "select count(*) from bf_worker where ended_at is null") == [(0,)]


@needs_two_cores
def test_a_parent_that_is_killed_leaves_nothing_running(here: Path, url: str) -> None:
    with started(*search(url, here, "--trials", 100, "--workers", 2), cwd=here) as process:
        until(lambda: finished(url) >= 2 and len(evaluators_of(process.pid)) == 2)  # one of each worker
        below = tree(process.pid)
        process.kill()
        _, left = psutil.wait_procs(below, timeout=300)
        assert left == []
    assert rows(url, "select count(*) from bf_evaluation where status = 'running'") == [(0,)]
    assert {state for (state,) in rows(url, "select state from bf_worker")} == {"ended"}
    total = finished(url) + 2
    done = child("resume", "s", "--trials", total, "--workers", 2, "--storage", url, "--quiet", cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_whole(url, total)


@needs_two_cores
def test_ctrl_c_on_a_terminal_ends_all_workers(here: Path, url: str) -> None:
    (here / "slow.py").write_text(METRIC)
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        command(*search(url, here, "--trials", 120, "--workers", 2, "--metric", "slow:score")),
        cwd=here,
        env=environment({"TERM": "xterm", "COLUMNS": "160", "LINES": "40"}),
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )
    os.close(inside)
    seen, below = b"", []
    try:
        while True:
            try:
                seen += os.read(terminal, 65536)
            except OSError:  # Linux says so when the other side is closed
                break
            evaluators = evaluators_of(process.pid)
            if (
                not below
                and len(evaluators) == 2
                and re.search(rb"evaluations +[1-9]\d* of 120", STYLES.sub(b"", seen))
            ):
                below = tree(process.pid)
                os.write(terminal, b"\x03")
        process.wait(timeout=300)
    finally:
        os.close(terminal)
        process.kill()
        process.wait()
    screen = seen.decode(errors="replace")
    assert process.returncode == 130, screen
    for shown in ("heartbeat", "searching", "an hour", "go on with: bitfront resume s --workers 2 --storage"):
        assert shown in screen
    assert "Traceback" not in screen
    assert "s3cret" not in screen
    assert below, "two workers with an evaluator each"
    assert psutil.wait_procs(below, timeout=300)[1] == []
    assert rows(url, "select count(*) from bf_evaluation where status = 'running'") == [(0,)]
    assert rows(url, "select state from bf_study") == [("interrupted",)]


def test_more_workers_on_sqlite_are_refused_before_anything_is_made(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for more in (("--workers", 2), ("--gpus", "0,1")):
        done = invoke(*search("sqlite:///s.db", here, *more))
        assert done.exit_code == 2, done.output
        assert "only one process at a time may run a study" in done.stderr
        assert "postgresql+psycopg://" in done.stderr
        assert {path.name for path in here.iterdir()} == {"in"}


def test_one_worker_on_sqlite(here: Path) -> None:
    done = child(*search("sqlite:///s.db", here, "--workers", 1, "--trials", 4), cwd=here)
    assert done.returncode == 0, done.stderr
    assert "4 evaluations are done." in done.stdout


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--workers", 9999), "--workers"),
        (("--workers", 1000), "expected at most one worker per 1 core"),
        (("--gpus", "all", "--workers", 1), "were both given"),
        (("--gpus", "1,1"), "twice"),
        (("--gpus", "all"), "hides every GPU"),
    ],
)
def test_crews_that_cannot_be(more: tuple[Any, ...], says: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = invoke(*search("postgresql+psycopg://nobody@127.0.0.1:1/x", here, *more))
    assert (done.exit_code, says in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert {path.name for path in here.iterdir()} == {"in"}
