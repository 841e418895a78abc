"""The best-known front of a simulated network, found on its noiseless answers with no regard to the time it takes.

Knows nothing of any sampler under test: an archive of points that none dominates grows by local search (every single
change, every stretch of neighbours, every pair along an edge, from every point of the front, until none helps), begun
from the uniform assignments, random ones, and crossings of what was found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator.problem import Problem
from search.space.layout import Codes
from studies.judging.rules.hypervolume import Reference, hypervolume

ROUNDS = 6
_CROSSED = 20_000
_LONGEST = 12

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

    def volume(self, reference: Reference) -> float:
        return hypervolume(self.ms, self.loss, reference)

    def best_loss(self, budget_ms: float) -> float:
        """Least loss within a latency."""
        return float(self.loss[self.ms <= budget_ms].min())


def find(problem: Problem, rounds: int = ROUNDS, seed: int = 0) -> Front:
    """Search for the front, `rounds` times from fresh random points and crossings of the front so far."""
    rng = np.random.default_rng(seed)
    front = measured(problem, np.array(list(problem.baselines.values())))
    for _ in range(rounds):
        fresh = np.concatenate([random(problem, 2000, rng), blocky(problem, 2000, rng)])
        front = improved(problem, joined(problem, front, np.concatenate([fresh, _crossed(front, rng)])))
    return front


def measured(problem: Problem, codes: Codes) -> Front:
    ms, loss = problem.measures(codes)
    kept = undominated(ms, loss)
    return Front(codes[kept], ms[kept], loss[kept], len(codes))


def joined(problem: Problem, front: Front, codes: Codes) -> Front:
    """The front with other assignments, which are measured."""
    ms, loss = problem.measures(codes)
    all_ms, all_loss = np.concatenate([front.ms, ms]), np.concatenate([front.loss, loss])
    kept = undominated(all_ms, all_loss)
    found = np.concatenate([front.codes, codes])[kept]
    return Front(found, all_ms[kept], all_loss[kept], front.tried + len(codes))


def improved(problem: Problem, front: Front) -> Front:
    """Local search until no neighbour of any point of the front joins it."""
    done: set[bytes] = set()
    while True:
        new = [row for row in front.codes if row.tobytes() not in done]
        if not new:
            return front
        for row in new:
            done.add(row.tobytes())
            front = joined(problem, front, neighbours(problem, row))


def neighbours(problem: Problem, codes: Codes) -> Codes:
    """Every assignment that differs in one decision, in a stretch of them, or at both ends of an edge."""
    places = [list(range(i, i + n)) for n in range(1, _LONGEST + 1) for i in range(len(codes) - n + 1)]
    owner = {int(group): d for d, members in enumerate(problem.layout.members) for group in members}
    ends = [(owner.get(int(s)), owner.get(int(t))) for s, t in problem.layout.edges]
    places += [[s, t] for s, t in ends if s is not None and t is not None]
    widths, found = np.array(problem.widths), []
    for place in places:
        for code in range(int(widths[place].max())):
            row = codes.copy()
            row[place] = np.minimum(code, widths[place] - 1)
            found.append(row)
    return np.unique(np.array(found), axis=0)


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


def _crossed(front: Front, rng: np.random.Generator) -> Codes:
    """A stretch of one point of the front put into another, with few changes."""
    n, width = front.codes.shape
    left, right = rng.integers(n, size=(2, _CROSSED))
    start, stop = np.sort(rng.integers(width + 1, size=(2, _CROSSED)), axis=0)
    places = np.arange(width)
    inside = (places >= start[:, None]) & (places < stop[:, None])
    return np.where(inside, front.codes[left], front.codes[right])
