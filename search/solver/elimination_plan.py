"""In which order decisions are eliminated, and which of them at the same time.

Decisions that are no neighbours can be eliminated together: a chain of a thousand decisions takes ten rounds in which
every other one is eliminated, so that few operations on large arrays take the place of many on small ones. Rounds of
independent decisions are known from sparse factorization (Liu, Modification of the minimum-degree algorithm by multiple
elimination, 1985).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.space.structure import Structure

Places = NDArray[np.int64]
_FEW = 2  # eliminating a decision with at most so many neighbours gives none of them more neighbours than it had


@dataclass(frozen=True)
class Summand:
    """A part of the tables of a batch.

    Attributes:
        places: (entries × steps,) where its entries are in the pool, the steps last.
        shape: the number of codes of each decision that it is about, 1 for the others, then the steps.
    """

    places: Places
    shape: tuple[int, ...]


@dataclass(frozen=True)
class EliminationBatch:
    """Eliminations that are done together, all with tables of one shape.

    The pool has the terms of a cost, and behind them what every batch leaves: the least cost for each of the codes of
    its scopes.

    Attributes:
        decisions: (steps,) those that are eliminated.
        scopes: (steps, neighbours) their neighbours at that time, sorted by when they are eliminated.
        shape: the number of codes of a decision, then of its neighbours.
        summands: what the tables are sums of, the smallest first.
        start: where its results are in the pool, the steps last.
    """

    decisions: Places
    scopes: Places
    shape: tuple[int, ...]
    summands: tuple[Summand, ...]
    start: int

    @property
    def end(self) -> int:
        """Where the results of this batch end in the pool."""
        return self.start + math.prod(self.shape[1:]) * len(self.decisions)

    @property
    def entries(self) -> int:
        """How many entries all tables of this batch have."""
        return math.prod(self.shape) * len(self.decisions)


def plan(structure: Structure, most_entries: int) -> tuple[EliminationBatch, ...] | None:
    """The batches in which all decisions can be eliminated.

    Returns:
        The batches, in order; None if a table would have more than `most_entries` entries.
    """
    order = elimination_order(structure, most_entries)
    return None if order is None else tuple(_batches(structure, order))


def elimination_order(structure: Structure, most_entries: int) -> tuple[int, ...] | None:
    """Find an order of decisions with small tables, in rounds of decisions that are no neighbours.

    A round takes those with at most two neighbours, and those with the best score: it adds the fewest pairs, then has
    the smallest table.

    Returns:
        The order; None if a table would have more than `most_entries` entries.
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

    scores = {i: score(i) for i in range(len(near))}
    order: list[int] = []
    while scores:
        best = min(scores.values())
        if math.isinf(best[0]):
            return None
        chosen = _select_independent(near, [i for i, cost in scores.items() if cost == best or _is_easy(near[i], cost)])
        changed = {j for i in chosen for j in _remove_decision(near, i)}.difference(chosen)
        order += chosen
        for i in chosen:
            del scores[i]
        scores.update((j, score(j)) for j in changed)
    return tuple(order)


def _is_easy(neighbours: set[int], score: tuple[float, float]) -> bool:
    return len(neighbours) <= _FEW and not math.isinf(score[0])


def _select_independent(near: Sequence[set[int]], decisions: Sequence[int]) -> list[int]:
    """Choose decisions, in order, that are no neighbours of one chosen before."""
    chosen, touched = [], set[int]()
    for i in decisions:
        if i not in touched:
            chosen.append(i)
            touched |= near[i]
    return chosen


def _remove_decision(near: list[set[int]], i: int) -> set[int]:
    """Remove a decision and connect its neighbours; gives the decisions whose score may have changed."""
    for j in near[i]:
        near[j] |= near[i]
        near[j] -= {i, j}
    return near[i].union(*(near[j] for j in near[i]))


