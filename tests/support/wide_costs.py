"""Costs over decisions that all share tables, which is too wide for elimination, and all codes of a cost."""

from __future__ import annotations

import itertools

import numpy as np

from search.space.layout import Pairwise


def all_codes(cost: Pairwise) -> list[tuple[int, ...]]:
    """Every choice of codes."""
    return list(itertools.product(*(range(len(costs)) for costs in cost.unary)))


def frustrated(count: int, seed: int) -> Pairwise:
    """Every decision shares a random table with every other: what one likes, another does not."""
    rng = np.random.default_rng(seed)
    pairs = {pair: rng.normal(0, 1, (3, 3)) for pair in itertools.combinations(range(count), 2)}
    return Pairwise(0.0, (np.zeros(3),) * count, pairs)


def tangled(count: int, seed: int) -> tuple[Pairwise, Pairwise]:
    """Every decision shares a table with every other."""
    rng = np.random.default_rng(seed)
    pairs = {pair: rng.uniform(0, 0.2) * (1 - np.eye(3)) for pair in itertools.combinations(range(count), 2)}
    first = Pairwise(1.0, tuple(rng.uniform(0, 1, (count, 3))), pairs)
    return first, Pairwise(0.0, tuple(rng.uniform(0, 1, (count, 3))), {})
