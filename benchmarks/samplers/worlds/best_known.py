"""The best-known front of a world: local search on its noiseless answers, begun from the front of every run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator import best_front
from benchmarks.samplers.simulator.best_front import Front
from benchmarks.samplers.simulator.problem import Problem
from search.space.layout import Codes

LEAST_TRIED = 60_000
_ROUNDS = 60
_AT_ONCE = 6000  # assignments of a round
_STRETCH = 8


def find(problem: Problem, starts: Codes, seed: int = 0, least: int = LEAST_TRIED) -> Front:
    """Search until `least` assignments were tried and a round finds nothing, or for 60 rounds.

    Args:
        starts: (n, decisions) codes to begin from, beside the uniform assignments.
    """
    rng = np.random.default_rng(seed)
    uniform = np.array(list(problem.baselines.values()))
    front = best_front.measured(problem, np.concatenate([uniform, starts, best_front.blocky(problem, 2000, rng)]))
    for _ in range(_ROUNDS):
        before = front.volume(problem.reference)
        front = best_front.joined(problem, front, _variations(problem, front, rng))
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
    found = (np.arange(count) >= start) & (np.arange(count) < start + length)
    if len(problem.layout.blocks):
        whole = rng.random(_AT_ONCE) < 0.2
        owner = problem.layout.blocks
        found[whole] = owner[None] == owner[start[whole, 0]][:, None]
    return np.asarray(found)