@dataclass(frozen=True)
class _Step:
    """The elimination of one decision.

    Attributes:
        decisions: it, then its neighbours, sorted by when they are eliminated.
        terms: for each table of terms its axes among `decisions`, and the places of its entries in the terms.
        senders: for each earlier step whose result is added here, its axes among `decisions`, and its number.
    """

    decisions: tuple[int, ...]
    terms: tuple[tuple[tuple[int, ...], Places], ...]
    senders: tuple[tuple[tuple[int, ...], int], ...]


def _steps(structure: Structure, order: Sequence[int]) -> list[_Step]:
    """The elimination of every decision, in order."""
    rank = {decision: number for number, decision in enumerate(order)}
    scopes: list[set[int]] = [set() for _ in order]
    terms: list[list[tuple[tuple[int, ...], Places]]] = [[] for _ in order]
    senders: list[list[int]] = [[] for _ in order]
    for i, start in enumerate(structure.unary_starts):
        terms[rank[i]].append(((i,), start + np.arange(structure.sizes[i])))
    for (i, j), start in zip(structure.pairs, structure.pair_starts, strict=True):
        table = start + np.arange(structure.sizes[i] * structure.sizes[j]).reshape(structure.sizes[i], -1)
        first, second, places = (i, j, table) if rank[i] < rank[j] else (j, i, table.T)
        terms[rank[first]].append(((first, second), places.ravel()))
        scopes[rank[first]].add(second)
    steps: list[_Step] = []
    for number, decision in enumerate(order):
        scope = sorted(scopes[number], key=rank.__getitem__)
        if scope:
            senders[rank[scope[0]]].append(number)
            scopes[rank[scope[0]]].update(scope[1:])
        whole = (decision, *scope)
        axis = {each: place for place, each in enumerate(whole)}
        own = tuple((tuple(axis[each] for each in about), places) for about, places in terms[number])
        sent = tuple((tuple(axis[each] for each in steps[s].decisions[1:]), s) for s in senders[number])
        steps.append(_Step(whole, own, sent))
    return steps


def _batches(structure: Structure, order: Sequence[int]) -> list[EliminationBatch]:
    """The steps in batches: those of a batch have tables and summands of the same shapes, and none needs another."""
    steps = _steps(structure, order)
    levels: list[int] = []
    alike: dict[tuple[int, tuple[int, ...], tuple[tuple[int, ...], ...]], list[int]] = defaultdict(list)
    for number, step in enumerate(steps):
        levels.append(1 + max((levels[sender] for _, sender in step.senders), default=-1))
        shape = tuple(structure.sizes[i] for i in step.decisions)
        axes = tuple(sorted(about for about, _ in (*step.terms, *step.senders)))
        alike[levels[-1], shape, axes].append(number)
    results: dict[int, Places] = {}  # of every step in the pool
    batches: list[EliminationBatch] = []
    start = structure.length
    for (_, shape, _), numbers in sorted(alike.items()):
        summands = _summands([steps[number] for number in numbers], shape, results)
        decisions = np.array([steps[number].decisions for number in numbers], dtype=np.int64)
        batches.append(EliminationBatch(decisions[:, 0], decisions[:, 1:], shape, summands, start))
        places = np.arange(start, batches[-1].end).reshape(-1, len(numbers))
        results.update((number, places[:, place]) for place, number in enumerate(numbers))
        start = batches[-1].end
    return batches


def _summands(steps: Sequence[_Step], shape: tuple[int, ...], results: dict[int, Places]) -> tuple[Summand, ...]:
    """The summands of the tables of steps with the same shape, which are eliminated together."""
    rows = []
    for step in steps:
        parts = [*step.terms, *((axes, results[sender]) for axes, sender in step.senders)]
        rows.append(sorted(parts, key=lambda part: (len(part[0]), part[0])))
    summands = []
    for column in zip(*rows, strict=True):
        axes = column[0][0]
        sizes = tuple(size if axis in axes else 1 for axis, size in enumerate(shape))
        summands.append(Summand(np.stack([places for _, places in column], axis=1).ravel(), (*sizes, len(steps))))
    return tuple(summands)
