"""How one study speeds up with the GPUs of a host: the same assignments evaluated by 1, 2 and 4 workers.

What a study does once (calibration, uniform assignments, tie band) is done once and on one GPU: a search is begun and
ended when it has that, and the assignments to evaluate are enqueued. Each run goes on with a copy of that database in
PostgreSQL (the pgserver wheel) from the command line, until it has as many evaluations a worker as asked for, the same
ones in every run. Each worker's builder gets the same number of threads in all runs. More workers than there are GPUs
are left out, which is said. Figures:

    an_hour     evaluations an hour while all workers are at work: from the second evaluation of the last to begin, as
                the first ones of a process load and time TensorRT's kernels, to the last one of the first to end
    ratio       of that to one worker's
    latency     of the same assignments, each built anew, over one worker's: median, and how many are within 1.5 %

usage: python -m benchmarks.h200.scaling WORK NETWORK [--workers 1 2 4] [--each 14] [--tiny]
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks import ROOT
from benchmarks.command_line import PROGRAM
from benchmarks.h200 import network_folder
from benchmarks.h200.network_folder import NetworkFolder
from studies.options.slots import gpu_slots, usable_cores
from studies.store.store import Store, close_optuna, optuna_storage
from tests.support.crashes.shared_study import finished, loose_ends, rows, until
from tests.support.servers.databases import Server

STUDY = "scaling"
WANTED = {2: 1.9, 4: 3.6}
CLOSE = 0.015
_SPARE = 8  # assignments a worker that are done before, or under way when there are enough
_UNIFORM = 3
_OPEN = ("running evaluations", "leases", "tasks", "running trials", "evaluations no trial tells of")


def scaling(network: NetworkFolder, workers: Sequence[int], each: int) -> dict[str, Any]:
    """Every number of workers that this host has GPUs for, with ONNX Runtime processor cores; see the module."""
    gpus = network.backend == "tensorrt"
    there = len(gpu_slots("all")) if gpus else len(usable_cores())
    possible = [count for count in workers if count <= there]
    threads = str(max(1, len(usable_cores()) // max(possible, default=1))) if gpus else None
    what = f"{'GPU' if gpus else 'core'}{'s' * (there != 1)}"
    left_out = {str(count): f"this host has {there} {what}" for count in workers if count > there}
    found: dict[str, Any] = {}
    server = Server("postgresql")
    try:
        url = prepared(server, network, _UNIFORM + (each + _SPARE) * max(workers), threads)
        for count in possible:
            found[str(count)] = measured(server, url, network.path, f"--{'gpus' if gpus else 'workers'}", count, each)
            shown(found)
    finally:
        server.close()
    for unmeasured, why in left_out.items():
        print(f"{unmeasured} workers: not measured, {why}", flush=True)
    return {"runs": found, "left_out": left_out, "build_threads": threads, "against_one": compared(found)}


# -- what is done once -------------------------------------------------------------------------------------------------


def prepared(server: Server, network: NetworkFolder, trials: int, threads: str | None) -> str:
    """Search until the tie band is known and enqueue the assignments; the URL of that database."""
    url, artifacts = server.new_url(), str(network.path / "scaling.artifacts")
    options = {**network.inputs(), "study": STUDY, "trials": str(trials), "sampler": "random"}
    options |= {"artifacts": artifacts, "keep-engines": "none", **({"build-threads": threads} if threads else {})}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    query = "select count(*) from bf_study_target where latency_band is not null"
    with running(network.path, "prepare", ["search", str(network.model_file), *words], url) as ended:
        until(lambda: ended() or any(count for (count,) in rows(url, query)))
    enqueue(url, trials)
    return url


@contextmanager
def running(folder: Path, name: str, words: Sequence[str], url: str) -> Iterator[Callable[[], bool]]:
    """bitfront at work meanwhile, ended in good order after it; what is given raises when it has ended by itself."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "BITFRONT_STORAGE": url, "PYTHONPATH": paths}
    log = folder / f"scaling-{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*PROGRAM, *words], cwd=ROOT, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )

        def ended() -> bool:
            if process.poll() is not None:
                said = log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"scaling {name}: ended with exit code {process.returncode}\n{said}")
            return False

        try:
            yield ended
        finally:
            process.terminate()
            process.wait(60)


def enqueue(url: str, trials: int) -> None:
    """Put the same random assignments into the study of every run."""
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


# -- runs --------------------------------------------------------------------------------------------------------------


def measured(server: Server, prepared_url: str, folder: Path, option: str, workers: int, each: int) -> dict[str, Any]:
    """Go on with a copy of the study with so many workers until it has enough; its figures.

    Raises:
        RuntimeError: the search failed, or evaluated something twice.
    """
    name = f"scaling_{workers}"
    server._execute(f"CREATE DATABASE {name} TEMPLATE {prepared_url.rpartition('/')[2]}")
    url, start = server.url_of(name), time.monotonic()
    before = finished(url)
    with running(folder, str(workers), ["resume", STUDY, option, str(workers)], url) as ended:
        until(lambda: ended() or finished(url) >= before + each * workers)
        seconds = time.monotonic() - start
    # What is under way when there are enough is ended, so trials may be open, which going on would close.
    left = {what: count for what, count in loose_ends(url).items() if count and what not in _OPEN}
    if left:
        raise RuntimeError(f"{workers} workers left {left}")
    return {"workers": workers, "seconds": round(seconds, 1), **figures(url, before)}


def figures(url: str, before: int) -> dict[str, Any]:
    """What the database says of a finished run; `latency_ms` by digest.

    Args:
        before: evaluations that were there already.
    """
    columns = "digest, worker, status, raw_ms, finished_at"
    query = f"select {columns} from bf_evaluation where status <> 'running' order by finished_at"
    found = rows(url, query)[before:]
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
        print(text, flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = network_folder.parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--each", type=int, default=14, help="evaluations of one worker")
    given = parser.parse_args(words)
    network = network_folder.opened(given)
    network.record("scaling", scaling(network, given.workers, given.each))


if __name__ == "__main__":
    main()
