"""Mixes to build while no uniform assignment has been measured, so that no latency can be predicted."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from search.forecast.priors import NoisePrior
from search.space.layout import Codes, Layout

_CUTS = 16  # of each order of decisions, at most: no model exists yet by which to choose among more


def guesses(layout: Layout, noise: NoisePrior | None) -> Codes:
    """(n, decisions) codes of mixes of two precisions, with few changes of precision or little noise.

    For every two precisions: all decisions up to one of them, in the order of the graph, in either precision; and if
    `noise` is known, the most sensitive decisions in the higher precision.
    """
    graph = np.arange(len(layout.members))
    mixes: list[Codes] = []
    for high, low in combinations(layout.space.precisions, 2):
        above, below = (layout.codes_of(layout.space.uniform(precision)) for precision in (high, low))
        mixes += [_cut(graph, above, below), _cut(graph, below, above)]
        if noise is not None:
            harm = np.array([noise.nodes[members, layout.places[low]].sum() for members in layout.members])
            mixes.append(_cut(np.argsort(-harm, kind="stable"), above, below))
    return np.unique(np.concatenate(mixes), axis=0) if mixes else np.zeros((0, len(graph)), dtype=np.int64)


def _cut(order: NDArray[np.int64], first: NDArray[np.int64], rest: NDArray[np.int64]) -> Codes:
    """The codes `first` for the decisions before a cut, and `rest` for those behind it, for some cuts."""
    cuts = np.unique(np.linspace(1, len(order) - 1, _CUTS).round().astype(int)) if len(order) > 1 else np.zeros(0, int)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return np.asarray(np.where(place[None] < cuts[:, None], first, rest), dtype=np.int64)
