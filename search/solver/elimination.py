"""Exact minima of pairwise costs on narrow graphs, by eliminating one decision after the other.

Eliminating a decision replaces all its tables by one table over its neighbours, with the least cost for each of their
codes. The order determines the size of these tables. It depends only on the structure, so it is found once, and many
costs of that structure can be solved together.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.errors import SolverError
from search.space.layout import Codes
from search.space.structure import Structure, Terms

MOST_ENTRIES = 3**9  # of one table: eight neighbours with three codes each
_MOST_LANES, _LITTLE = 16, 2**18  # costs solved together, and entries of their tables: additions take no time yet
MOST_KEPT = 2**24  # entries of all tables of the costs that are solved at once: 128 MiB


@dataclass(frozen=True)
class Step:
    """The elimination of one decision.

    Attributes:
        scope: its neighbours at that time, sorted by when they are eliminated.
        shape: the number of codes of the decision, then of its neighbours.
        terms: slices of the ordered terms, and the shape of each in the table.
        messages: earlier steps whose results are added here, and the shape of each.
    """

    decision: int
    scope: tuple[int, ...]
    shape: tuple[int, ...]
    terms: tuple[tuple[slice, tuple[int, ...]], ...]
    messages: tuple[tuple[int, tuple[int, ...]], ...]


class Eliminator:
    """Solves costs of one structure. It is immutable and may be shared.

    Attributes:
        structure: of the costs.
        steps: the steps in order; None if the graph is too wide, that is if a table would exceed `MOST_ENTRIES` or all
            tables together `MOST_KEPT`.
    """

    def __init__(self, structure: Structure, most_entries: int = MOST_ENTRIES) -> None:
        self.structure = structure
        order = elimination_order(structure, most_entries)
        steps, self._permutation = _planned(structure, order) if order is not None else ((), np.zeros(0, np.int64))
        self._entries = sum(math.prod(step.shape) for step in steps)
        fits = order is not None and self._entries <= MOST_KEPT
        self.steps: tuple[Step, ...] | None = steps if fits else None

    @property
    def fits(self) -> bool:
        """Whether the graph is narrow enough."""
        return self.steps is not None

    @property
    def lanes(self) -> int:
        """How many costs are solved together in hardly more time than one: small tables cost calls, not additions."""
        return max(1, min(_MOST_LANES, _LITTLE // max(1, self._entries)))

    def minimize(self, terms: Terms) -> tuple[Codes, Terms]:
        """Find the minimum of each of many costs.

        Args:
            terms: (batch, length) float64, +inf where something is forbidden.

        Returns:
            (batch, decisions) codes and (batch,) least costs without base. If nothing is allowed, the cost is +inf and
            the codes are meaningless.
        """
        most = max(1, MOST_KEPT // max(1, self._entries))
        if not len(terms):
            return np.zeros((0, len(self.structure.sizes)), dtype=np.int64), np.zeros(0)
        parts = [self._minimized(terms[start : start + most]) for start in range(0, len(terms), most)]
        return np.concatenate([codes for codes, _ in parts]), np.concatenate([least for _, least in parts])

    def ranked(self, terms: Terms) -> Iterator[tuple[Codes, float]]:
        """Yield all allowed codes of one cost with their cost without base, cheapest first.

        A table has the least cost of everything that was eliminated before it. So once the tables exist, the least cost
        of deviating at one decision while keeping the earlier ones is a look-up.

        Args:
            terms: (length,) float64.
        """
        tables, least = self._tables(np.ascontiguousarray(terms[None]))
        if not np.isfinite(least[0]):
            return
        backwards = [(step.decision, step.scope, table[..., 0]) for step, table in self._backwards(tables)]
        heap: list[tuple[float, int, list[int], int, int]] = [(float(least[0]), 0, [0] * len(backwards), -1, 0)]
        count = 0
        while heap:
            value, _, base, place, code = heapq.heappop(heap)
            codes, deviations = _decoded(backwards, base, place, code)
            for later, other, more in deviations:
                count += 1
                heapq.heappush(heap, (value + more, count, codes, later, other))
            yield np.array(codes, dtype=np.int64), value

    def _minimized(self, terms: Terms) -> tuple[Codes, Terms]:
        tables, least = self._tables(terms)
        lanes = np.arange(len(terms))
        codes = np.zeros((len(self.structure.sizes), len(terms)), dtype=np.int64)
        for step, table in self._backwards(tables):
            chosen = (slice(None), *(codes[i] for i in step.scope), lanes)
            codes[step.decision] = table[chosen].argmin(axis=0)
        return np.ascontiguousarray(codes.T), least

    def _backwards(self, tables: list[Terms]) -> Iterator[tuple[Step, Terms]]:
        assert self.steps is not None
        return zip(reversed(self.steps), reversed(tables), strict=True)

    def _tables(self, terms: Terms) -> tuple[list[Terms], Terms]:
        """The table of every step, (codes, codes of the scope …, batch), and the (batch,) least costs."""
        if self.steps is None:
            raise SolverError("eliminating decisions: the graph is too wide for it; solve it as an integer program.")
        ordered = terms.T[self._permutation]  # the batch last: each operation runs along contiguous memory
        tables: list[Terms] = []
        messages: list[Terms] = []
        least = np.zeros(len(terms))
        for step in self.steps:
            parts = [ordered[place].reshape(shape) for place, shape in step.terms]
            parts += [messages[number].reshape(shape) for number, shape in step.messages]
            table = functools.reduce(np.add, parts)
            message = np.minimum.reduce(table, axis=0)
            tables.append(table)
            messages.append(message)
            if not step.scope:
                least = least + message
        return tables, least


@functools.lru_cache(maxsize=32)
def eliminator(structure: Structure) -> Eliminator:
    """The eliminator of a structure, made once."""
    return Eliminator(structure)


def _decoded(
    backwards: list[tuple[int, tuple[int, ...], NDArray[np.float64]]], base: list[int], place: int, code: int
) -> tuple[list[int], list[tuple[int, int, float]]]:
    """The best codes that equal `base` before `place` and `code` there, and the cost of each later deviation."""
    codes, deviations = list(base), []
    if place >= 0:
        codes[backwards[place][0]] = code
    for later in range(place + 1, len(backwards)):
        decision, scope, table = backwards[later]
        chosen: tuple[Any, ...] = (slice(None), *(codes[i] for i in scope))
        costs: list[float] = table[chosen].tolist()
        least = min(costs)
        best = codes[decision] = costs.index(least)
        deviations += [(later, i, cost - least) for i, cost in enumerate(costs) if i != best and cost < math.inf]
    return codes, deviations


def elimination_order(structure: Structure, most_entries: int) -> tuple[int, ...] | None:
    """Find an order of decisions with small tables: first the one that adds fewest pairs, then the smallest table.

    Returns:
        The order; None if a table would exceed `most_entries`.
    """
    near: list[set[int]] = [set() for _ in structure.sizes]
    for i, j in structure.pairs:
        near[i].add(j)
        near[j].add(i)

    def score(i: int) -> tuple[float, float]:
        entries = structure.sizes[i] * math.prod(structure.sizes[j] for j in near[i])
        if entries > most_entries:
            return math.inf, math.inf
        return sum(len(near[i]) - 1 - len(near[i] & near[j]) for j in near[i]), entries

    scores = [score(i) for i in range(len(near))]
    heap = [(found, i) for i, found in enumerate(scores)]
    heapq.heapify(heap)
    order: list[int] = []
    done: set[int] = set()
    while heap:
        found, i = heapq.heappop(heap)
        if i in done or found != scores[i]:
            continue
        if math.isinf(found[0]):
            return None
        order.append(i)
        done.add(i)
        for j in _removed(near, i):
            scores[j] = score(j)
            heapq.heappush(heap, (scores[j], j))
    return tuple(order)


def _removed(near: list[set[int]], i: int) -> set[int]:
    """Remove a decision and connect its neighbours; gives the decisions whose score may have changed."""
    for j in near[i]:
        near[j] |= near[i]
        near[j] -= {i, j}
    return near[i].union(*(near[j] for j in near[i]))


def _planned(structure: Structure, order: tuple[int, ...]) -> tuple[tuple[Step, ...], NDArray[np.int64]]:
    """The steps of an order, and the permutation of the terms in which the steps read them.

    The first axis of every table is the decision that is eliminated first, so a table only has to be reshaped.
    """
    rank = {decision: number for number, decision in enumerate(order)}
    scopes: list[set[int]] = [set() for _ in order]
    waiting: list[list[tuple[slice, tuple[int, ...]]]] = [[] for _ in order]
    messages: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in order]
    pieces: list[NDArray[np.int64]] = []
    start = 0
    for axes, places in _oriented(structure, rank):
        number = rank[axes[0]]
        waiting[number].append((slice(start, start + places.size), axes))
        scopes[number] |= set(axes[1:])
        pieces.append(places.ravel())
        start += places.size
    steps = []
    for number, decision in enumerate(order):
        scope = tuple(sorted(scopes[number], key=rank.__getitem__))
        whole = (decision, *scope)
        if scope:
            messages[rank[scope[0]]].append((number, scope))
            scopes[rank[scope[0]]] |= set(scope[1:])
        steps.append(
            Step(
                decision,
                scope,
                tuple(structure.sizes[i] for i in whole),
                tuple((place, _shape(structure, axes, whole)) for place, axes in waiting[number]),
                tuple((sender, _shape(structure, axes, whole)) for sender, axes in messages[number]),
            )
        )
    return tuple(steps), np.concatenate([np.zeros(0, np.int64), *pieces])


def _oriented(structure: Structure, rank: dict[int, int]) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """For every table its decisions in the order of elimination, and the places of its entries in the terms."""
    for i, start in enumerate(structure.unary_starts):
        yield (i,), start + np.arange(structure.sizes[i])
    for (i, j), start in zip(structure.pairs, structure.pair_starts, strict=True):
        places = start + np.arange(structure.sizes[i] * structure.sizes[j]).reshape(structure.sizes[i], -1)
        yield ((i, j), places) if rank[i] < rank[j] else ((j, i), places.T)


def _shape(structure: Structure, axes: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """A table's shape among the axes of a larger one, the batch last."""
    return (*(structure.sizes[i] if i in axes else 1 for i in whole), -1)
