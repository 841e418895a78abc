"""Layouts of a few groups: a chain, and a block of attention."""

from __future__ import annotations

from search.graph.grouping import Edge
from search.space.choices import Choice, Space, Variable
from search.space.layout import Layout, make_layout
from tests.support.assignments import THREE


def layout_of(count: int, ends: list[tuple[int, int]], floats: tuple[int, ...] = ()) -> Layout:
    """Groups with these edges; those at the places `floats` have no INT8, as products of activations."""
    offered = {f"g{i:02d}": THREE[:2] if i in floats else THREE for i in range(count)}
    names = list(offered)
    space = Space(
        {name: tuple(Choice(p, True) for p in some) for name, some in offered.items()},
        tuple(Variable(name, (name,), some) for name, some in offered.items()),
    )
    return make_layout(names, [Edge(names[s], names[t], f"{s}", 10) for s, t in ends], space)


CHAIN = layout_of(6, [(i, i + 1) for i in range(5)])
# A stem, two blocks of attention that ends in a sum with a skip, and a head.
ATTENTION = layout_of(
    10, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (0, 4), (4, 5), (4, 6), (5, 7), (6, 7), (4, 7), (7, 8), (8, 9)]
)
