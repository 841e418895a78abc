"""How one study speeds up with the GPUs of a host: the same assignments evaluated by 1, 2 and 4 workers.

    python -m benchmarks.h200.networks.train WORK --networks resnet18                 # with PyTorch: the network
    python -m benchmarks.h200.scaling WORK --workers 1 2 4                   # `bitfront resume … --gpus N`
    python -m benchmarks.h200.scaling WORK --workers 4                       # one of them; results of others are kept
    python -m benchmarks.h200.scaling WORK --tiny --workers 1 2              # ONNX Runtime, a small network: to try it

What a study does once (calibration, uniform assignments, tie band) is done once and on one GPU: a search is begun and
ended when it has that, the assignments to evaluate are enqueued, and the database is dumped. Each run is then that dump
in a PostgreSQL of its own (the pgserver wheel), gone on with from the command line until it has as many evaluations a
worker as asked for, the same ones in every run. Each worker's builder gets the same number of threads in all runs. More
workers than there are GPUs are left out, which is said. Figures, in WORK/NETWORK/scaling.json:

    an_hour     evaluations an hour while all workers are at work: from the second evaluation of the last to begin, as
                the first ones of a process load and time TensorRT's kernels, to the last one of the first to end
    ratio       of that to one worker's
    latency     of the same assignments, each built anew, over one worker's: median, and how many are within 1.5 %
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.h200.setting import Setting, say
from studies.options.slots import gpu_slots, usable_cores
from studies.store.store import Store, close_optuna, optuna_storage
from tests.support.crashes.shared_study import finished, loose_ends, rows, until
from tests.support.servers.databases import PASSWORD, Server

STUDY = "scaling"
WORKERS = (1, 2, 4)
EACH = 14  # evaluations of one worker
WANTED = {2: 1.9, 4: 3.6}
CLOSE = 0.015
_SPARE = 2  # assignments a worker that are under way when there are enough
_POLL_S = 0.2
_UNIFORM = 3
_OPEN = ("running evaluations", "leases", "tasks", "running trials", "evaluations no trial tells of")


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        folder: for the dump, engines, logs and results.
        options: of `bitfront search` but for database, study and artifacts.
        crew: the option that says how many workers.
        there: how many there can be on this host.
        each: evaluations of one worker.
        seconds: of the preparation, and of one run, at most.
    """

    folder: Path
    options: Mapping[str, str]
    crew: str
    there: int
    workers: Sequence[int] = WORKERS
    each: int = EACH
    seconds: float = 540.0

    @property
    def dump(self) -> Path:
        return self.folder / "scaling.sql"

    @property
    def results(self) -> Path:
        return self.folder / "scaling.json"

    @property
    def trials(self) -> int:
        """More than any run makes."""
        return _UNIFORM + (self.each + _SPARE) * max(self.workers)


