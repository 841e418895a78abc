"""How one study speeds up with the GPUs of a host: the same assignments evaluated by 1, 2 and 4 workers.

    python benchmarks/h200/train.py WORK --networks resnet18                 # with PyTorch: the network
    python benchmarks/h200/scaling.py WORK --workers 1 2 4                   # `bitfront search … --gpus N`
    python benchmarks/h200/scaling.py WORK --workers 4 --minutes 8           # one of them; results of others are kept
    python benchmarks/h200/scaling.py WORK --tiny --workers 1 2              # ONNX Runtime, a small network: to try it

Each run is a study of its own in a PostgreSQL of its own (the pgserver wheel), begun by the command line, whose
assignments are enqueued: the uniform ones, then random ones, the same in every run. Figures, in WORK/scaling.json:

    an_hour     evaluations an hour while all workers are at work: from the second evaluation of the last to begin, as
                the first ones of a process load and time TensorRT's kernels, to the last one of the first to end
    ratio       of that to one worker's
    latency     of the same assignments, each built anew, over one worker's: median, and how many are within 1.5 %
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from benchmarks.h200.setting import ROOT, Setting, say  # noqa: E402
from servers import Server  # noqa: E402
from studies.store import Store, close_optuna, optuna_storage  # noqa: E402
from working import loose_ends, rows, until  # noqa: E402

STUDY = "scaling"
WANTED = {2: 1.9, 4: 3.6}
CLOSE = 0.015
_POLL_S = 0.2


@dataclass(frozen=True)
class Plan:
    """What is run: options of `bitfront search` but for workers and database, and how many evaluations."""

    work: Path
    options: Mapping[str, str]
    crew: str
    trials: int
    minutes: float


def measured(plan: Plan, workers: int) -> dict[str, Any]:
    """Run the study with so many workers; its figures.

    Raises:
        RuntimeError: the search failed, or left something open.
    """
    server = Server("postgresql")
    try:
        url, start = server.new_url(), time.monotonic()
        searched(plan, workers, url)
        seconds = time.monotonic() - start
        left = {what: count for what, count in loose_ends(url).items() if count}
        if left:
            raise RuntimeError(f"{workers} workers left {left}")
        return {"workers": workers, "seconds": round(seconds, 1), **figures(url)}
    finally:
        server.close()


def searched(plan: Plan, workers: int, url: str) -> None:
    """Search from the command line, with the list of assignments in front of the sampler's own proposals."""
    options = {**plan.options, "study": STUDY, "trials": str(plan.trials), plan.crew: str(workers)}
    options |= {"artifacts": str((plan.work / f"scaling-{workers}").absolute()), "keep-engines": "none"}
    given = [word for name, value in options.items() if name != "model" for word in (f"--{name}", value)]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (plan.work / f"scaling-{workers}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "studies.cli", "search", options["model"], *given],
            cwd=ROOT,
            env={**os.environ, "BITFRONT_STORAGE": url, "PYTHONPATH": paths},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        try:
            enqueue(url, plan.trials, process)
            code = process.wait(60 * plan.minutes)
        finally:
            process.terminate()  # the workers end with it
            process.wait(60)
    if code:
        said = Path(log.name).read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{workers} workers: exit code {code}\n{said}")


def enqueue(url: str, trials: int, process: subprocess.Popen[bytes]) -> None:
    """Put the same random assignments into the study of every run, as soon as there is one."""
    import optuna

    def named() -> Any:
        if process.poll() is not None:
            raise RuntimeError("the search ended before it began; see its log")
        return rows(url, "select s.optuna_study, o.study_id from bf_study_target s join studies o "
                         "on o.study_name = s.optuna_study where s.space_digest is not null")  # fmt: skip

    [(name, _)] = until(named, 600)
    with Store.open(url, write=False) as store:
        [target] = store.targets(store.study(STUDY).id)
        codes = defaultdict(list)
        for choice in store.choices(target.id):
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
    found = rows(url, "select digest, worker, status, latency_ms, finished_at from bf_evaluation order by finished_at")
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


def tiny(work: Path) -> dict[str, str]:
    """A small network for ONNX Runtime, to try all this where there is no GPU."""
    from networks import mobile_cnn
    from searched import write_inputs

    write_inputs(work / "tiny", mobile_cnn(), samples=200)
    return {"model": str(work / "tiny/model.onnx"), "data": str(work / "tiny/data.npz"), "backend": "onnxruntime"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=9.0, help="of one run at most")
    parser.add_argument("--tiny", action="store_true", help="ONNX Runtime on the processor, a small network")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.tiny:
        options = tiny(given.work.absolute())
    else:
        setting = Setting(given.work.absolute(), given.network)
        setting.open_data()
        options = {name: value for name, value in setting.search_options().items() if name not in ("storage", "study")}
    plan = Plan(given.work, options, "workers" if given.tiny else "gpus", given.trials, given.minutes)
    results = given.work / "scaling.json"
    for workers in given.workers:
        found = json.loads(results.read_text()) if results.exists() else {}
        found[str(workers)] = measured(plan, workers)
        results.write_text(json.dumps(found, indent=1))
        shown(found)


if __name__ == "__main__":
    main()
