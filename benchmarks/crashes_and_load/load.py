"""Large studies in PostgreSQL, and many workers on one: how quickly they answer, and what they take.

    front, status   of 100,000 evaluations x 50 groups
    a trial         ask, begin, record and tell in a warm worker of a study with 10,000 evaluations, by sampler; and
                    what that worker takes to start, in time and memory
    sleepers        64 workers whose evaluations only sleep: evaluations a second, errors, connections

The server is a PostgreSQL of its own (the pgserver wheel), on the same machine. Evaluations are made up; the study of
10,000 stands on a real one, calibrated and with real sensitivities, so that a real worker can join it.

usage: python -m benchmarks.crashes_and_load.load [--only front trial sleepers]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from sqlalchemy import create_engine, text

from benchmarks import ROOT, large_study
from benchmarks.example import load_text
from benchmarks.figures.bookkeeping import replaying
from bitfront import verbs
from studies.options.read_options import read_config
from studies.store.store import Store
from studies.trials.ledger import evaluation_digest
from tests.support.command_line import write_inputs
from tests.support.networks import Net
from tests.support.servers.databases import Server

GROUPS = 50
REPEATS = 5
FIRST = 4  # evaluations of the real search
NEW = 25  # trials that a warm worker is timed over
SAMPLERS = ("guided", "random")
SLEEP_S = 1.0
ROUNDS = {"guided": 2, "random": 5}  # evaluations of each sleeping worker
TRACEBACK = "Traceback (most recent call last):\n"
PARTS = ("front", "trial", "sleepers")


def main(parts: tuple[str, ...] = PARTS, evaluations: int = 100_000, trials: int = 10_000, workers: int = 64) -> Any:
    """Seconds and milliseconds by name; see the functions of the parts."""
    found: dict[str, float] = {}
    server = Server("postgresql")
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if "front" in parts:
                found |= front_times(server.new_url(), evaluations)
            if {"trial", "sleepers"} & set(parts):
                url = base_study(server, folder)
            if "sleepers" in parts:
                for sampler in SAMPLERS:
                    found |= sleepers(copied(server, url, sampler), sampler, workers)
            if "trial" in parts:
                large_study.fill_study(url, "s", trials)
                for sampler in SAMPLERS:
                    found |= trial_times(copied(server, url, sampler), sampler, trials)
    finally:
        server.close()
    print(load_text())
    return found


# -- front and status --------------------------------------------------------------------------------------------------


def front_times(url: str, count: int) -> dict[str, float]:
    """`front_s`, `status_s` of the commands, `…_call_s` of the functions, `start_s` of a command without a database."""
    start = time.perf_counter()
    groups = [f"g{number:03}" for number in range(GROUPS)]
    with Store.open(url, create=True) as store:
        target = large_study.write_study(store, "large", groups)
        rows = large_study.made_up(groups, count)
        large_study.fill(store, target, rows, range(count), lambda assignment: evaluation_digest(assignment, "", {}))
    print(f"{count} evaluations x {GROUPS} groups: {size_mib(url):.0f} MiB, written in", end=" ")
    print(f"{time.perf_counter() - start:.0f} s", flush=True)
    found = {"start_s": best_of(lambda: run(url, "--version"))}
    for verb, call in (("front", read_front), ("status", verbs.status)):
        found[f"{verb}_s"] = best_of(lambda verb=verb: run(url, verb, "large"))  # type: ignore[misc]
        found[f"{verb}_call_s"] = best_of(lambda call=call: call("large", storage=url))  # type: ignore[misc]
        print(f"{verb}: command {found[f'{verb}_s']:.2f} s, function {found[f'{verb}_call_s']:.2f} s", flush=True)
    print(f"of a command {found['start_s']:.2f} s are Python's start", flush=True)
    return found


def read_front(name: str, storage: str) -> None:
    found = verbs.front(name, storage=storage)
    now, mixes = found.standing, found.mixes
    assert [mixes[int(now.table.id[row])] for row in now.measures.fastest_first(now.judgement.front)]


def best_of(measured: Callable[[], Any]) -> float:
    """Median of a few, in seconds."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        measured()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[REPEATS // 2]


