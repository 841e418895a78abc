"""Samplers and search orders side by side on simulated networks, fitted to engines measured on an H200.

    python -m benchmarks.samplers.compare                                   # everything there are rows and methods for
    python -m benchmarks.samplers.compare --networks resnet18_again --methods random tpe --seeds 5 --trials 100
    python -m benchmarks.samplers.compare --quick                           # 2 seeds, 15 trials, 3 methods: under 30 s
    python -m benchmarks.samplers.compare --table                           # only the tables

Writes benchmarks/results/samplers.json after every run and goes on where it was stopped. With --table it
writes the tables, benchmarks/results/samplers.md. Simulators with their
best-known fronts are kept beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.page import write_tables
from benchmarks.samplers import bench, one_shot, optuna_methods, scores, search_orders, tables
from benchmarks.samplers.bench import Bench, Method
from benchmarks.samplers.simulator import engine_rows, simulated

LABELS = {
    "guided": "guided",
    "guided_without_edges": "guided without edge terms",
    "random": "random",
    "tpe_default": "TPE, Optuna's default, no uniforms",
    "tpe": "TPE, multivariate",
    "nsga2": "NSGA-II",
    "gp": "GP",
    "probes_then_prefixes": "probes, then prefixes (AIMET's order)",
    "revert_worst": "revert the worst (NNCF's order)",
    "climb": "hill climbing",
    "rl": "Q-learning",
    "one_shot": "one shot",
    "one_shot_then_climb": "one shot, then hill climbing",
}
METHODS: dict[str, Method] = {
    **{name: getattr(optuna_methods, name) for name in list(LABELS)[:7]},
    **{name: getattr(search_orders, name) for name in list(LABELS)[7:10]},
    "rl": optuna_methods.rl,
    "one_shot": one_shot.one_shot,
    "one_shot_then_climb": one_shot.one_shot_then_climb,
}
# The GP's cost grows with the cube of the trials; that of TPE as it comes with their square, group by group. What the
# guided sampler is held to is after 60.
MOST_TRIALS = {"gp": 60, "tpe_default": 100, "guided": 100, "guided_without_edges": 100}
MOST_SEEDS = {"gp": 3}


@dataclass(frozen=True)
class Task:
    """One run: a method on a network with a seed; `quantile` of a budget, None without."""

    network: str
    method: str
    seed: int
    trials: int
    quantile: float | None = None

    @property
    def key(self) -> str:
        return f"{self.network}|{self.method}" + ("" if self.quantile is None else f"|{self.quantile:g}")


@cache
def _network(name: str, folder: Path) -> simulated.Network:
    return simulated.by_name(name, folder)


def perform(task: Task, folder: Path = RESULTS) -> dict[str, Any]:
    """Run one task and score it."""
    network = _network(task.network, folder)
    budget = None if task.quantile is None else scores.budget_ms(network, task.quantile)
    run, start = Bench(network.problem, task.seed, task.trials, budget), time.perf_counter()
    bench.run(METHODS[task.method], run)
    figures: dict[str, Any] = {"trials": len(run.measurements), "seconds": round(time.perf_counter() - start, 2)}
    if budget is None:
        return {**figures, "steps": scores.over_trials(network, run)}
    return {**figures, **scores.within_budget(network, run)}


def available(methods: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Methods that this installation can run, and why the others cannot."""
    missing = {}
    if not optuna_methods.has_gp():
        missing["gp"] = "GP: PyTorch is not installed"
    return [m for m in methods if m not in missing], {m: why for m, why in missing.items() if m in methods}


def tasks(networks: Sequence[str], methods: Sequence[str], seeds: int, trials: int, budgets: bool) -> Iterator[Task]:
    """All that is to be run; seed by seed, so that what is stopped early is even."""
    for seed in range(seeds):
        for network in networks:
            for method in methods:
                if seed >= MOST_SEEDS.get(method, seeds):
                    continue
                yield Task(network, method, seed, min(trials, MOST_TRIALS.get(method, trials)))
                for quantile in scores.QUANTILES if budgets else ():
                    yield Task(network, method, seed, min(trials, scores.BUDGET_TRIALS), quantile)


def load(file: Path, trials: int) -> dict[str, Any]:
    """Results so far; raises SystemExit where they are of other numbers of trials."""
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if results and results["about"]["trials"] != trials:
        had = results["about"]["trials"]
        sys.exit(f"{file} holds runs of {had} trials, asked for {trials}: give --trials {had}, or another --out.")
    results.setdefault("about", {"trials": trials, "budget_trials": min(trials, scores.BUDGET_TRIALS)})
    for part in ("networks", "runs"):
        results.setdefault(part, {})
    return results


