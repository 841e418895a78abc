"""How long the solver takes on residual networks and transformers of 21 to 1,000 groups, with made-up costs.

usage: python benchmarks/solver.py [--sizes 21 53 200 500 1000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from common import load_text

from search.solver import integer_program as program
from search.solver.elimination import Eliminator
from search.solver.solve import best_new, front, minima, minimize, within
from search.space.layout import Pairwise
from search.space.structure import Structure

SIZES = (21, 53, 200, 500, 1000)
REPEATS = 5
BATCH = 64
FRONT = 30
Edges = list[tuple[int, int]]


def residual(groups: int) -> Edges:
    """A stem, then blocks of two groups with a skip around them, every fourth with a group on the skip."""
    edges, last, first = [], 0, 1
    while first + 2 < groups:
        edges += [(last, first), (first, first + 1)]
        if len(edges) % 4:
            edges.append((last, first + 1))
            last, first = first + 1, first + 2
        else:
            edges += [(last, first + 2), (first + 1, first + 2)]
            last, first = first + 2, first + 3
    return edges + [(i - 1 if i > first else last, i) for i in range(first, groups)]


def transformer(groups: int) -> Edges:
    """A patch embedding, then blocks of q, k, v, two products, projection and two linear groups, with skips."""
    edges, last = [], 0
    for q in range(1, groups - 8, 8):
        k, v, qk, pv, projected, up, down = range(q + 1, q + 8)
        edges += [(last, q), (last, k), (last, v), (q, qk), (k, qk), (qk, pv), (v, pv), (pv, projected)]
        edges += [(last, projected), (projected, up), (up, down), (projected, down)]
        last = down
    return edges + [(i - 1 if i > last + 1 else last, i) for i in range(last + 1, groups)]


GRAPHS: dict[str, Callable[[int], Edges]] = {"residual": residual, "transformer": transformer}


def costs(groups: int, edges: Edges) -> tuple[Pairwise, Pairwise]:
    """Latency, with a cost where the precision changes, and output noise."""
    rng = np.random.default_rng(0)
    times = rng.lognormal(0, 0.7, (groups, 1)) * [1.0, 0.55, 0.35] * rng.uniform(0.9, 1.1, (groups, 3))
    changes = {edge: rng.lognormal(-1.5, 0.5) * (1 - np.eye(3)) for edge in edges}
    noise = rng.lognormal(0, 1.2, (groups, 1)) * [0.0, 1e-5, 1e-3]
    return Pairwise(0.1 * groups, tuple(times), changes), Pairwise(0.0, tuple(noise), {})


def main(sizes: Sequence[int] = SIZES) -> dict[str, float]:
    """Milliseconds, by graph, number of groups and what was solved; and the width of the widest table."""
    found: dict[str, float] = {}
    for graph, edges in GRAPHS.items():
        for groups in sizes:
            measured = times(*costs(groups, edges(groups)))
            found.update({f"{graph}.{groups}.{what}": value for what, value in measured.items()})
            figures = ", ".join(f"{what} {value:.1f}" for what, value in measured.items())
            print(f"{graph} {groups}: {figures}", flush=True)
    print(f"medians of {REPEATS}, in ms; {load_text()}")
    return found


def times(latency: Pairwise, noise: Pairwise) -> dict[str, float]:
    structure = Structure.of(latency, noise)
    steps = Eliminator(structure).steps
    assert steps is not None
    draws = structure.terms(latency) + np.logspace(0, 5, BATCH)[:, None] * structure.terms(noise)
    fastest = minimize(latency)
    limit = noise.value(fastest) / 4
    budget = (structure.terms(noise), limit)
    solved: dict[str, Callable[[], Any]] = {
        "order": partial(Eliminator, structure),
        "one": partial(minimize, latency),
        f"batch of {BATCH}": partial(minima, structure, draws),
        f"front of {FRONT}": partial(front, latency, noise, FRONT),
        "whole front": partial(front, latency, noise, 10_000),
        "best new": partial(best_new, latency, {tuple(fastest.tolist())}),
        "within 0.1 %": partial(within, latency, noise, limit),
        "HiGHS alone": partial(program.solve, structure, structure.terms(latency), latency.base, budget, gap=1e-3),
    }
    found = {what: median_ms(solve) for what, solve in solved.items()}
    return {"width": max(len(step.scope) for step in steps), "corners": len(front(latency, noise, 10_000)), **found}


def median_ms(call: Callable[[], Any]) -> float:
    """Of `REPEATS` calls, or of fewer where those take seconds."""
    taken: list[float] = []
    while len(taken) < REPEATS and sum(taken) < 2000:
        start = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - start))
    return float(np.median(taken))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    main(parser.parse_args().sizes)
