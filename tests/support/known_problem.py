"""A problem whose best assignments are known exactly, and a search of it as the runner does it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna

from search.forecast import acquisition
from search.forecast.forecasts import FORECAST, MEASURED
from search.forecast.priors import Baseline, latency_prior, noise_prior
from search.graph.grouping import Edge
from search.sampler.guided import Guidance, Priors
from search.sampler.registry import make_sampler
from search.solver.solve import front
from search.space.choices import Choice, Space, Variable
from search.space.layout import Costs, Layout, make_layout
from search.values import Assignment, LayerTime
from tests.support.assignments import THREE

FP32, FP16, INT8 = THREE
PRECISIONS = len(THREE)
CEILING = 0.12


@dataclass(frozen=True)
class Problem:
    """A chain of groups with skips; latency with a price on every change, loss from noise that adds up."""

    layout: Layout
    latency: Costs
    noise: Costs

    def truth(self, assignment: Assignment) -> tuple[float, float]:
        precisions = self.layout.precisions_of([assignment])
        noise = self.layout.values(self.noise, precisions)[0]
        return float(self.layout.values(self.latency, precisions)[0]), float(CEILING * noise**1.2)

    def priors(self) -> Priors:
        baselines = []
        for assignment in self.layout.space.baselines.values():
            row = self.layout.precisions_of([assignment])[0]
            times = [LayerTime(g, "conv", g, False, 1.2 * self.latency.nodes[i, row[i]]) for i, g in self.named()]
            baselines.append(Baseline(row, self.truth(assignment)[0], tuple(times)))
        return Priors(latency_prior(self.layout, baselines), noise_prior(self.layout, self.noise.nodes))

    def named(self) -> list[tuple[int, str]]:
        return list(enumerate(self.layout.groups))

    def front(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        points = front(self.layout.pairwise(self.latency), self.layout.pairwise(self.noise))
        return np.log([p.first for p in points]), CEILING * np.array([max(p.second, 0.0) for p in points]) ** 1.2


def make_problem(groups: int = 14, seed: int = 0) -> Problem:
    names = [f"g{i:03d}" for i in range(groups)]
    edges = [Edge(a, b, f"{a}{b}", 100_000) for a, b in itertools.pairwise(names)]
    edges += [Edge(names[i], names[i + 2], f"skip{i}", 100_000) for i in range(0, groups - 2, 2)]
    choices = {name: tuple(Choice(p, True) for p in THREE) for name in names}
    space = Space(choices, tuple(Variable(name, (name,), THREE) for name in names))
    rng = np.random.default_rng(seed)
    time = rng.lognormal(0, 0.5, groups)
    time /= time.sum()
    nodes = np.stack([time, time * rng.uniform(0.4, 0.6, groups), time * rng.uniform(0.25, 0.45, groups)], axis=1)
    changes = np.where(np.eye(PRECISIONS, dtype=bool), 0.0, 0.012) * rng.lognormal(0, 0.3, (len(edges), 1, 1))
    noise = rng.lognormal(0, 1.5, groups)
    noise /= noise.sum()
    quiet = np.stack([0 * noise, 0.003 * noise, noise], axis=1)
    layout = make_layout(names, edges, space)
    return Problem(layout, Costs(0.02, nodes, changes), Costs(0.0, quiet, 0 * changes))


class Search:
    """Ask, measure with noise, tell; as the runner does it."""

    def __init__(
        self,
        problem: Problem,
        method: str = "guided",
        seed: int = 0,
        latency_std: float = 0.004,
        loss_std: float = 0.002,
        **guidance: Any,
    ) -> None:
        self.problem = problem
        self.space = problem.layout.space
        self.noise = latency_std, loss_std
        priors = problem.priors()
        sampler_guidance = Guidance(problem.layout, **{"priors": lambda: priors, **guidance})
        sampler = make_sampler(method, seed, 0, sampler_guidance)
        self.study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        self.rng = np.random.default_rng(seed)
        self.measurements: list[tuple[float, float]] = []
        for assignment in self.space.baselines.values():
            self.study.enqueue_trial(self.space.codes(assignment))

    def ask(self) -> tuple[optuna.Trial, Assignment]:
        trial = self.study.ask()
        codes = {v.id: trial.suggest_int(v.id, 0, len(v.precisions) - 1) for v in self.space.variables}
        predicted = getattr(self.study.sampler, "predicted", {}).pop(trial.number, None)
        if predicted is not None:
            trial.set_user_attr(FORECAST, predicted.to_json())
        return trial, self.space.assignment(codes)

    def tell(self, trial: optuna.Trial, assignment: Assignment) -> None:
        ms, loss = self.problem.truth(assignment)
        self.measurements.append((ms, loss))
        latency_std, loss_std = self.noise
        trial.set_user_attr(MEASURED, [0.004, loss_std, 1.0])
        noise = self.rng.standard_normal(2)
        self.study.tell(trial, (ms * float(np.exp(latency_std * noise[0])), loss + loss_std * noise[1]))

    def run(self, trials: int) -> Search:
        for _ in range(trials):
            self.tell(*self.ask())
        return self

    def share(self) -> float:
        """Hypervolume of what was found, as a share of what all weighings of the truth find."""
        uniforms = np.array(self.measurements[: len(self.space.baselines)])
        corner = acquisition.reference(uniforms[:, 0], uniforms[:, 1], 0.0)
        ms, loss = np.array(self.measurements).T
        kept = acquisition.front(np.log(ms), loss)
        return volume(np.log(ms)[kept], loss[kept], corner) / volume(*self.problem.front(), corner)


def volume(log_ms: Any, loss: Any, corner: acquisition.Reference) -> float:
    ends = np.append(log_ms[1:], corner.log_ms)
    return float(np.sum((ends - log_ms) * np.maximum(corner.loss - loss, 0) * (log_ms < corner.log_ms)))