def plan_of(setting: Setting, workers: Sequence[int] = WORKERS, each: int = EACH) -> Plan:
    """For a network of the proof; with ONNX Runtime, workers on the processor."""
    setting.open_data()
    left_out = ("storage", "study")
    options = {name: value for name, value in setting.search_options().items() if name not in left_out}
    if setting.backend != "tensorrt":
        return Plan(setting.folder, options, "workers", len(usable_cores()), workers, each, setting.left_s())
    there = len(gpu_slots("all"))
    possible = [count for count in workers if count <= there]
    options["build-threads"] = str(max(1, len(usable_cores()) // max(possible, default=1)))
    return Plan(setting.folder, options, "gpus", there, workers, each, setting.left_s())


# -- what is done once -------------------------------------------------------------------------------------------------


def prepare(plan: Plan) -> None:
    """Search until the tie band is known, enqueue the assignments, and dump the database, where that is not done yet.

    Raises:
        RuntimeError: the search failed or took too long.
    """
    if plan.dump.exists():
        return
    command = ["search", plan.options["model"], "--study", STUDY, "--trials", str(plan.trials)]
    artifacts = {"artifacts": str((plan.folder / "scaling.db.artifacts").absolute()), "keep-engines": "none"}
    for name, value in {**plan.options, **artifacts, "sampler": "random"}.items():
        command += [] if name == "model" else [f"--{name}", value]
    with _server() as server:
        url = server.new_url()
        with _running(plan, "prepare", command, url) as look:
            query = "select count(*) from bf_study_target where latency_band is not null"
            until(lambda: look() or any(count for (count,) in rows(url, query)))
        enqueue(url, plan.trials)
        draft = plan.dump.with_suffix(".draft")
        _client("pg_dump", url, "--no-owner", "--file", str(draft))
        draft.replace(plan.dump)
    say("scaling: what is done once is done")


@contextmanager
def _server() -> Iterator[Server]:
    server = Server("postgresql")
    try:
        yield server
    finally:
        server.close()


def _client(program: str, url: str, *words: str) -> None:
    """Run one of PostgreSQL's own programs on a database."""
    found = importlib.util.find_spec("pgserver")
    folders = [Path(place) / "pginstall" / "bin" for place in (found and found.submodule_search_locations) or ()]
    known = next((str(folder / program) for folder in folders if (folder / program).exists()), shutil.which(program))
    if known is None:
        raise RuntimeError(f"scaling needs {program}, which comes with PostgreSQL: pip install pgserver")
    to = url.replace("postgresql+psycopg", "postgresql").replace(f":{PASSWORD}@", "@")
    environment = {**os.environ, "PGPASSWORD": PASSWORD}
    done = subprocess.run([known, "--dbname", to, *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{program} failed:\n{done.stderr[-2000:]}")


@contextmanager
def _running(plan: Plan, name: str, command: Sequence[str], url: str) -> Iterator[Any]:
    """bitfront at work meanwhile, ended in good order after it; what is given raises when it has ended by itself."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (plan.folder / f"scaling-{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "studies.cli", *command],
            cwd=ROOT,
            env={**os.environ, "BITFRONT_STORAGE": url, "PYTHONPATH": paths},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )

        def look() -> bool:
            if process.poll() is None:
                return False
            said = Path(log.name).read_text(errors="replace")[-3000:]
            raise RuntimeError(f"scaling {name}: ended with exit code {process.returncode}\n{said}")

        try:
            yield look
        finally:
            process.terminate()
            process.wait(60)


# -- runs --------------------------------------------------------------------------------------------------------------


def measured(plan: Plan, workers: int) -> dict[str, Any]:
    """Go on with the study with so many workers until it has enough; its figures.

    Raises:
        RuntimeError: the search failed, or evaluated something twice.
    """
    with _server() as server:
        url, start = server.new_url(), time.monotonic()
        _client("psql", url, "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(plan.dump), "--output", os.devnull)
        wanted = finished(url) + plan.each * workers
        command = ["resume", STUDY, f"--{plan.crew}", str(workers)]
        with _running(plan, str(workers), command, url) as look:
            until(lambda: look() or finished(url) >= wanted)
            seconds = time.monotonic() - start
        # What is under way when there are enough is ended, so trials may be open, which going on would close.
        left = {what: count for what, count in loose_ends(url).items() if count and what not in _OPEN}
        if left:
            raise RuntimeError(f"{workers} workers left {left}")
        return {"workers": workers, "seconds": round(seconds, 1), **figures(url)}


def scaling(plan: Plan) -> dict[str, Any]:
    """Every number of workers that this host has GPUs for and that is not measured yet; all results so far."""
    found: dict[str, Any] = json.loads(plan.results.read_text()) if plan.results.exists() else {}
    found = {"runs": {}, **found, "left_out": {}, "build_threads": plan.options.get("build-threads")}
    for workers in plan.workers:
        if workers > plan.there:
            what = "GPU" if plan.crew == "gpus" else "core"
            found["left_out"][str(workers)] = f"this host has {plan.there} {what}{'s' * (plan.there != 1)}"
            say(f"{workers} workers: not measured, {found['left_out'][str(workers)]}")
        elif str(workers) not in found["runs"]:
            found["runs"][str(workers)] = measured(plan, workers)
            plan.results.write_text(json.dumps(found, indent=1))
            shown(found["runs"])
    return {**found, "against_one": compared(found["runs"])}


def enqueue(url: str, trials: int) -> None:
    """Put the same random assignments into the study of every run."""
    import optuna

    query = "select optuna_study from bf_study_target where space_digest is not null"
    [(name,)] = rows(url, query)
    with Store.open(url, write=False) as store:
        [target] = store.targets.of_study(store.studies.load(STUDY).id)
        codes = defaultdict(list)
        for choice in store.spaces.choices(target.id):
            if choice.code is not None:
                codes[choice.group].append(choice.code)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna_storage(url)
    study = optuna.load_study(study_name=name, storage=storage)
    for chosen in listed({group: sorted(free) for group, free in codes.items() if len(free) > 1}, trials):
        study.enqueue_trial(chosen)
    close_optuna(storage)


def listed(codes: Mapping[str, Sequence[int]], trials: int) -> list[dict[str, int]]:
    """As many distinct assignments that are not uniform as there are trials beside the uniform ones."""
    chance, found = random.Random(0), dict[tuple[int, ...], dict[str, int]]()
    uniform = max(map(len, codes.values()))
    while len(found) < trials - uniform:
        made = {group: chance.choice(free) for group, free in codes.items()}
        if len(set(made.values())) > 1:
            found[tuple(made.values())] = made
    return list(found.values())


def figures(url: str) -> dict[str, Any]:
    """What the database says of a finished run; `latency_ms` by digest."""
    found = rows(url, "select digest, worker, status, raw_ms, finished_at from bf_evaluation "
                      "where role = '' order by finished_at")  # fmt: skip
    ends = defaultdict(list)
    for _, worker, _, _, moment in found:
        ends[worker].append(moment)
    an_hour, counted = steady(ends)
    return {
        "evaluations": len(found),
        "failed": sum(status != "ok" for _, _, status, _, _ in found),
        "by_worker": sorted((len(moments) for moments in ends.values()), reverse=True),
        "an_hour": an_hour,
        "counted": counted,
        "latency_ms": {digest: ms for digest, _, status, ms, _ in found if status == "ok"},
    }


def steady(ends: Mapping[str, Sequence[datetime]]) -> tuple[float, int]:
    """Evaluations an hour while all workers work, and how many that is reckoned from."""
    if min(map(len, ends.values())) < 3:
        raise RuntimeError("a worker made fewer than three evaluations: give more --trials")
    begin, end = max(moments[1] for moments in ends.values()), min(moments[-1] for moments in ends.values())
    count = sum(begin < moment <= end for moments in ends.values() for moment in moments)
    return 3600 * count / max((end - begin).total_seconds(), 1e-3), count


def compared(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Each number of workers against one: `ratio`, and latencies of the same assignments."""
    one, verdict = found.get("1"), dict[str, Any]()
    for workers, run in found.items():
        if one is None or workers == "1":
            continue
        both = sorted(run["latency_ms"].keys() & one["latency_ms"].keys())
        ratios = np.array([run["latency_ms"][digest] / one["latency_ms"][digest] for digest in both])
        verdict[workers] = {
            "ratio": run["an_hour"] / one["an_hour"],
            "wanted": WANTED.get(int(workers)),
            "assignments": len(both),
            "latency_median": float(np.median(ratios)),
            "latency_within": float(np.mean(np.abs(ratios - 1) <= CLOSE)),
            "latency_5_95": [float(np.quantile(ratios, q)) for q in (0.05, 0.95)],
        }
    return verdict


def shown(found: Mapping[str, Mapping[str, Any]]) -> None:
    """The figures, a line for each number of workers."""
    against = compared(found)
    for workers, run in sorted(found.items(), key=lambda item: int(item[0])):
        text = f"{workers} workers: {run['an_hour']:.0f} evaluations an hour (over {run['counted']})"
        text += f", {run['evaluations']} in {run['seconds']:.0f} s from the start, {run['failed']} failed"
        if workers in against:
            each = against[workers]
            low, high = each["latency_5_95"]
            wanted = "" if each["wanted"] is None else f" (wanted {each['wanted']})"
            text += f"; {each['ratio']:.2f} times as many as one{wanted}; latencies of {each['assignments']} "
            text += f"assignments over one worker's: median {each['latency_median']:.4f}, 5 to 95 % of them "
            text += f"{low:.3f} to {high:.3f}, {each['latency_within']:.0%} within {CLOSE:.1%}"
        say(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument("--each", type=int, default=EACH, help="evaluations of one worker")
    parser.add_argument("--minutes", type=float, default=9.0, help="of the preparation, and of one run, at most")
    parser.add_argument("--tiny", action="store_true", help="ONNX Runtime on the processor, a small network")
    given = parser.parse_args()
    if given.tiny:
        from benchmarks.h200.proof import TINY, write_tiny

        setting = Setting(given.work.absolute(), TINY, "onnxruntime", given.minutes)
        if not (setting.folder / "model.onnx").exists():
            write_tiny(setting)
    else:
        setting = Setting(given.work.absolute(), given.network, minutes=given.minutes)
    plan = plan_of(setting, given.workers, given.each)
    prepare(plan)
    scaling(plan)


if __name__ == "__main__":
    main()
