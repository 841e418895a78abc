"""The best-known front of a network, by local search on its noiseless answers with no regard to the time it takes.

Knows nothing of any sampler under test: points that none dominates are varied and crossed, begun from the uniform
assignments, random ones, and the fronts of runs where there are some.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator.problem import Problem
from search.space.layout import Codes
from studies.judging.rules.hypervolume import Corner, hypervolume

LEAST_TRIED = 60_000
_ROUNDS = 60
_AT_ONCE = 6000  # assignments of a round
_STRETCH = 8

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Front:
    """Points that none dominates, by rising latency.

    Attributes:
        codes: (n, decisions).
        ms, loss: (n,) without noise.
        tried: how many assignments were looked at.
    """

    codes: Codes
    ms: Floats
    loss: Floats
    tried: int

    def volume(self, reference: Corner) -> float:
        return hypervolume(self.ms, self.loss, reference)

    def best_loss(self, budget_ms: float) -> float:
        """Least loss within a latency."""
        return float(self.loss[self.ms <= budget_ms].min())


def measured(problem: Problem, codes: Codes) -> Front:
    ms, loss = problem.measures(codes)
    kept = undominated(ms, loss)
    return Front(codes[kept], ms[kept], loss[kept], len(codes))


def joined(problem: Problem, front: Front, codes: Codes) -> Front:
    """The front with other assignments, which are measured."""
    ms, loss = problem.measures(codes)
    all_ms, all_loss = np.concatenate([front.ms, ms]), np.concatenate([front.loss, loss])
    kept = undominated(all_ms, all_loss)
    best_codes = np.concatenate([front.codes, codes])[kept]
    return Front(best_codes, all_ms[kept], all_loss[kept], front.tried + len(codes))


def undominated(ms: Floats, loss: Floats) -> NDArray[np.int64]:
    """Places of the points that none dominates, by rising latency; of equal ones the first."""
    order = np.lexsort((loss, ms))
    least = np.minimum.accumulate(np.concatenate([[np.inf], loss[order][:-1]]))
    return np.asarray(order[loss[order] < least])


def random(problem: Problem, count: int, rng: np.random.Generator) -> Codes:
    """(count, decisions), every precision equally likely."""
    return np.stack([rng.integers(width, size=count) for width in problem.widths], axis=1)


def blocky(problem: Problem, count: int, rng: np.random.Generator) -> Codes:
    """Random precisions by stretches: changes between neighbours cost, so these are better than random ones."""
    widths = np.array(problem.widths)
    rows = rng.integers(widths.max(), size=(count, len(widths)))
    repeats = rng.random((count, len(widths))) < rng.uniform(0.5, 0.98, size=(count, 1))
    for i in range(1, len(widths)):
        rows[:, i] = np.where(repeats[:, i], rows[:, i - 1], rows[:, i])
    return np.minimum(rows, widths - 1)


def find(problem: Problem, starts: Codes, seed: int = 0, least: int = LEAST_TRIED) -> Front:
    """Search until `least` assignments were tried and a round finds nothing, or for 60 rounds.

    Args:
        starts: (n, decisions) codes to begin from, beside the uniform assignments.
    """
    rng = np.random.default_rng(seed)
    uniform = np.array(list(problem.baselines.values()))
    front = measured(problem, np.concatenate([uniform, starts, blocky(problem, 2000, rng)]))
    for _ in range(_ROUNDS):
        before = front.volume(problem.reference)
        front = joined(problem, front, _variations(problem, front, rng))
        if front.tried >= least and front.volume(problem.reference) < before * (1 + 1e-5):
            break
    return front


def _variations(problem: Problem, front: Front, rng: np.random.Generator) -> Codes:
    """Points of the front with one to three parts changed, and crossings of two of them."""
    rows = front.codes[rng.integers(len(front.codes), size=_AT_ONCE)].copy()
    widths, places = np.array(problem.widths), np.arange(rows.shape[1])
    for _ in range(3):
        again = rng.random(_AT_ONCE) < 0.6
        inside = _parts(problem, rng) & again[:, None]
        code = rng.integers(widths.max(), size=_AT_ONCE)[:, None]
        rows = np.where(inside, np.minimum(code, widths - 1), rows)
    start, stop = np.sort(rng.integers(rows.shape[1] + 1, size=(2, _AT_ONCE // 3)), axis=0)
    other = front.codes[rng.integers(len(front.codes), size=_AT_ONCE // 3)]
    inside = (places >= start[:, None]) & (places < stop[:, None])
    rows[: _AT_ONCE // 3] = np.where(inside, other, rows[: _AT_ONCE // 3])
    return np.unique(rows, axis=0)


def _parts(problem: Problem, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(n, decisions) what changes together: one decision, a stretch, or a repeated structure."""
    count = len(problem.widths)
    start = rng.integers(count, size=_AT_ONCE)[:, None]
    length = 1 + (rng.random((_AT_ONCE, 1)) < 0.5) * rng.integers(_STRETCH, size=(_AT_ONCE, 1))
    parts = (np.arange(count) >= start) & (np.arange(count) < start + length)
    if len(problem.layout.blocks):
        whole = rng.random(_AT_ONCE) < 0.2
        owner = problem.layout.blocks
        parts[whole] = owner[None] == owner[start[whole, 0]][:, None]
    return np.asarray(parts)