def save(file: Path, results: Mapping[str, Any]) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(_json(results))
    draft.replace(file)


def _json(results: Mapping[str, Any]) -> str:
    """A line a run."""
    rest = {key: value for key, value in results.items() if key != "runs"}
    runs = [
        f"  {json.dumps(key)}: {{\n"
        + ",\n".join(f"   {json.dumps(seed)}: {json.dumps(run)}" for seed, run in sorted(of.items(), key=_by_seed))
        + "\n  }"
        for key, of in sorted(results["runs"].items())
    ]
    return f'{json.dumps(rest, indent=1)[:-2]},\n "runs": {{\n' + ",\n".join(runs) + "\n }\n}\n"


def _by_seed(entry: tuple[str, Any]) -> int:
    return int(entry[0])


def describe(results: dict[str, Any], names: Sequence[str], folder: Path) -> list[str]:
    """Fit what is not yet fitted, note what stands behind the scores; the networks that can be simulated.

    Runs on a simulator that has changed since are dropped.
    """
    usable = []
    results["refused"] = {}
    for name in names:
        try:
            about = scores.about(_network(name, folder))
        except engine_rows.RowsError as error:
            results["refused"][name] = str(error)
            results["networks"].pop(name, None)
            print(error, flush=True)
            continue
        if results["networks"].get(name, about)["digest"] != about["digest"]:
            results["runs"] = {key: runs for key, runs in results["runs"].items() if key.split("|")[0] != name}
        results["networks"][name] = about
        usable.append(name)
        held = about["held_out"]
        print(
            f"{name}: {held['rows']:.0f} rows; held out: latency {held['latency']:.1%}, rank "
            f"{held['latency_rank']:.3f}; loss {100 * held['loss']:.3f} points, rank {held['loss_rank']:.3f}; "
            f"front of {about['front']}, uniforms {about['uniform_share']:.1%}",
            flush=True,
        )
    return usable


def run_all(todo: Sequence[Task], results: dict[str, Any], file: Path, jobs: int, folder: Path) -> None:
    left = [task for task in todo if str(task.seed) not in results["runs"].get(task.key, {})]
    with ProcessPoolExecutor(jobs) as pool:
        waiting = {pool.submit(perform, task, folder): task for task in left}
        for number, future in enumerate(as_completed(waiting), 1):
            task, figures = waiting[future], future.result()
            results["runs"].setdefault(task.key, {})[str(task.seed)] = figures
            results["about"]["date"] = datetime.now(timezone.utc).date().isoformat()
            save(file, results)
            last = f"{figures['steps'][-1][1]:.1%}" if "steps" in figures else f"gap {figures['found']}"
            print(f"{number}/{len(left)} {task.key} seed {task.seed}: {last} in {figures['seconds']} s", flush=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=None, help="default: all that there are rows of")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-budgets", action="store_true", help="leave out the runs with a latency budget")
    parser.add_argument("--out", type=Path, default=RESULTS / "samplers.json")
    parser.add_argument("--quick", action="store_true", help="one network, 3 methods, 2 seeds, 15 trials")
    parser.add_argument("--again", action="store_true", help="also what is there, as after a change of the sampler")
    parser.add_argument("--table", action="store_true", help="only write benchmarks/results/samplers.md")
    arguments = parser.parse_args(words)
    if arguments.table:
        results = json.loads(arguments.out.read_text())
        command = "python -m benchmarks.samplers.compare --table"
        write_tables("samplers", "Samplers on simulated networks", command, tables.text(results, LABELS))
        return
    if arguments.quick:
        arguments.networks = arguments.networks or ["resnet18_again"]
        arguments.methods, arguments.seeds, arguments.trials = ["random", "tpe", "climb"], 2, 15
    results = load(arguments.out, arguments.trials)
    usable = describe(results, arguments.networks or engine_rows.names(), arguments.out.parent)
    methods, missing = available(arguments.methods)
    for why in dict.fromkeys(missing.values()):
        print(f"left out: {why}", flush=True)
    if arguments.again:
        again = {f"{name}|{method}" for name in usable for method in methods}
        results["runs"] = {
            key: runs for key, runs in results["runs"].items() if "|".join(key.split("|")[:2]) not in again
        }
    todo = list(tasks(usable, methods, arguments.seeds, arguments.trials, not arguments.no_budgets))
    run_all(todo, results, arguments.out, arguments.jobs, arguments.out.parent)
    save(arguments.out, results)
    print(tables.text(results, LABELS))


if __name__ == "__main__":
    main()
