"""Made-up transformers of any number of groups, to see what a search does where nobody has measured.

Blocks of eight groups (q, k, v, two products, projection, two linear layers) with skips; what a kind of group takes and
how much it errs is the same in every block but for a little, as in real ones. No sum of terms is exactly right: both
answers are multiplied with the exponential of a random function of pairs and triples of groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator import MEASURED, PRECISIONS, misfit
from benchmarks.samplers.simulator.misfit import Misfit
from benchmarks.samplers.simulator.problem import Problem
from search.graph.grouping import Edge
from search.space.choices import Choice, Space, Variable
from search.space.layout import Costs, Layout, Precisions, make_layout
from search.values import LayerTime, Precision

BLOCK = 8
MISFIT = (0.02, 0.15)  # of the logarithms of latency and loss
CEILING = 0.6
INT8_LOSS = 0.08
_CORNERS = 300
_ROUNDS = 4

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """Answers without noise: sums of terms, then a curve of the error, then the misfits."""

    layout: Layout
    latency: Costs
    error: Costs
    misfits: tuple[Misfit, Misfit]

    def __call__(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """(n, groups) precisions to (n,) ms and (n,) loss."""
        ms = self.layout.values(self.latency, precisions) * np.exp(self.misfits[0](precisions))
        loss = -CEILING * np.expm1(-INT8_LOSS * self.output_error(precisions) ** 1.2 / CEILING)
        return ms, loss * np.exp(self.misfits[1](precisions))

    def output_error(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,), 1 where all is in INT8."""
        return self.layout.values(self.error, precisions)


def make(groups: int, seed: int = 0) -> Problem:
    """A transformer of about as many groups; the same seed gives the same one."""
    rng = np.random.default_rng([seed, groups])
    names, edges = _graph(max(1, (groups - 2) // BLOCK))
    return problem_of(f"transformer_{len(names)}", names, edges, blocks(len(names)), rng)


def problem_of(
    name: str, names: list[str], edges: list[Edge], owners: NDArray[np.int64], rng: np.random.Generator
) -> Problem:
    """A problem on any graph, with the costs of a transformer's groups in turn; `owners` has each group's block."""
    layout = replace(_free_layout(names, edges), blocks=owners)
    truth = Truth(layout, _latency(layout, rng), _error(layout, rng), _misfits(len(names), rng))
    uniform = np.repeat(np.arange(PRECISIONS)[:, None], len(names), axis=1)
    profiles = {precision: _profile(layout, truth.latency, p, rng) for p, precision in enumerate(MEASURED)}
    codes = {precision.label: row for precision, row in zip(MEASURED, uniform, strict=True)}
    return Problem(name, layout, truth, truth.output_error, codes, profiles)


def untold(problem: Problem) -> Problem:
    """The same with neither profiles nor sensitivities: only the uniform engines' latencies are known beforehand."""
    return replace(problem, profiles={}, alone=np.full((len(problem.layout.groups), PRECISIONS), np.nan))


def blocks(groups: int) -> NDArray[np.int64]:
    """(groups,) the block of every group: what comes before and after stands alone."""
    count = (groups - 2) // BLOCK
    return np.concatenate([[0], 1 + np.arange(BLOCK * count) // BLOCK, [count + 1]])


def _free_layout(groups: list[str], edges: list[Edge]) -> Layout:
    """The layout where every group may run in every precision."""
    choices = {group: tuple(Choice(precision, True) for precision in MEASURED) for group in groups}
    space = Space(choices, tuple(Variable(group, (group,), MEASURED) for group in groups))
    return make_layout(groups, edges, space)


def _graph(count: int) -> tuple[list[str], list[Edge]]:
    """Names and edges of `count` blocks between a patch embedding and a head."""
    parts = ("q", "k", "v", "qk", "pv", "proj", "fc1", "fc2")
    names, edges, last = ["/embed/Conv"], [], "/embed/Conv"
    for block in range(count):
        q, k, v, qk, pv, proj, fc1, fc2 = (f"/blocks.{block}/{part}" for part in parts)
        ends = [(last, q), (last, k), (last, v), (q, qk), (k, qk), (qk, pv), (v, pv), (pv, proj), (last, proj)]
        for source, target in [*ends, (proj, fc1), (fc1, fc2), (proj, fc2)]:
            edges.append(Edge(source, target, source, 4_000_000 if source == fc1 else 1_000_000))
        names += [q, k, v, qk, pv, proj, fc1, fc2]
        last = fc2
    return [*names, "/head/Gemm"], [*edges, Edge(last, "/head/Gemm", last, 1_000_000)]


def _kinds(groups: int) -> NDArray[np.int64]:
    """(groups,) 0 for the ends, else 1 to `BLOCK`."""
    return np.concatenate([[0], 1 + np.arange(groups - 2) % BLOCK, [0]])


def _latency(layout: Layout, rng: np.random.Generator) -> Costs:
    """10 ms in FP32; products gain nothing from INT8; a change costs a few hundredths of an average group."""
    groups = len(layout.groups)
    kinds, work = _kinds(groups), np.array([2.0, 1.0, 1.0, 1.0, 0.6, 0.6, 1.0, 4.0, 4.0])
    gains = np.stack(
        [np.ones(BLOCK + 1), rng.uniform(0.45, 0.65, BLOCK + 1), rng.uniform(0.25, 0.45, BLOCK + 1)], axis=1
    )
    gains[[4, 5], MEASURED.index(Precision.INT8)] = rng.uniform(0.6, 0.9, 2)
    nodes = (work[kinds] * rng.lognormal(0, 0.1, groups))[:, None] * gains[kinds] * rng.lognormal(0, 0.05, (groups, 3))
    nodes *= 10.0 / nodes[:, 0].sum()
    each = 0.15 * nodes[:, 1].mean() * rng.lognormal(0, 0.3, len(layout.edges))
    return Costs(0.05, nodes, each[:, None, None] * (1 - np.eye(PRECISIONS)))


def _error(layout: Layout, rng: np.random.Generator) -> Costs:
    """Few groups make most of it; FP16 adds nearly none."""
    groups = len(layout.groups)
    noise = rng.lognormal(0, 1.0, BLOCK + 1)[_kinds(groups)] * rng.lognormal(0, 1.2, groups)
    noise /= noise.sum()
    nodes = np.stack([0 * noise, 0.003 * noise, noise], axis=1)
    return Costs(0.0, nodes, np.zeros((len(layout.edges), PRECISIONS, PRECISIONS)))


def _misfits(groups: int, rng: np.random.Generator) -> tuple[Misfit, Misfit]:
    """Nothing at the uniform assignments, whose answers the sums give."""
    uniform = np.repeat(np.arange(PRECISIONS, dtype=np.int8)[:, None], groups, axis=1)
    seeds = rng.integers(2**31, size=2)
    drawn = [
        misfit.draw(sd, uniform, np.zeros(3), np.full(3, 1e-3), int(seed))
        for sd, seed in zip(MISFIT, seeds, strict=True)
    ]
    return drawn[0], drawn[1]


def _profile(layout: Layout, costs: Costs, precision: int, rng: np.random.Generator) -> tuple[LayerTime, ...]:
    """Layers of a uniform engine, each wrong by a tenth."""
    times = 1.2 * costs.nodes[:, precision] * rng.lognormal(0, 0.1, len(layout.groups))
    return tuple(LayerTime(g, "Gemm", g, False, float(ms)) for g, ms in zip(layout.groups, times, strict=True))
