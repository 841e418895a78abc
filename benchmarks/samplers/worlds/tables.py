"""Tables of the runs on made-up worlds: shares over the uniform assignments, and how near runs with a limit came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.page import table
from benchmarks.samplers.simulator import best_front
from benchmarks.samplers.simulator.best_front import Front, undominated
from benchmarks.samplers.simulator.problem import Problem
from benchmarks.samplers.worlds import catalogue
from search.space.layout import Codes
from studies.judging.rules.hypervolume import hypervolume, hypervolume_history

MARKS = (6, 10, 30, 60, 120)

Results = Mapping[str, Any]
Best = Mapping[str, Front]


def best_fronts(worlds: Sequence[str], results: Sequence[Results], jobs: int = 1) -> dict[str, Front]:
    """The best-known front of every world, begun from the fronts of all its runs; `jobs` worlds at a time."""
    starts = {world: [codes_of(run) for of in results for run in _all_runs(of, world)] for world in worlds}
    some = [(world, codes) for world, codes in starts.items() if codes]
    with ProcessPoolExecutor(jobs) as pool:
        return dict(pool.map(_best_front, some))


def _all_runs(results: Results, world: str) -> list[Results]:
    return [run for key, seeds in results["runs"].items() if _of(key, world) for run in seeds.values()]


def _best_front(task: tuple[str, list[Codes]]) -> tuple[str, Front]:
    world, tried = task
    problem = catalogue.make(world)
    return world, best_front.find(problem, np.concatenate([_front(problem, codes) for codes in tried]))


def _of(key: str, world: str) -> bool:
    return key.split("|")[0] == world


def codes_of(run: Results) -> Codes:
    """(n, decisions) of a run's trials, in order."""
    return np.array([[int(code) for code in row] for row in run["codes"]], dtype=np.int64)


def _front(problem: Problem, codes: Codes) -> Codes:
    return codes[undominated(*problem.measures(codes))]


def shares(problem: Problem, front: Front, codes: Codes) -> NDArray[np.float64]:
    """(n,) share of what there is to gain over the uniform assignments, after each trial."""
    ms, loss = problem.measures(codes)
    volumes = hypervolume_history(ms, loss, np.ones(len(ms), bool), problem.reference)
    uniform = hypervolume(*problem.measures(np.array(list(problem.baselines.values()))), problem.reference)
    return np.asarray((volumes - uniform) / (front.volume(problem.reference) - uniform))


def text(results: Results, best: Best) -> str:
    """Every table."""
    return "\n\n".join(filter(None, [_shares(results, best), _ends(results, best), _limits(results, best)]))


def _runs(results: Results, world: str) -> dict[str, list[Results]]:
    """Method → its runs without limits, by seed."""
    return {
        key.split("|")[1]: [seeds[seed] for seed in sorted(seeds, key=int)]
        for key, seeds in results["runs"].items()
        if _of(key, world) and key.count("|") == 1
    }


def _shares(results: Results, best: Best) -> str:
    rows = []
    for world, front in best.items():
        problem = catalogue.make(world)
        for method, runs in _runs(results, world).items():
            curves = [shares(problem, front, codes_of(run)) for run in runs]
            rows.append([world, method, str(len(runs)), *(_share(curves, mark) for mark in MARKS)])
    return table(["share over the uniforms", "method", "seeds", *(f"after {mark}" for mark in MARKS)], rows)


def _share(curves: Sequence[NDArray[np.float64]], mark: int) -> str:
    """Mean and standard error over seeds; of a method that ended before, what it had then."""
    at = [100 * float(curve[min(mark, len(curve)) - 1]) for curve in curves]
    error = np.std(at, ddof=1) / np.sqrt(len(at)) if len(at) > 1 else 0.0
    return f"{np.mean(at):.1f} ± {error:.1f}"


def _ends(results: Results, best: Best) -> str:
    """When searches by the guided sampler end on their own, and what the trials after that would have brought."""
    rows = []
    for world, front in best.items():
        problem, runs = catalogue.make(world), _runs(results, world).get("guided", [])
        ends = [run.get("ends_after") or len(run["codes"]) for run in runs]
        if not runs:
            continue
        shared, faster = [], []
        for run, end in zip(runs, ends, strict=True):
            curve = shares(problem, front, codes_of(run))
            shared.append(100 * float(curve[-1] - curve[end - 1]))
            ms = problem.measures(codes_of(run))[0]
            faster.append(100 * float(1 - ms.min() / ms[:end].min()))
        after = ", ".join(str(end) if run.get("ends_after") else "–" for run, end in zip(runs, ends, strict=True))
        rows.append(
            [world, after, f"{np.mean(shared):.1f}, {max(shared):.1f}", f"{np.mean(faster):.1f}, {max(faster):.1f}"]
        )
    heads = ["after so many evaluations, by seed", "points of the share given up: mean, most", "% of the least latency"]
    return table(["a search ends on its own", *heads], rows)


def _limits(results: Results, best: Best) -> str:
    """A table of runs with a limit: whether the pick truly keeps it, and how far it is from the best known within."""
    rows = []
    for key, seeds in results["runs"].items():
        world, method, *aim = key.split("|")
        if not aim or world not in best:
            continue
        judged = [_picked(catalogue.make(world), best[world], aim[0].split()[0], run) for run in seeds.values()]
        kept = sum(keeps for keeps, _ in judged)
        ended = [
            _picked(catalogue.make(world), best[world], aim[0].split()[0], _until_end(run)) for run in seeds.values()
        ]
        ends = [str(run["ends_after"] or "–") for run in seeds.values()]
        given_up = np.mean([before - after for (_, before), (_, after) in zip(ended, judged, strict=True)])
        row = [world, method, aim[0], f"{kept} of {len(judged)}", f"{np.median([r for _, r in judged]):.2f}"]
        rows.append([*row, ", ".join(ends), f"{given_up:.2f}"])
    heads = ["picks", "method", "limit", "keep it in truth", "regret, points or % of latency"]
    return table([*heads, "the search ends on its own after", "regret that adds, mean"], rows)


def _until_end(run: Results) -> Results:
    """A run up to where the search would have ended on its own."""
    names = ("codes", "ms", "loss", "loss_high")
    return {**run, **{name: run[name][: run["ends_after"] or None] for name in names}}


def _picked(problem: Problem, front: Front, aim: str, run: Results) -> tuple[bool, float]:
    codes, limit = codes_of(run), run["limit"]
    ms, loss, high = (np.array(run[name]) for name in ("ms", "loss", "loss_high"))
    if aim == "budget":
        kept = np.flatnonzero(ms <= limit)
        pick = kept[np.argmin(high[kept])] if len(kept) else int(np.argmin(ms))
        true_ms, true_loss = (float(values[0]) for values in problem.measures(codes[pick][None]))
        return true_ms <= limit * 1.01, 100 * (true_loss - front.best_loss(limit))
    kept = np.flatnonzero(high <= limit)
    if not len(kept):
        kept = np.flatnonzero(loss == loss.min())
    pick = kept[np.argmin(ms[kept])]
    true_ms, true_loss = (float(values[0]) for values in problem.measures(codes[pick][None]))
    return true_loss <= limit, 100 * (true_ms / float(front.ms[front.loss <= limit].min()) - 1)
