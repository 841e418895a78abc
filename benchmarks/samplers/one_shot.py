"""The plain use of what is known beforehand: solve the additive program once for a sweep of budgets, then measure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.bench import Bench
from benchmarks.samplers.optuna_methods import known_priors
from benchmarks.samplers.search_orders import climb_on
from search.forecast.models import Priors
from search.solver.limited import within
from search.solver.solve import front
from search.space.layout import Codes, Costs, Layout

BEFORE_CLIMBING = 20  # points of the sweep that are measured first
_BUDGETS = 60  # of the sweep, beside the corners of the front
_CORNERS = 40


def one_shot(bench: Bench) -> None:
    """The points of the sweep, each in the middle of the largest gap that those before it leave."""
    bench.baselines()
    for codes in sweep(bench):
        bench.evaluate(codes)


def one_shot_then_climb(bench: Bench) -> None:
    """The first points of the sweep, then hill climbing from what was found."""
    bench.baselines()
    for codes in sweep(bench)[:BEFORE_CLIMBING]:
        bench.evaluate(codes)
    climb_on(bench)


def sweep(bench: Bench) -> list[Codes]:
    """The points of the sweep by what is known before any mix is measured."""
    return sweep_of(bench.problem.layout, known_priors(bench, bench.problem.layout))


def sweep_of(layout: Layout, priors: Priors) -> list[Codes]:
    """Codes that are best under the additive model within one budget each, in the order that fills gaps."""
    still = np.zeros((len(layout.edges), len(layout.palette), len(layout.palette)))
    latency, noise = layout.pairwise(priors.latency.mean()), layout.pairwise(Costs(0.0, priors.noise.nodes, still))
    corners = front(latency, noise, _CORNERS)
    latencies = {tuple(point.codes.tolist()): point.first for point in corners}
    for budget in np.linspace(corners[0].first, corners[-1].first, _BUDGETS + 2)[1:-1]:
        solution = within(noise, latency, float(budget), 1e-2, looked_at=6000)
        if solution is not None:
            latencies[tuple(solution.codes.tolist())] = solution.limited
    codes = np.array(list(latencies), dtype=np.int64)
    return [codes[place] for place in spread_order(np.log(list(latencies.values())))]


def spread_order(values: NDArray[np.float64]) -> list[int]:
    """Places in an order in which each is as far as possible from all before it; the middle one first."""
    order = [int(np.argmin(np.abs(values - (values.min() + values.max()) / 2)))]
    nearest = np.abs(values - values[order[0]])
    while len(order) < len(values):
        nearest[order] = -1.0
        order.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.abs(values - values[order[-1]]))
    return order
