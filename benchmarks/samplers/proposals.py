"""What a proposal of the guided sampler takes on made-up transformers of several sizes, storage excluded.

usage: python -m benchmarks.samplers.proposals [--groups 50 200 1000] [--trials 100 1000]

Prints a table. Every row is measured in a process of its own, for the memory that it takes.
"""

from __future__ import annotations

import argparse
import resource
import time
from functools import partial
from multiprocessing import Pool

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, IntDistribution

from benchmarks.page import table
from benchmarks.samplers import transformer
from benchmarks.samplers.bench import Bench
from benchmarks.samplers.optuna_methods import guided_sampler
from benchmarks.samplers.simulator import best_front
from benchmarks.samplers.simulator.problem import Problem
from search.forecast.forecasts import MEASURED

REPEATS = 5
BUDGET = 1.1  # of the fastest uniform assignment, where there is a latency budget
HEAD = ("groups", "finished trials", "limit", "a proposal, processor time", "longest of 5, wall", "peak memory")


def time_proposals(groups: int, trials: int, limited: bool) -> tuple[float, float, int]:
    """Processor seconds of the median warm proposal after so many finished trials, wall seconds of the longest, MiB."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    problem = transformer.make(groups)
    budget_ms = BUDGET * float(problem.measures(np.array(list(problem.baselines.values())))[0].min())
    sampler = guided_sampler(Bench(problem, 0, trials + REPEATS, budget_ms if limited else None))
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    for codes in _codes(problem, trials):  # one after the other, so that only the study holds them
        study.add_trial(_trial(problem, codes))
    space = sampler.infer_relative_search_space(study, study.get_trials(deepcopy=False)[0])
    taken = []
    for _ in range(REPEATS + 1):
        trial = study.ask()
        frozen = study.get_trials(deepcopy=False)[trial.number]
        start = time.process_time(), time.perf_counter()
        sampler.sample_relative(study, frozen, space)
        taken.append((time.process_time() - start[0], time.perf_counter() - start[1]))
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    cpu_s, wall_s = np.array(taken[1:]).T
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(np.median(cpu_s)), float(wall_s.max()), round(peak_kib / 1024)


def _codes(problem: Problem, trials: int) -> NDArray[np.int64]:
    """(trials, decisions): the uniform assignments, and stretches of precisions."""
    uniform = np.array(list(problem.baselines.values()))
    return np.concatenate([uniform, best_front.blocky(problem, trials - len(uniform), np.random.default_rng(0))])


def _trial(problem: Problem, codes: NDArray[np.int64]) -> optuna.trial.FrozenTrial:
    measured, variables = problem.evaluate(codes, 0), problem.layout.space.variables
    distributions: dict[str, BaseDistribution] = {v.id: IntDistribution(0, len(v.precisions) - 1) for v in variables}
    return optuna.trial.create_trial(
        params={v.id: int(code) for v, code in zip(variables, codes, strict=True)},
        distributions=distributions,
        values=[measured.latency_ms, measured.loss],
        user_attrs={MEASURED: [0.004, (measured.loss_high - measured.loss_low) / 3.92, True]},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000])
    given = parser.parse_args()
    rows = []
    for groups in given.groups:
        for trials in given.trials:
            for limited in (False, True):
                with Pool(1) as pool:
                    cpu_s, wall_s, mib = pool.apply(partial(time_proposals, groups, trials, limited))
                limit = "a latency budget" if limited else "none"
                rows.append([str(groups), str(trials), limit, f"{cpu_s:.2f} s", f"{wall_s:.2f} s", f"{mib} MiB"])
                print(" | ".join(rows[-1]), flush=True)
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
