"""Large models: searches on a made-up transformer of 1,000 groups, and what a proposal takes at several sizes.

A proposal is also timed in the shape of DenseNet-201, where every layer reads all layers of its block before it.

    python -m benchmarks.samplers.large                      # both; goes on where it was stopped
    python -m benchmarks.samplers.large --only proposals --sizes 50 200 dense
    python -m benchmarks.samplers.large --table

Writes benchmarks/results/large.json. Every run is in a process of its own, for the memory that it takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks import RESULTS
from benchmarks.page import table
from benchmarks.samplers import bench, dense, optuna_methods, transformer
from benchmarks.samplers.bench import Bench
from benchmarks.samplers.simulator.problem import Problem
from search.forecast.forecasts import MEASURED
from studies.judging.rules.hypervolume import hypervolume_history

METHODS = ("guided", "tpe", "random")
OUT = RESULTS / "large.json"
MARKS = (10, 30, 60, 120)
REPEATS = 5
BUDGET = 1.1  # of the fastest uniform assignment, in proposals with a latency budget


def searched(groups: int, method: str, seed: int, trials: int, told: bool) -> dict[str, Any]:
    """One search; its share of the best-known hypervolume, and what it took.

    Args:
        told: whether the uniform engines were profiled and the groups' sensitivities measured.
    """
    problem = transformer.make(groups)
    run, start = Bench(problem if told else transformer.untold(problem), seed, trials), time.perf_counter()
    bench.run(getattr(optuna_methods, method), run)
    seconds = time.perf_counter() - start
    ms, loss = problem.measures(run.codes())
    volumes = hypervolume_history(ms, loss, np.ones(len(ms), bool), problem.reference)
    return {
        "volumes": {str(mark): float(volumes[mark - 1]) for mark in MARKS if mark <= len(ms)},
        "seconds_a_trial": round(seconds / len(ms), 3),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def proposed(size: str, trials: int, limited: bool) -> dict[str, Any]:
    """Seconds of a warm proposal after so many finished trials, storage excluded: the median and the longest.

    `cpu_s` is processor time of the median one, which does not grow with what else runs.

    Args:
        size: the groups of a transformer, or `dense`.
        limited: whether there is a latency budget.
    """
    problem = dense.make() if size == "dense" else transformer.make(int(size))
    budget_ms = BUDGET * float(problem.measures(np.array(list(problem.baselines.values())))[0].min())
    sampler = optuna_methods.guided_sampler(Bench(problem, 0, trials + REPEATS, budget_ms if limited else None))
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    for codes in _codes(problem, trials):  # one after the other, so that only the study holds them
        study.add_trial(_trial(problem, codes))
    space = sampler.infer_relative_search_space(study, study.get_trials(deepcopy=False)[0])
    taken = []
    for _ in range(REPEATS + 1):
        trial = study.ask()
        frozen = study.get_trials(deepcopy=False)[trial.number]
        taken.append(_seconds(partial(sampler.sample_relative, study, frozen, space)))
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    warm = taken[1:]
    return {
        "median_s": round(float(np.median([wall for wall, _ in warm])), 3),
        "longest_s": round(max(wall for wall, _ in warm), 3),
        "cpu_s": round(float(np.median([cpu for _, cpu in warm])), 3),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _seconds(what: Callable[[], object]) -> tuple[float, float]:
    """Wall time and processor time."""
    start = time.perf_counter(), time.process_time()
    what()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def _codes(problem: Problem, trials: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(trials, decisions): the uniform assignments, and stretches of precisions."""
    from benchmarks.samplers.simulator import best_front

    uniform = np.array(list(problem.baselines.values()))
    return np.concatenate([uniform, best_front.blocky(problem, trials - len(uniform), np.random.default_rng(0))])


def _trial(problem: Problem, codes: np.ndarray[Any, np.dtype[np.int64]]) -> optuna.trial.FrozenTrial:
    measured, variables = problem.evaluate(codes, 0), problem.layout.space.variables
    sizes = {len(v.precisions) for v in variables}
    # The guided sampler's trials share the distributions of one size too.
    shared = {size: optuna.distributions.IntDistribution(0, size - 1) for size in sizes}
    return optuna.trial.create_trial(
        params={v.id: int(code) for v, code in zip(variables, codes, strict=True)},
        distributions={v.id: shared[len(v.precisions)] for v in variables},
        values=[measured.latency_ms, measured.loss],
        user_attrs={MEASURED: [0.004, (measured.loss_high - measured.loss_low) / 3.92, True]},
    )


