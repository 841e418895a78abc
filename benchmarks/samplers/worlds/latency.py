"""What an engine takes: runs of equal precision are fused, tactics jump, conversions cost, opaque regions fall back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.worlds.graphs import Graph
from search.space.layout import Layout, Precisions

Floats = NDArray[np.float64]
_OVERHEAD_MS, _FP32_MS = 0.1, 10.0
_JUMP = 0.08  # of a run's time, up or down, by its ends and its precision
_SAVED = 0.16  # of a long run's time that fusing saves
# Of FP32's time in FP16 and INT8; each world moves them a little. Those between lie evenly on a scale of logarithms.
_GAINS = {"conv": (0.55, 0.34), "gemm": (0.52, 0.32), "depthwise": (0.62, 0.66), "scores": (0.6, 0.8)}
_MIX_PENALTY = {"slowest": 0.0, "broken": 0.5}


@dataclass(frozen=True)
class Latency:
    """The truth about latency.

    Attributes:
        nodes: (groups, precisions) ms of every group when nothing is fused.
        chains: groups in the order in which runs are fused.
        jumps: of every chain (precisions, length, length) factor on a run's time, by its first and last place.
        windows: (groups of the window, factor where all are in one precision, factor where only the inner ones differ).
        changes: (edges, precisions, precisions) ms.
        regions: groups of every opaque region; `kind` says what happens to one whose precisions are mixed, which are
            those of no uniform assignment.
    """

    layout: Layout
    nodes: Floats
    chains: list[NDArray[np.int64]]
    jumps: list[Floats]
    windows: list[tuple[NDArray[np.int64], float, float]]
    changes: Floats
    regions: list[NDArray[np.int64]]
    kind: str
    whole: Floats

    def __call__(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,) ms."""
        return _OVERHEAD_MS + self.by_group(precisions).sum(axis=1) + self.conversions(precisions)

    def by_group(self, precisions: Precisions) -> Floats:
        """(n, groups) ms that every group takes where it runs."""
        ran = precisions.copy()
        factor = np.ones(precisions.shape)
        for place, members in enumerate(self.regions):
            inside = precisions[:, members]
            mixed = (inside[:, None] != self.layout.uniforms[:, members]).any(axis=2).all(axis=1)
            ran[np.ix_(mixed, members)] = inside.min(axis=1)[mixed, None]
            own = self.whole[place, inside[:, 0]]
            factor[:, members] = np.where(mixed, 1 + _MIX_PENALTY[self.kind], own)[:, None]
        took = factor * self.nodes[np.arange(precisions.shape[1]), ran]
        for chain, jumps in zip(self.chains, self.jumps, strict=True):
            took[:, chain] *= _fused(ran[:, chain], jumps)
        for members, alike, broken in self.windows:
            inside = ran[:, members]
            ends = inside[:, 0] == inside[:, -1]
            same = (inside == inside[:, :1]).all(axis=1)
            took[:, members] *= np.where(same, alike, np.where(ends, broken, 1.0))[:, None]
        return took

    def conversions(self, precisions: Precisions) -> Floats:
        """(n,) ms of changing precision along edges."""
        source, target = precisions[:, self.layout.edges[:, 0]], precisions[:, self.layout.edges[:, 1]]
        return np.asarray(self.changes[np.arange(len(self.layout.edges)), source, target].sum(axis=1))


def _fused(precisions: Precisions, jumps: Floats) -> Floats:
    """(n, length) factors on the times of a chain's groups."""
    rows, length = precisions.shape
    starts, ends = np.zeros((2, rows, length), dtype=np.int64)
    for place in range(1, length):
        same = precisions[:, place] == precisions[:, place - 1]
        starts[:, place] = np.where(same, starts[:, place - 1], place)
    ends[:, -1] = length - 1
    for place in range(length - 2, -1, -1):
        same = precisions[:, place] == precisions[:, place + 1]
        ends[:, place] = np.where(same, ends[:, place + 1], place)
    long = ends - starts + 1
    saved = _SAVED * (1 - 1 / np.minimum(long, 5)) / (1 - 1 / 5)
    return (1 - saved) * jumps[precisions, starts, ends]


def make(graph: Graph, layout: Layout, kind: str, rng: np.random.Generator) -> Latency:
    """The latency of a graph; `kind` of opaque regions is a key of `_MIX_PENALTY`."""
    count = len(layout.palette)
    nodes = _nodes(graph, count, rng)
    chains = graph.chains()
    jumps = [rng.uniform(1 - _JUMP, 1 + _JUMP, (count, len(chain), len(chain))) for chain in chains]
    typical = float(nodes[:, 1].mean())
    moved = layout.elements / layout.elements.mean()
    each = typical * (0.05 + 0.12 * moved) * rng.lognormal(0, 0.3, len(moved))
    pair = rng.uniform(0.7, 1.3, (1, count, count)) * (1 - np.eye(count))
    regions = [np.array(members, dtype=np.int64) for members in graph.regions]
    hidden = {int(member) for members in regions for member in members}
    whole = rng.uniform(0.7, 0.85, (len(regions), count))
    windows = _windows([chain for chain in chains if not hidden.intersection(chain.tolist())], rng)
    return Latency(layout, nodes, chains, jumps, windows, each[:, None, None] * pair, regions, kind, whole)


def _nodes(graph: Graph, count: int, rng: np.random.Generator) -> Floats:
    """(groups, precisions), of which there are three, and more with some between FP16 and INT8."""
    own = {kind: np.array(gains) * rng.uniform(0.9, 1.1, 2) for kind, gains in _GAINS.items()}
    own["context"] = own["scores"]
    by_kind = {kind: [1.0, *np.geomspace(half, eight, count - 1)] for kind, (half, eight) in own.items()}
    gains = np.array([by_kind[kind] for kind in graph.kinds]) * rng.lognormal(0, 0.08, (len(graph.kinds), count))
    nodes = np.array(graph.work)[:, None] * gains
    return np.asarray(nodes * _FP32_MS / nodes[:, 0].sum())


def _windows(chains: list[NDArray[np.int64]], rng: np.random.Generator) -> list[tuple[NDArray[np.int64], float, float]]:
    """Draw three to five groups in a row: faster where all are alike, slower where inner ones differ."""
    windows = []
    for chain in chains:
        for _ in range(len(chain) // 4):
            length = int(rng.integers(3, 6))
            if length <= len(chain):
                start = int(rng.integers(len(chain) - length + 1))
                windows.append((chain[start : start + length], rng.uniform(0.85, 1.0), rng.uniform(1.0, 1.15)))
    return windows
