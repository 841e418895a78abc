"""Layouts of a few groups: a chain, and a block of attention."""

from __future__ import annotations

from search.graph.grouping import Edge
from search.space.choices import Choice, Space, Variable
from search.space.layout import Layout, make_layout
from tests.support.assignments import THREE


def layout_of(count: int, ends: list[tuple[int, int]]) -> Layout:
    names = [f"g{i:02d}" for i in range(count)]
    space = Space(
        {name: tuple(Choice(p, True) for p in THREE) for name in names},
        tuple(Variable(name, (name,), THREE) for name in names),
    )
    return make_layout(names, [Edge(names[s], names[t], f"{s}", 10) for s, t in ends], space)


CHAIN = layout_of(6, [(i, i + 1) for i in range(5)])
# A stem, two blocks of attention that ends in a sum with a skip, and a head.
ATTENTION = layout_of(
    10, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (0, 4), (4, 5), (4, 6), (5, 7), (6, 7), (4, 7), (7, 8), (8, 9)]
)
