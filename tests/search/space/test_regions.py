"""Regions that may only work as a whole: what the graph, repeated structures and profiles say of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from search.space.regions import between_cuts, divisions
from tests.support.small_layouts import ATTENTION, CHAIN


def test_a_region_lies_between_places_where_a_single_tensor_crosses() -> None:
    assert len(np.unique(between_cuts(CHAIN))) == 6
    owners = between_cuts(ATTENTION)
    assert [np.flatnonzero(owners == owner).tolist() for owner in np.unique(owners)] == [
        [0],
        [1, 2, 3, 4],
        [5, 6, 7],
        [8],
        [9],
    ]


def test_a_chain_without_blocks_has_no_regions() -> None:
    assert divisions(CHAIN) == []


def test_blocks_and_opaque_stretches_are_regions_too() -> None:
    blocks = replace(CHAIN, blocks=np.array([0, 0, 1, 1, 2, 2]))
    (found,) = divisions(blocks)
    assert found.tolist() == [0, 0, 1, 1, 2, 2]
    opaque = np.array([False, True, True, True, False, False])
    first = divisions(CHAIN, opaque)[0]
    assert first.tolist() == [0, 1, 1, 1, 2, 3]


def test_what_would_be_most_of_the_network_is_no_region() -> None:
    assert divisions(CHAIN, np.array([False, True, True, True, True, True])) == []
