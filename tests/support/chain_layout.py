"""A chain of twelve groups with skips, and losses of its assignments."""

from __future__ import annotations

import numpy as np

from search.graph.grouping import Edge
from search.space.choices import Choice, Space, Variable
from search.space.layout import make_layout
from tests.support.assignments import THREE

PRECISIONS = len(THREE)
FP32, FP16, INT8 = range(PRECISIONS)  # places in the layout
GROUPS = 12


def chain_with_skips(groups=GROUPS):
    """Every group feeds the next, every second one also the one after that."""
    names = [f"g{i:03d}" for i in range(groups)]
    spans = [(i, i + 1) for i in range(groups - 1)] + [(i, i + 2) for i in range(0, groups - 2, 2)]
    edges = [Edge(names[i], names[j], names[i], 1000 * (i + 1)) for i, j in spans]
    space = Space(
        {name: tuple(Choice(precision, True) for precision in THREE) for name in names},
        tuple(Variable(name, (name,), THREE) for name in names),
    )
    return make_layout(names, edges, space)


LAYOUT = chain_with_skips()


def uniform(precision, groups=GROUPS):
    return np.full(groups, int(precision), np.int8)


def mixes(rows, seed=0, groups=GROUPS):
    return np.random.default_rng(seed).integers(0, 3, (rows, groups)).astype(np.int8)


def losses(precisions, seed=0, worst=0.2, power=1.0, samples=4000):
    """True and measured losses, and their standard deviations."""
    noise = np.zeros((GROUPS, PRECISIONS))
    noise[:, INT8] = np.random.default_rng(77).lognormal(0, 1, GROUPS)
    noise[:, FP16] = 0.01 * noise[:, INT8]
    total = noise[np.arange(GROUPS), precisions].sum(axis=1) / noise[:, INT8].sum()
    truth = worst * total**power
    loss = np.random.default_rng(seed).binomial(samples, truth) / samples
    return truth, loss, np.sqrt(np.maximum(loss, 1 / samples) / samples)
