"""Joining decisions: blocks are solved first, and then divided where that promises the largest gain.

The time of a solver grows with the number of decisions, and so does the error of random draws: among a thousand unknown
groups, some are always drawn far too good. In a large model, repeated structures therefore share one choice, and only
those are divided from which the models expect a gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search.solver.hull import HullPoint
from search.space.changes import Changes
from search.space.layout import Codes, Costs, Layout, Precisions

LARGE = 200
"""Decisions up to which each is taken on its own."""
_BLOCKS = 150  # taken together at first, at most: fewer than `LARGE`, so that what pays can be divided again


@dataclass(frozen=True)
class Tied:
    """A layout whose decisions are joined to ties.

    Attributes:
        layout: the layout with one decision for each tie. It has the same groups and edges, but another space.
        tables: for every tie (codes, decisions in it) int64, the code that each of its decisions takes.
        decisions: for every tie the indices of its decisions.
    """

    layout: Layout
    tables: tuple[Codes, ...]
    decisions: tuple[NDArray[np.int64], ...]

    def expand(self, codes: Codes) -> Codes:
        """(n, ties) codes to (n, decisions)."""
        decision_codes = np.zeros((len(codes), sum(len(tie) for tie in self.decisions)), dtype=np.int64)
        for column, (tie, table) in enumerate(zip(self.decisions, self.tables, strict=True)):
            decision_codes[:, tie] = table[codes[:, column]]
        return decision_codes


def tie_decisions(layout: Layout, owners: NDArray[np.int64], barred: Costs) -> Tied:
    """Join the decisions with equal numbers.

    The codes of a tie are the precisions of all its decisions. For each code a decision takes that precision, or the
    next higher one that it has and that is not barred.

    Args:
        owners: (decisions,) number of the tie of each decision.
        barred: costs that are +inf where a group cannot have a precision.
    """
    numbers = np.unique(owners, return_inverse=True)[1]
    sizes = np.bincount(numbers)
    ties = np.split(np.argsort(numbers, kind="stable"), np.cumsum(sizes)[:-1]) if len(sizes) else []
    tables = tuple(_tables(layout, ties, np.isinf(layout.entries.sum_groups(barred.nodes))))
    effects, members = zip(
        *(_join_effects(layout, tie, table) for tie, table in zip(ties, tables, strict=True)), strict=True
    )
    return Tied(replace(layout, effects=effects, members=members), tables, tuple(ties))


def _join_effects(layout: Layout, tie: NDArray[np.int64], table: Codes) -> tuple[Precisions, NDArray[np.int64]]:
    """What the codes of a tie give its groups, (codes, groups), and the (groups,) themselves."""
    if len(tie) == 1:
        return layout.effects[tie[0]][table[:, 0]], layout.members[tie[0]]
    precisions = [layout.effects[d][codes] for d, codes in zip(tie, table.T, strict=True)]
    return np.concatenate(precisions, axis=1), np.concatenate([layout.members[d] for d in tie])


def _tables(layout: Layout, ties: Sequence[NDArray[np.int64]], forbidden: NDArray[np.bool_]) -> Iterator[Codes]:
    """For every tie (codes, decisions of the tie): one row for each precision that any of the decisions has."""
    sizes, starts, variables = layout.entries.sizes, layout.entries.starts, layout.space.variables
    levels = np.full((len(sizes), int(sizes.max(initial=1))), len(layout.palette))
    free = np.zeros(levels.shape, dtype=bool)
    decision, code = np.nonzero(np.arange(levels.shape[1]) < sizes[:, None])
    levels[decision, code] = [layout.places[p] for variable in variables for p in variable.precisions]
    free[decision, code] = ~forbidden[starts[decision] + code]
    every = np.arange(len(layout.palette))
    offered = (levels[:, :, None] == every).any(axis=1)
    within = (levels[:, :, None] <= every) & free[:, :, None]
    reach = np.where(within, np.arange(levels.shape[1])[:, None], 0).max(axis=1)
    for tie in ties:
        yield np.ascontiguousarray(reach[tie][:, offered[tie].any(axis=0)].T)


def block_owners(layout: Layout) -> NDArray[np.int64]:
    """(decisions,) number of the block of each decision; neighbouring blocks are joined if there are too many."""
    if len(layout.blocks):
        named = np.array([layout.blocks[members[0]] for members in layout.members], dtype=np.int64)
        numbers = np.unique(named, return_inverse=True)[1].astype(np.int64)
    else:
        numbers = np.arange(len(layout.members))
    count = int(numbers.max(initial=0)) + 1
    return numbers if count <= _BLOCKS else numbers * _BLOCKS // count


def taken_apart(
    layout: Layout, coarse: Tied, latency: Costs, noise: Costs, points: Sequence[HullPoint], most: int = LARGE
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(decisions,) numbers of finer ties, in which the ties with the largest expected gains are divided.

    The gain of a tie is that of changing its decisions one by one at the corners of the front, each with the weights
    for which it is optimal.

    Args:
        points: the points of the coarse front.
        most: the largest number of ties.
    """
    owners = np.zeros(len(layout.members), dtype=np.int64)
    for number, tie in enumerate(coarse.decisions):
        owners[tie] = number
    promised = np.zeros(len(coarse.decisions))
    changes = Changes(layout, latency, noise)
    for point, weight in zip(points, _weights(points), strict=True):
        precisions = coarse.layout.precisions(point.codes[None])[0]
        promised = np.maximum(promised, np.bincount(owners, changes.gains(weight, precisions), len(promised)))
    best = np.argsort(-promised, kind="stable")[: int((promised > 0).sum())]
    added = np.cumsum([len(coarse.decisions[number]) - 1 for number in best])
    few = best[: int(np.searchsorted(added, most - len(promised), side="right"))]
    return _apart(owners, best), _apart(owners, few)


def _apart(owners: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers in which each decision of the chosen ties has its own."""
    alone = np.isin(owners, chosen)
    numbers = np.where(alone, len(owners) + np.arange(len(owners)), owners)
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


def _weights(points: Sequence[HullPoint]) -> list[tuple[float, float]]:
    """For every corner the weights of both costs for which it is optimal, in units of the front's extent."""
    first, second = (np.array([getattr(point, name) for point in points]) for name in ("first", "second"))
    extent = max(float(np.ptp(first)), 1e-300), max(float(np.ptp(second)), 1e-300)
    if len(points) == 1:
        return [(1 / max(abs(first[0]), 1e-300), 1 / max(abs(second[0]), 1e-300))]
    across, down = np.diff(first) / extent[0], -np.diff(second) / extent[1]
    slopes = down / (across + down)  # of the first cost, of each edge of the front
    middle = (np.append(slopes, slopes[-1]) + np.insert(slopes, 0, slopes[0])) / 2
    return [(float(weight) / extent[0], float(1 - weight) / extent[1]) for weight in middle]
