"""Graphs of made-up networks: names of groups, edges, the chain that each group is fused along, and opaque regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from search.graph.grouping import Edge

_ATTENTION = ("q", "k", "v", "scores", "context", "project", "expand", "shrink")


@dataclass
class Graph:
    """A network's groups in the order that they run.

    Attributes:
        kinds: of every group what it is, such as `conv`, `depthwise` or `scores`.
        work: of every group its multiply-adds, in units of a usual layer.
        blocks: of every group the repeated structure that it belongs to.
        regions: of every opaque region its groups, by place.
        alike: whether parts of one name take and err much the same in all blocks.
    """

    names: list[str] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    regions: list[list[int]] = field(default_factory=list)
    alike: bool = False

    def add(self, name: str, kind: str, work: float, block: str, sources: list[str], elements: int) -> str:
        """Append a group that reads the outputs of `sources`, each with as many elements; its name."""
        self.edges += [Edge(source, name, source, elements) for source in sources]
        self.names.append(name)
        self.kinds.append(kind)
        self.work.append(work)
        self.blocks.append(block)
        return name

    def chains(self) -> list[NDArray[np.int64]]:
        """The groups along which an engine fuses: each follows the first of its sources that nothing else follows."""
        place = {name: i for i, name in enumerate(self.names)}
        follows: dict[int, int] = {}
        for edge in self.edges:
            source, target = place[edge.source or ""], place[edge.target]
            if target not in follows and source not in follows.values():
                follows[target] = source
        after = {source: target for target, source in follows.items()}
        chains = []
        for start in range(len(self.names)):
            if start not in follows:
                chain = [start]
                while chain[-1] in after:
                    chain.append(after[chain[-1]])
                chains.append(np.array(chain, dtype=np.int64))
        return chains


def residual(groups: int, rng: np.random.Generator) -> Graph:
    """A stem, blocks of two or three convolutions with a skip each, a head."""
    graph, size, block = Graph(), 800_000, 0
    last = graph.add("/stem/Conv", "conv", 1.5, "stem", [], size)
    while len(graph.names) < groups - 1:
        left, length = groups - 1 - len(graph.names), 2 + int(rng.random() < 0.5)
        if block % 4 == 3:
            size = max(size // 2, 50_000)
        name, source, skip = f"block{block}", last, last
        for part in range(min(length, left)):
            sources = [source, skip] if part == length - 1 and skip != source else [source]
            work = float(rng.lognormal(0, 0.4))
            source = graph.add(f"/{name}/conv{part}", "conv", work, name, sources, size)
        last, block = source, block + 1
    graph.add("/head/Gemm", "gemm", 0.4, "head", [last], size)
    return graph


def alike(groups: int, rng: np.random.Generator) -> Graph:
    """A stem, blocks of seven convolutions with a skip that are all alike, a head."""
    graph, size, works = Graph(alike=True), 200_000, rng.lognormal(0, 0.5, 7)
    last = graph.add("/stem/Conv", "conv", 1.5, "stem", [], size)
    for block in range((groups - 2) // 7):
        name, skip = f"block{block}", last
        for part, work in enumerate(works.tolist()):
            last = graph.add(f"/{name}/conv{part}", "conv", work, name, [last, skip] if part == 6 else [last], size)
    graph.add("/head/Gemm", "gemm", 0.4, "head", [last], size)
    return graph


def branching(groups: int, rng: np.random.Generator) -> Graph:
    """Cells of two or three branches of one to three convolutions that a last one joins."""
    graph, size, cell = Graph(), 600_000, 0
    last = graph.add("/stem/Conv", "conv", 1.5, "stem", [], size)
    while len(graph.names) < groups - 1:
        left, name, ends = groups - 1 - len(graph.names), f"cell{cell}", []
        for branch in range(2 + int(rng.random() < 0.5)):
            source = last
            for part in range(1 + int(rng.integers(3))):
                if left > 1:
                    work = float(rng.lognormal(-0.2, 0.6))
                    source = graph.add(f"/{name}/{branch}.{part}", "conv", work, name, [source], size)
                    left -= 1
            ends += [source] if source != last else []
        last = graph.add(f"/{name}/join", "conv", float(rng.lognormal(0, 0.4)), name, ends or [last], size)
        size, cell = (max(size // 2, 40_000), cell + 1) if cell % 3 == 2 else (size, cell + 1)
    graph.add("/head/Gemm", "gemm", 0.4, "head", [last], size)
    return graph


def mobile(groups: int, rng: np.random.Generator) -> Graph:
    """Inverted bottlenecks: expand, depthwise, project; every other block with a skip."""
    graph, size, block = Graph(), 1_000_000, 0
    last = graph.add("/stem/Conv", "conv", 1.2, "stem", [], size)
    while len(graph.names) < groups - 1:
        name, left, source = f"block{block}", groups - 1 - len(graph.names), last
        for part, kind, work in (("expand", "conv", 1.2), ("depthwise", "depthwise", 0.9), ("project", "conv", 0.8))[
            :left
        ]:
            sources = [source, last] if part == "project" and block % 2 else [source]
            wide = size if part == "project" else 4 * size
            source = graph.add(f"/{name}/{part}", kind, work * float(rng.lognormal(0, 0.3)), name, sources, wide)
        last, block = source, block + 1
        size = max(int(size * 0.8), 30_000)
    graph.add("/head/Gemm", "gemm", 0.6, "head", [last], size)
    return graph


def attention(groups: int, rng: np.random.Generator) -> Graph:
    """Encoder blocks of eight groups; attention's six are one opaque region, in every other block the rest too."""
    return _encoder(groups, rng, lambda block: [(0, 6), (6, 8)] if block % 2 else [(0, 6)])


def encoder(groups: int, rng: np.random.Generator) -> Graph:
    """Encoder blocks of eight groups, each one opaque region."""
    return _encoder(groups, rng, lambda block: [(0, 8)])


def _encoder(groups: int, rng: np.random.Generator, regions: Callable[[int], list[tuple[int, int]]]) -> Graph:
    graph, size = Graph(), 500_000
    last = graph.add("/embed/Conv", "conv", 1.0, "embed", [], size)
    for block in range((groups - 2) // len(_ATTENTION)):
        name, start = f"block{block}", len(graph.names)
        full = {part: f"/{name}/{part}" for part in _ATTENTION}
        reads = {
            "q": [last],
            "k": [last],
            "v": [last],
            "scores": [full["q"], full["k"]],
            "context": [full["scores"], full["v"]],
            "project": [full["context"], last],
            "expand": [full["project"]],
            "shrink": [full["expand"], full["project"]],
        }
        works = dict(zip(_ATTENTION, (0.8, 0.8, 0.8, 0.5, 0.5, 0.8, 2.5, 2.5), strict=True))
        for part in _ATTENTION:
            kind = part if part in ("scores", "context") else "gemm"
            work = works[part] * float(rng.lognormal(0, 0.15))
            graph.add(full[part], kind, work, name, reads[part], 4 * size if part == "shrink" else size)
        graph.regions += [list(range(start + first, start + end)) for first, end in regions(block)]
        last = full["shrink"]
    graph.add("/head/Gemm", "gemm", 0.4, "head", [last], size)
    return graph
