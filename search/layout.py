"""Groups, edges and decisions as arrays: what surrogates predict on and solvers search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.grouping import Edge
from search.space import Space
from search.values import Assignment, Precision

PRECISIONS = max(Precision) + 1

Codes = NDArray[np.int64]
Precisions = NDArray[np.int8]


@dataclass(frozen=True)
class Costs:
    """base + Σ nodes[group, precision] + Σ edges[edge, precision of source, precision of target].

    Attributes:
        nodes: (groups, `PRECISIONS`) float64.
        edges: (edges, `PRECISIONS`, `PRECISIONS`) float64.
    """

    base: float
    nodes: NDArray[np.float64]
    edges: NDArray[np.float64]

    def plus(self, other: Costs, weight: float = 1.0) -> Costs:
        """This and `weight` times another, term by term."""
        return Costs(
            self.base + weight * other.base, self.nodes + weight * other.nodes, self.edges + weight * other.edges
        )


@dataclass(frozen=True)
class Pairwise:
    """A cost over decisions: base + Σ unary[i][code] + Σ pairs[(i, j)][code of i, code of j] with i < j.

    Attributes:
        unary: of every decision (codes,) float64.
        pairs: of decisions that share an edge (codes of i, codes of j) float64.
    """

    base: float
    unary: tuple[NDArray[np.float64], ...]
    pairs: Mapping[tuple[int, int], NDArray[np.float64]]

    def value(self, codes: Sequence[int] | Codes) -> float:
        """The cost of one choice of codes."""
        total = self.base + sum(costs[code] for costs, code in zip(self.unary, codes, strict=True))
        return float(total + sum(costs[codes[i], codes[j]] for (i, j), costs in self.pairs.items()))


@dataclass(frozen=True)
class Layout:
    """A model's groups and edges, and the decisions that a sampler makes about them.

    Attributes:
        groups: ids, in graph order.
        edges: (edges, 2) int64, source and target by place in `groups`; edges from graph inputs are left out.
        elements: (edges,) float64, size of each edge's tensor.
        effects: of every decision (codes, its groups) int8: the precision that a code gives each of its groups.
        members: of every decision (its groups,) int64, by place in `groups`.
        fixed: (groups,) int8, the precision of groups that no decision is about; -1 elsewhere.
        space: whose decisions these are, in the order of `space.variables`.
    """

    groups: tuple[str, ...]
    edges: NDArray[np.int64]
    elements: NDArray[np.float64]
    effects: tuple[Precisions, ...]
    members: tuple[NDArray[np.int64], ...]
    fixed: Precisions
    space: Space

    def precisions(self, codes: Codes) -> Precisions:
        """(n, decisions) codes to (n, groups) int8 precisions."""
        found = np.repeat(self.fixed[None], len(codes), axis=0)
        for column, (members, effects) in enumerate(zip(self.members, self.effects, strict=True)):
            found[:, members] = effects[codes[:, column]]
        return found

    def codes_of(self, assignment: Assignment) -> Codes:
        """(decisions,) codes that give this assignment, or in a block the lowest precision of its groups."""
        named = self.space.codes(assignment)
        return np.array([named[variable.id] for variable in self.space.variables], dtype=np.int64)

    def precisions_of(self, assignments: Sequence[Mapping[str, Precision]]) -> Precisions:
        """(n, groups) int8 of any assignments of these groups."""
        rows = [[int(assignment[group]) for group in self.groups] for assignment in assignments]
        return np.array(rows, dtype=np.int8).reshape(len(rows), len(self.groups))

    def assignment(self, codes: Sequence[int] | Codes) -> Assignment:
        """One row of codes as an assignment."""
        named = {v.id: int(code) for v, code in zip(self.space.variables, codes, strict=True)}
        return self.space.assignment(named)

    def values(self, costs: Costs, precisions: Precisions) -> NDArray[np.float64]:
        """(n, groups) precisions to (n,) costs."""
        total = costs.base + costs.nodes[np.arange(len(self.groups)), precisions].sum(axis=1)
        if len(self.edges):
            ends = precisions[:, self.edges[:, 0]], precisions[:, self.edges[:, 1]]
            total = total + costs.edges[np.arange(len(self.edges)), ends[0], ends[1]].sum(axis=1)
        return np.asarray(total)

    def pairwise(self, costs: Costs) -> Pairwise:
        """The same cost as one over decisions."""
        owner = np.full(len(self.groups), -1)
        for decision, members in enumerate(self.members):
            owner[members] = decision
        base, unary = costs.base, [self._unary(costs, decision) for decision in range(len(self.members))]
        base += float(sum(costs.nodes[g, self.fixed[g]] for g in np.flatnonzero(owner < 0)))
        pairs: dict[tuple[int, int], NDArray[np.float64]] = {}
        for edge, (source, target) in enumerate(self.edges):
            table, (i, j) = self._table(costs.edges[edge], int(source), int(target), owner), owner[[source, target]]
            if i < 0 and j < 0:
                base += float(table[0, 0])
            elif i == j:
                unary[i] = unary[i] + np.diagonal(table)
            elif i < 0 or j < 0:
                unary[max(i, j)] = unary[max(i, j)] + (table[0] if i < 0 else table[:, 0])
            else:
                key, oriented = ((int(i), int(j)), table) if i < j else ((int(j), int(i)), table.T)
                pairs[key] = pairs.get(key, 0.0) + oriented
        return Pairwise(float(base), tuple(unary), pairs)

    def _unary(self, costs: Costs, decision: int) -> NDArray[np.float64]:
        members, effects = self.members[decision], self.effects[decision]
        return np.asarray(costs.nodes[members, effects].sum(axis=1))

    def _table(
        self, edge: NDArray[np.float64], source: int, target: int, owner: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """(codes of the source's decision, codes of the target's) costs of one edge; one code where none decides."""
        ends = []
        for group in (source, target):
            decision = owner[group]
            if decision < 0:
                ends.append(self.fixed[[group]])
            else:
                ends.append(self.effects[decision][:, self.members[decision] == group][:, 0])
        return edge[ends[0][:, None], ends[1][None]]


def make_layout(groups: Sequence[str], edges: Sequence[Edge], space: Space) -> Layout:
    """The layout of a model's groups (ids in graph order) and edges in a space."""
    place = {group: i for i, group in enumerate(groups)}
    inner = [edge for edge in edges if edge.source is not None and edge.source != edge.target]
    ends = [[place[edge.source or ""], place[edge.target]] for edge in inner]
    members, effects, fixed = [], [], np.full(len(place), -1, np.int8)
    lowest = {variable.id: 0 for variable in space.variables}
    for variable in space.variables:
        given = [space.assignment({**lowest, variable.id: code}) for code in range(len(variable.precisions))]
        members.append(np.array([place[group] for group in variable.groups], dtype=np.int64))
        effects.append(np.array([[int(a[group]) for group in variable.groups] for a in given], dtype=np.int8))
    decided = {group for variable in space.variables for group in variable.groups}
    some = space.assignment(lowest)
    for group, i in place.items():
        if group not in decided:
            fixed[i] = int(some[group])
    return Layout(
        groups=tuple(place),
        edges=np.array(ends, dtype=np.int64).reshape(len(ends), 2),
        elements=np.array([edge.elements for edge in inner], dtype=np.float64),
        effects=tuple(effects),
        members=tuple(members),
        fixed=fixed,
        space=space,
    )