Job = tuple[str, Callable[..., dict[str, Any]], tuple[Any, ...]]


def jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    """What is to be run, with a name each."""
    if arguments.only != "proposals":
        for seed in range(arguments.seeds):
            for method in METHODS:
                yield f"search|{method}|{seed}", searched, (arguments.groups, method, seed, arguments.trials, True)
            yield (
                f"search|guided, told nothing|{seed}",
                searched,
                (arguments.groups, "guided", seed, arguments.trials, False),
            )
    if arguments.only != "searches":
        for size in arguments.sizes:
            for trials in (100, 1000):
                yield f"proposal|{size}|{trials}", proposed, (size, trials, False)
                yield f"proposal|{size}|{trials}|budget", proposed, (size, trials, True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("searches", "proposals"))
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--sizes", nargs="+", default=["50", "200", "1000", "dense"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args(words)
    found: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": {}}
    if arguments.table:
        print(tables(found))
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    todo = [job for job in jobs(arguments) if job[0] not in found["runs"]]
    if any(name.startswith("search") for name, *_ in todo) and "best_known" not in found:
        found["best_known"] = best_known(arguments.groups)
    with Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for (name, *_), result in zip(todo, pool.imap(_run, todo), strict=True):
            found["runs"][name] = result
            found["date"] = datetime.now(timezone.utc).date().isoformat()
            arguments.out.write_text(json.dumps(found, indent=1) + "\n")
            print(name, result, flush=True)
    print(tables(found))


def best_known(groups: int) -> dict[str, Any]:
    problem = transformer.make(groups)
    front, start = transformer.best_known(problem), time.perf_counter()
    uniform = problem.measures(np.array(list(problem.baselines.values())))
    volume = front.volume(problem.reference)
    share = hypervolume_history(*uniform, np.ones(len(uniform[0]), bool), problem.reference)[-1] / volume
    return {
        "groups": len(problem.layout.groups),
        "edges": len(problem.layout.edges),
        "points": len(front.ms),
        "volume": volume,
        "uniform_share": float(share),
        "seconds": round(time.perf_counter() - start, 1),
    }


def _run(job: Job) -> dict[str, Any]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    _, what, arguments = job
    return what(*arguments)


def tables(found: dict[str, Any]) -> str:
    """Two tables of docs/benchmarks-tables.md."""
    parts = [_searches(found["runs"], found.get("best_known", {})), _proposals(found["runs"])]
    return "\n\n".join(filter(None, parts))


def _searches(runs: dict[str, Any], best: dict[str, Any]) -> str:
    rows = []
    for name in dict.fromkeys(key.split("|")[1] for key in runs if key.startswith("search|")):
        own = [run for key, run in runs.items() if key.startswith("search|") and key.split("|")[1] == name]
        cells = [_shares(own, mark, best["volume"]) for mark in MARKS]
        took = f"{np.median([run['seconds_a_trial'] for run in own]):.2f}"
        rows.append([name, str(len(own)), *cells, took, f"{max(run['peak_mib'] for run in own)} MiB"])
    heads = [f"{best.get('groups')} groups", "seeds", *(f"after {mark}" for mark in MARKS)]
    return table([*heads, "seconds a trial", "peak memory"], rows)


def _proposals(runs: dict[str, Any]) -> str:
    rows = []
    for key, run in runs.items():
        kind, size, trials, *limit = key.split("|")
        if kind == "proposal":
            times = [f"{run[name]:.2f} s" if name in run else "" for name in ("median_s", "longest_s", "cpu_s")]
            rows.append([size, trials, "".join(limit) or "none", *times, f"{run['peak_mib']} MiB"])
    heads = ["groups", "finished trials", "limit", "a proposal, median", "longest of 5", "processor time"]
    return table([*heads, "peak memory"], rows)


def _shares(runs: Sequence[dict[str, Any]], mark: int, volume: float) -> str:
    shares = [run["volumes"][str(mark)] / volume for run in runs if str(mark) in run["volumes"]]
    return f"{np.mean(shares):.1%} ± {np.std(shares):.1%}" if shares else ""


if __name__ == "__main__":
    main()
