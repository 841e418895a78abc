"""Methods side by side on made-up worlds whose costs are no sums.

    python -m benchmarks.samplers.worlds.run                              # every world and method, 8 seeds, 120 trials
    python -m benchmarks.samplers.worlds.run --worlds residual_60 --methods guided one_shot --seeds 2 --trials 60
    python -m benchmarks.samplers.worlds.run --methods guided --trials 60 # where searches end on their own, and more
    python -m benchmarks.samplers.worlds.run --table                      # only print the tables

Writes worlds.json in the folder from which it is started, or --out, after every run, and goes on where it was stopped.
To compare two sources of the sampler, give each an --out of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.samplers import bench, one_shot, optuna_methods, search_orders
from benchmarks.samplers.bench import Bench, Method
from benchmarks.samplers.worlds import catalogue, tables
from benchmarks.samplers.worlds.catalogue import WORLDS

METHODS: dict[str, Method] = {
    "guided": optuna_methods.guided,
    "one_shot": one_shot.one_shot,
    "one_shot_then_climb": one_shot.one_shot_then_climb,
    "climb": search_orders.climb,
    "tpe": optuna_methods.tpe,
    "nsga2": optuna_methods.nsga2,
    "random": optuna_methods.random,
}
OUT = Path("worlds.json")


@dataclass(frozen=True)
class Task:
    """One run; `aim` is `budget` or `loss` with the quantile of the best-known front that is the limit."""

    world: str
    method: str
    seed: int
    trials: int
    budget_ms: float | None = None
    max_loss: float | None = None
    aim: str = ""

    @property
    def key(self) -> str:
        return "|".join(filter(None, (self.world, self.method, self.aim)))


def perform(task: Task) -> dict[str, Any]:
    """Run one task; the codes that it tried, in order, with what was measured of each."""
    problem = catalogue.make(task.world)
    run = Bench(problem, task.seed, task.trials, task.budget_ms, task.max_loss)
    start = time.perf_counter()
    bench.run(METHODS[task.method], run)
    measured = list(run.measurements.values())
    return {
        "codes": ["".join(map(str, row)) for row in run.codes().tolist()],
        "ms": [round(m.latency_ms, 6) for m in measured],
        "loss": [round(m.loss, 6) for m in measured],
        "loss_high": [round(m.loss_high, 6) for m in measured],
        "seconds": round(time.perf_counter() - start, 2),
        "limit": task.budget_ms or task.max_loss,
        "ends_after": run.ends_after,
    }


def tasks(worlds: Sequence[str], methods: Sequence[str], seeds: int, trials: int) -> Iterator[Task]:
    for seed in range(seeds):
        for world in worlds:
            for method in methods:
                yield Task(world, method, seed, trials)


def limited_tasks(best: tables.Best, seeds: int, trials: int) -> Iterator[Task]:
    """Guided with a latency budget, and with an allowed loss, at the quartiles of the best-known fronts.

    Not in worlds without losses, where a loss of the front is no limit that anyone would set.
    """
    for seed in range(seeds):
        for world, front in best.items():
            if "lossless" in world:
                continue
            for quantile in (0.25, 0.5, 0.75):
                ms, loss = (float(np.quantile(values, quantile)) for values in (front.ms, front.loss))
                yield Task(world, "guided", seed, trials, ms * (1 + 1e-9), None, f"budget {quantile:g}")
                yield Task(world, "guided", seed, trials, None, loss + 1e-12, f"loss {quantile:g}")


def run_all(todo: Sequence[Task], results: dict[str, Any], file: Path, jobs: int) -> None:
    """Run what is not there yet, storing after every run."""
    left = [task for task in todo if str(task.seed) not in results["runs"].get(task.key, {})]
    with ProcessPoolExecutor(jobs) as pool:
        waiting = {pool.submit(perform, task): task for task in left}
        for number, future in enumerate(as_completed(waiting), 1):
            task, figures = waiting[future], future.result()
            results["runs"].setdefault(task.key, {})[str(task.seed)] = figures
            save(file, results)
            print(f"{number}/{len(left)} {task.key} seed {task.seed}: {figures['seconds']} s", flush=True)


def save(file: Path, results: dict[str, Any]) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(results) + "\n")
    draft.replace(file)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=1, help="runs, or best-known fronts, at a time")
    parser.add_argument("--limits", action="store_true", help="also guided with a budget and with an allowed loss")
    parser.add_argument("--limit-trials", type=int, default=30, help="of runs with a limit")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--best", type=Path, nargs="*", default=[], help="more results whose fronts to begin from")
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args(words)
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": {}}
    if not arguments.table:
        todo = list(tasks(arguments.worlds, arguments.methods, arguments.seeds, arguments.trials))
        run_all(todo, results, arguments.out, arguments.jobs)
    others = [json.loads(file.read_text()) for file in arguments.best]
    best = tables.best_fronts(arguments.worlds, [results, *others], arguments.jobs)
    if arguments.limits and not arguments.table:
        run_all(
            list(limited_tasks(best, arguments.seeds, arguments.limit_trials)), results, arguments.out, arguments.jobs
        )
    print(tables.text(results, best))


if __name__ == "__main__":
    main()