def run(url: str, *arguments: str) -> None:
    environment = {**os.environ, "BITFRONT_STORAGE": url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bitfront", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)


def size_mib(url: str) -> float:
    engine = create_engine(url)
    with engine.connect() as connection:
        size = connection.scalar(text("select pg_database_size(current_database())"))
    engine.dispose()
    return float(size) / 2**20


# -- a study to join ---------------------------------------------------------------------------------------------------


def network(groups: int = GROUPS) -> onnx.ModelProto:
    """A chain of convolutions and a Gemm, small, so that a real search of it is quick."""
    n = Net(3)
    x = n.op("Relu", [n.conv("image", "conv.0", 3, 8)], "relu.0")
    for i in range(1, groups - 1):
        x = n.op("Relu", [n.conv(x, f"conv.{i}", 8, 8)], f"relu.{i}")
    n.head(x, 8)
    return n.model([4, 3, 8, 8], "logits", [4, 10])


def base_study(server: Server, folder: Path) -> str:
    """A database with a short search of a network of 50 groups, by the guided sampler."""
    url = server.new_url()
    write_inputs(folder, network())
    options = {"model": str(folder / "model.onnx"), "data": str(folder / "data.npz"), "study": "s", "max-drop": "5%"}
    options |= {"trials": str(FIRST), "storage": url, "artifacts": str(folder / "engines"), "keep-engines": "none"}
    with replaying():  # as what follows, or no model would fit both
        verbs.search(read_config(options))
    return url


def copied(server: Server, url: str, sampler: str) -> str:
    """A copy of the database, whose study has this sampler."""
    name = f"copy_{sampler}_{time.time_ns()}"
    server._execute(f"CREATE DATABASE {name} TEMPLATE {url.rpartition('/')[2]}")
    with Store.open(server.url_of(name)) as store:
        study = store.studies.load("s")
        store.studies.update(study.id, config={**study.config, "sampler": sampler})
    return server.url_of(name)


# -- workers, in processes of their own --------------------------------------------------------------------------------


def trial_times(url: str, sampler: str, count: int) -> dict[str, float]:
    """`SAMPLER.trial_ms`, of it ask, begin, record and tell; `.loop_ms` with all that a worker does between two
    evaluations; `.cold_s` from the start of the process to its first proposal, `.memory_mib` at its end.
    """
    measured = child("warm", url, count + NEW)
    parts = ", ".join(f"{name} {measured[f'{name}_ms']:.0f}" for name in ("ask", "begin", "record", "tell"))
    checked, cold, mib = (measured[name] for name in ("checked_s", "cold_s", "memory_mib"))
    print(f"{sampler}, {count} evaluations: {measured['trial_ms']:.0f} ms a trial ({parts}), ", end="")
    print(f"{measured['loop_ms']:.0f} ms between two evaluations; inputs checked after {checked:.1f} s, ", end="")
    print(f"first proposal after {cold:.1f} s; {mib:.0f} MiB", flush=True)
    return {f"{sampler}.{name}": value for name, value in measured.items()}


def sleepers(url: str, sampler: str, workers: int) -> dict[str, float]:
    """`SAMPLER.sleepers_per_s` evaluations a second, from the first one's start to the last one's end, of workers that
    sleep for a second each; `…_failed` of them.
    """
    measured = child("sleepers", url, workers, SLEEP_S, ROUNDS[sampler])
    rate = f"{measured['per_s']:.1f} evaluations a second of {workers / SLEEP_S:.0f}"
    made = f"{measured['evaluations']:.0f} in {measured['seconds']:.0f} s"
    print(f"{sampler}, {workers} sleeping workers: {rate}, {made}", end="; ")
    print(f"{measured['failed']:.0f} workers failed; {measured['connections']:.0f} connections", flush=True)
    return {f"{sampler}.sleepers_{name}": value for name, value in measured.items()}


def child(*arguments: Any) -> dict[str, float]:
    """Run load_worker.py; the figures that it prints last."""
    program = "benchmarks.crashes_and_load.load_worker"
    done = subprocess.run(
        [sys.executable, "-m", program, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{arguments[0]}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found.get("failed"):
        print(reasons(done.stderr), flush=True)
    return found


def reasons(stderr: str) -> str:
    """Why workers failed: each last line of a traceback with how often it came, then the whole of the first one."""
    tracebacks = [TRACEBACK + part for part in stderr.split(TRACEBACK)[1:]]
    counted = Counter(part.strip().splitlines()[-1] for part in tracebacks)
    lines = [f"{times} x {line}" for line, times in counted.most_common()]
    return "\n".join([*lines, *tracebacks[:1]]) or stderr[-4000:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--evaluations", type=int, default=100_000, help="of the study that front and status read")
    parser.add_argument("--trials", type=int, default=10_000, help="of the study that a worker joins")
    parser.add_argument("--workers", type=int, default=64, help="that sleep")
    given = parser.parse_args()
    main(tuple(given.only), given.evaluations, given.trials, given.workers)
