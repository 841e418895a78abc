"""How quickly large studies answer: `bitfront front` on 10,000 evaluations, `bitfront resume` on 1,000.

The 10,000 are made up: 38 groups, with audit, samples and per-sample scores of real sizes, in SQLite. The 1,000 stand
on a short real search of the example, so that it can really go on; Optuna's study holds the 1,000 trials too.
Times of resume and search run from the start of the command to what is polled for in the database.

usage: python -m benchmarks.figures.database [--front 10000] [--resume 1000] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from benchmarks import ROOT, large_study, synthetic
from benchmarks.example import BATCH, DATA, MODEL, load_text
from bitfront import verbs
from studies.options.read_options import read_config
from studies.store.store import Store
from studies.trials.ledger import evaluation_digest

GROUPS = [f"g{number:03}" for number in range(38)]  # as many as the example has
REPEATS = 3
FIRST = 4  # evaluations of the real search that the 1,000 stand on


def main(front: int = 10_000, resume: int = 1_000, keep: Path | None = None) -> dict[str, float]:
    """Seconds: `front_s` of the command, `front_call_s` of the function, `front_import_s` of a command that opens
    no database; `resume_s` in all and `resume_beyond_s` more than a fresh search needs to check the same inputs.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = front_times(folder, front) | resume_times(folder, resume)
    print(f"medians of {REPEATS}; {load_text()}")
    return found


# -- front ---------------------------------------------------------------------------------------------------------


def front_times(folder: Path, count: int) -> dict[str, float]:
    path = folder / "front.db"
    url, start = f"sqlite:///{path}", time.perf_counter()
    with Store.open(url, create=True) as store:
        target = large_study.write_study(store, "digits", GROUPS)
        rows = large_study.made_up(GROUPS, count, samples=synthetic.SAMPLES)
        large_study.fill(store, target, rows, range(count), lambda mix: evaluation_digest(mix, "", {}))
    print(f"{count} evaluations x {len(GROUPS)} groups: {path.stat().st_size / 2**20:.0f} MiB", end=", ")
    print(f"written in {time.perf_counter() - start:.0f} s")
    found = {
        "front_s": median_of(lambda: run("front", "digits", "--storage", url)),
        "front_import_s": median_of(lambda: run("studies", "--help")),
        "front_call_s": median_of(lambda: verbs.front("digits", storage=url)),
    }
    print(f"front: command {found['front_s']:.2f} s (of it {found['front_import_s']:.2f} s to start)", end=", ")
    print(f"function {found['front_call_s']:.2f} s", flush=True)
    return found


# -- resume --------------------------------------------------------------------------------------------------------


def resume_times(folder: Path, count: int) -> dict[str, float]:
    url = f"sqlite:///{folder / 'resume.db'}"
    options = {"model": str(MODEL), "data": str(DATA), "max-drop": "1%", "batch": str(BATCH), "study": "digits"}
    verbs.search(read_config({**options, "trials": str(FIRST), "storage": url}))
    start = time.perf_counter()
    large_study.fill_study(url, "digits", count)
    print(f"{count} evaluations and trials to resume, written in {time.perf_counter() - start:.0f} s")
    resumed = median_of(lambda: again(folder, count + 1))
    given = [f"--{name}={value}" for name, value in options.items() if name != "model"]
    checked = median_of(lambda: fresh(folder, _STUDY, MODEL, *given))
    print(f"resume: {resumed:.2f} s until a new candidate is evaluated", end="; ")
    print(f"a fresh search checks the same inputs in {checked:.2f} s", flush=True)
    return {"resume_s": resumed, "resume_beyond_s": resumed - checked, "search_check_s": checked}


_STUDY = "SELECT count(*) FROM bf_study"
_RUNNING = "SELECT count(*) FROM bf_evaluation WHERE status = 'running'"


# -- commands ------------------------------------------------------------------------------------------------------


def median_of(measured: Callable[[], Any]) -> float:
    """Median of a few; seconds as the callable gives them, else those it took."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        given = measured()
        seconds.append(given if isinstance(given, float) else time.perf_counter() - start)
    return sorted(seconds)[REPEATS // 2]


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "bitfront", *map(str, arguments)]


def run(*arguments: Any) -> None:
    done = subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arguments}: exit {done.returncode}\n{done.stderr}")


def again(folder: Path, trials: int) -> float:
    """Seconds of resuming a copy of the study until a new candidate is evaluated."""
    name = f"again-{time.time_ns()}.db"
    shutil.copy(folder / "resume.db", folder / name)
    shutil.copytree(folder / "resume.db.artifacts", folder / f"{name}.artifacts")
    return seconds_until(folder / name, _RUNNING, "resume", "digits", "--trials", trials)


def fresh(folder: Path, query: str, *arguments: Any) -> float:
    """Seconds of a new search until a query counts something."""
    path = folder / f"fresh-{time.time_ns()}.db"
    return seconds_until(path, query, "search", *arguments)


def seconds_until(path: Path, query: str, *arguments: Any) -> float:
    """Start a command on a database; seconds until the query counts something; then the command is interrupted."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        # A session of its own: Ctrl-C goes to it alone, and its evaluator process is its own to end.
        child = subprocess.Popen(
            command(*arguments, "--storage", f"sqlite:///{path}"),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            while not _count(path, query):
                if child.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"{arguments}: exit {child.returncode}\n{log.read().decode()}")
                time.sleep(0.005)
            return time.perf_counter() - start
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(timeout=60)


def _count(path: Path, query: str) -> int:
    if path.exists():
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
            return int(reader.execute(query).fetchone()[0])
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--front", type=int, default=10_000)
    parser.add_argument("--resume", type=int, default=1_000)
    parser.add_argument("--keep", type=Path, help="folder for the databases, to look at")
    arguments = parser.parse_args()
    main(arguments.front, arguments.resume, arguments.keep)
