"""Exact minima of pairwise costs on narrow graphs, by eliminating decisions.

Eliminating a decision replaces all its tables by one table over its neighbours, with the least cost for each of their
codes. The order determines the size of these tables. It depends only on the structure, so it is found once, and many
costs of that structure can be solved together.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from search.errors import SolverError
from search.solver.elimination_plan import EliminationBatch, plan
from search.space.layout import Codes
from search.space.structure import Structure, Terms

MOST_ENTRIES = 3**9  # of one table: eight neighbours with three codes each
_MOST_LANES, _LITTLE = 16, 2**18  # costs solved together, and entries of their tables: additions take no time yet
MOST_KEPT = 2**24  # entries of all tables of the costs that are solved at once: 128 MiB


class Eliminator:
    """Solves costs of one structure. It is immutable and may be shared.

    Attributes:
        structure: of the costs.
        batches: what is eliminated together, in order; None if the graph is too wide, that is if a table would exceed
            `MOST_ENTRIES` or all tables together `MOST_KEPT`.
    """

    def __init__(self, structure: Structure, most_entries: int = MOST_ENTRIES) -> None:
        self.structure = structure
        batches = plan(structure, most_entries)
        self._entries = sum(batch.entries for batch in batches or ())
        self.batches = None if self._entries > MOST_KEPT else batches

    @property
    def fits(self) -> bool:
        """Whether the graph is narrow enough."""
        return self.batches is not None

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
        parts = [self._minimize_part(terms[start : start + most]) for start in range(0, len(terms), most)]
        return np.concatenate([codes for codes, _ in parts]), np.concatenate([least for _, least in parts])

    def rank(self, terms: Terms) -> Iterator[tuple[Codes, float]]:
        """Yield all allowed codes of one cost with their cost without base, cheapest first.

        A table has the least cost of everything that was eliminated before it. So once the tables exist, the least cost
        of deviating at one decision while keeping those eliminated later is a look-up.

        Args:
            terms: (length,) float64.
        """
        tables, least = self._tables(terms[None])
        value = float(least[0])
        if not math.isfinite(value):
            return
        ranking = _Ranking([_Choices.of(batch, table[..., 0]) for batch, table in self._backwards(tables)])
        deviations = ranking.decode(np.zeros(len(self.structure.sizes), dtype=np.int64), (0, 0), value)
        numbers = itertools.count()  # of equal values, the one that was found first comes first
        heap: list[tuple[float, int, _Deviations, int]] = []
        yield deviations.codes, value
        _push(heap, numbers, deviations, 0)
        while heap:
            value, _, known, place = heapq.heappop(heap)
            deviations = ranking.follow(known, place)
            yield deviations.codes, value
            _push(heap, numbers, known, place + 1)
            _push(heap, numbers, deviations, 0)

    def _minimize_part(self, terms: Terms) -> tuple[Codes, Terms]:
        tables, least = self._tables(terms)
        codes = np.zeros((len(self.structure.sizes), len(terms)), dtype=np.int64)
        for batch, table in self._backwards(tables):
            place = _places(batch, codes)
            costs = table.reshape(batch.shape[0], -1).take(place, axis=1)
            codes[batch.decisions] = costs.argmin(axis=0)
        return np.ascontiguousarray(codes.T), least

    def _backwards(self, tables: list[Terms]) -> Iterator[tuple[EliminationBatch, Terms]]:
        assert self.batches is not None
        return zip(reversed(self.batches), reversed(tables), strict=True)

    def _tables(self, terms: Terms) -> tuple[list[Terms], Terms]:
        """The tables of every batch, (codes, codes of the scope …, steps, lanes), and the (lanes,) least costs."""
        if self.batches is None:
            raise SolverError("eliminating decisions: the graph is too wide for it, use minimum cuts.")
        lanes = len(terms)
        pool = np.empty((self.batches[-1].end if self.batches else self.structure.length, lanes))
        pool[: self.structure.length] = terms.T  # the lanes last: each operation runs along contiguous memory
        tables: list[Terms] = []
        least = np.zeros(lanes)
        for batch in self.batches:
            parts = [pool.take(part.places, axis=0).reshape(*part.shape, lanes) for part in batch.summands]
            table = functools.reduce(np.add, parts)
            result = table.min(axis=0)
            pool[batch.start : batch.end] = result.reshape(-1, lanes)
            tables.append(table)
            if not batch.scopes.size:
                least = least + result.sum(axis=0)
        return tables, least


@functools.lru_cache(maxsize=32)
def eliminator(structure: Structure) -> Eliminator:
    """The eliminator of a structure, made once."""
    return Eliminator(structure)


def _places(batch: EliminationBatch, codes: Codes) -> Codes:
    """(steps, …) where the codes of each scope are in tables of (codes of the scope …, steps, …).

    Args:
        codes: (decisions, …) of which those of the scopes are known.
    """
    place = np.zeros((len(batch.decisions), *codes.shape[1:]), dtype=np.int64)
    for axis, size in enumerate(batch.shape[1:]):
        place = place * size + codes[batch.scopes[:, axis]]
    return np.asarray(place * place.size + np.arange(place.size).reshape(place.shape))


@dataclass(frozen=True)
class _Deviations:
    """Codes, and how one decision of them can be changed while those that were decided before it stay.

    Attributes:
        codes: (decisions,).
        changes: (changes,) numbers of the ranking's changes.
        values: (changes,) the least cost with each change, in rising order.
    """

    codes: Codes
    changes: Codes
    values: Terms


def _push(
    heap: list[tuple[float, int, _Deviations, int]], numbers: Iterator[int], deviations: _Deviations, at: int
) -> None:
    """Put a change into the heap, if there is one at that place: those behind it are no cheaper and may wait."""
    if at < len(deviations.values):
        heapq.heappush(heap, (float(deviations.values[at]), next(numbers), deviations, at))


@dataclass(frozen=True)
class _Choices:
    """The best codes of a batch for all codes of its scopes, and how much more the other codes cost.

    Attributes:
        best: (codes of the scope × steps,).
        above: (codes, codes of the scope × steps); +inf for the best and for what is forbidden.
    """

    batch: EliminationBatch
    best: Codes
    above: Terms

    @classmethod
    def of(cls, batch: EliminationBatch, table: Terms) -> _Choices:
        """From the (codes, codes of the scope …, steps) table of a cost."""
        costs = table.reshape(batch.shape[0], -1)
        best = costs.argmin(axis=0)
        least = costs.min(axis=0)
        above = np.where(np.isinf(costs), np.inf, costs - np.where(np.isinf(least), 0.0, least))
        above[best, np.arange(len(best))] = np.inf
        return cls(batch, best, above)


class _Ranking:
    """Changes of the codes of least cost. They are numbered: those of the batch that is decided first come first."""

    def __init__(self, choices: list[_Choices]) -> None:
        self._choices = choices
        sizes = [(choice.batch.shape[0], len(choice.batch.decisions)) for choice in choices]
        self._starts = np.cumsum([0, *(codes * steps for codes, steps in sizes)])
        self._sizes = sizes

    def follow(self, known: _Deviations, place: int) -> _Deviations:
        """The best codes with one of the changes, and what can be changed then."""
        change = int(known.changes[place])
        number = int(np.searchsorted(self._starts, change, side="right")) - 1
        other, step = divmod(change - int(self._starts[number]), self._sizes[number][1])
        codes = known.codes.copy()
        codes[self._choices[number].batch.decisions[step]] = other
        return self.decode(codes, (number, step + 1), float(known.values[place]))

    def decode(self, codes: Codes, start: tuple[int, int], value: float) -> _Deviations:
        """The best codes, and what can be changed at or behind `start`, a batch and a step of it.

        Decisions before it keep their codes. Later ones of the same batch keep them too, except at the very beginning:
        they do not depend on each other.

        Args:
            value: what the best codes cost.
        """
        codes, (first, step) = codes.copy(), start
        more = [np.zeros((0,))]
        for number, choices in enumerate(self._choices[first:], first):
            place = _places(choices.batch, codes)
            above = choices.above.take(place, axis=1)
            if number > first or step == 0:
                codes[choices.batch.decisions] = choices.best.take(place)
            else:
                above[:, :step] = np.inf
            more.append(above.ravel())
        above = np.concatenate(more)
        changes = np.flatnonzero(np.isfinite(above))
        order = changes[np.argsort(above[changes], kind="stable")]
        return _Deviations(codes, order + self._starts[first], value + above[order])
