"""Groups, edges and decisions as arrays, for surrogates and solvers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.graph.grouping import Edge
from search.space.choices import Space
from search.values import Assignment, Precision

Codes = NDArray[np.int64]
Precisions = NDArray[np.int8]


@dataclass(frozen=True)
class Costs:
    """base + Σ nodes[group, precision] + Σ edges[edge, precision of source, precision of target].

    Attributes:
        nodes: (groups, precisions) float64, for the precisions in use.
        edges: (edges, precisions, precisions) float64.
    """

    base: float
    nodes: NDArray[np.float64]
    edges: NDArray[np.float64]

    def plus(self, other: Costs, weight: float = 1.0) -> Costs:
        """The sum of this cost and `weight` times another, term by term."""
        return Costs(
            self.base + weight * other.base, self.nodes + weight * other.nodes, self.edges + weight * other.edges
        )


@dataclass(frozen=True)
class Pairwise:
    """A cost over decisions: base + Σ unary[i][code] + Σ pairs[(i, j)][code of i, code of j] with i < j.

    Attributes:
        unary: for every decision (codes,) float64.
        pairs: for decisions that share an edge (codes of i, codes of j) float64.
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
    """The groups and edges of a model, and the decisions that a sampler makes about them.

    Attributes:
        groups: ids, in graph order.
        palette: the precisions in use, from FP32 to the coarsest. Arrays name a precision by its index here.
        edges: (edges, 2) int64, indices of source and target in `groups`; edges from graph inputs are left out.
        elements: (edges,) float64, size of each edge's tensor.
        effects: for every decision (codes, its groups) int8: the precision that a code gives each of its groups.
        members: for every decision (its groups,) int64, indices in `groups`.
        fixed: (groups,) int8, the precision of groups without a decision; -1 for the others.
        space: the search space of these decisions, in the order of `space.variables`.
        blocks: (groups,) int64, number of the repeated structure of each group; empty if not known.
    """

    groups: tuple[str, ...]
    palette: tuple[Precision, ...]
    edges: NDArray[np.int64]
    elements: NDArray[np.float64]
    effects: tuple[Precisions, ...]
    members: tuple[NDArray[np.int64], ...]
    fixed: Precisions
    space: Space
    blocks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @cached_property
    def places(self) -> dict[Precision, int]:
        """The index of each precision in use."""
        return {precision: place for place, precision in enumerate(self.palette)}

    @cached_property
    def entries(self) -> Entries:
        """The precisions that every code of every decision gives its groups."""
        return Entries.of(self.members, self.effects)

    @cached_property
    def _ends(self) -> Ends:
        return Ends.of(self)

    def precisions(self, codes: Codes) -> Precisions:
        """(n, decisions) codes to (n, groups) int8 precisions."""
        found = np.repeat(self.fixed[None], len(codes), axis=0)
        found[:, self.entries.groups] = self.entries.given[
            np.arange(len(self.entries.groups)), codes[:, self.entries.owners]
        ]
        return found

    def codes_of(self, assignment: Assignment) -> Codes:
        """(decisions,) codes of an assignment; a block takes the lowest precision of its groups."""
        named = self.space.codes(assignment)
        return np.array([named[variable.id] for variable in self.space.variables], dtype=np.int64)

    def precisions_of(self, assignments: Sequence[Mapping[str, Precision]]) -> Precisions:
        """(n, groups) int8 of any assignments of these groups; raises KeyError for a precision that is not in use."""
        rows = [[self.places[assignment[group]] for group in self.groups] for assignment in assignments]
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
        """The same cost in terms of decisions."""
        ends, undecided = self._ends, np.flatnonzero(self.fixed >= 0)
        base = costs.base + float(costs.nodes[undecided, self.fixed[undecided]].sum())
        unary = self.entries.by_code(costs.nodes)
        tables = costs.edges[np.arange(len(self.edges))[:, None, None], ends.left[:, :, None], ends.right[:, None, :]]
        base += float(tables[ends.fixed, 0, 0].sum())
        for decision, edge in ends.alone:
            size = len(unary[decision])
            unary[decision] = unary[decision] + ends.line(edge, tables[edge])[:size]
        pairs: dict[tuple[int, int], NDArray[np.float64]] = {}
        for edge, key, turned in ends.between:
            table = tables[edge].T if turned else tables[edge]
            table = table[: len(unary[key[0]]), : len(unary[key[1]])]
            pairs[key] = pairs[key] + table if key in pairs else table
        return Pairwise(base, tuple(unary), pairs)


@dataclass(frozen=True)
class Entries:
    """Decisions, flat.

    Attributes:
        sizes: (decisions,) how many codes each has.
        groups, owners: (members,) a group that is decided about, by place, and its decision.
        given: (members, most codes) int8 precision that each code gives it; codes that are missing give the last one's.
    """

    sizes: NDArray[np.int64]
    groups: NDArray[np.int64]
    owners: NDArray[np.int64]
    given: Precisions

    @classmethod
    def of(cls, members: Sequence[NDArray[np.int64]], effects: Sequence[Precisions]) -> Entries:
        sizes = np.array([len(each) for each in effects], dtype=np.int64)
        most, nothing = int(sizes.max(initial=1)), np.zeros(0, dtype=np.int64)
        given = [each[np.minimum(np.arange(most), len(each) - 1)].T for each in effects]
        owners = np.repeat(np.arange(len(members)), [len(each) for each in members])
        flat = np.concatenate([np.zeros((0, most), np.int8), *given])
        return cls(sizes, np.concatenate([nothing, *members]), owners, flat)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(decisions,) where each decision's codes start, all codes of all decisions in a row."""
        return np.asarray(np.cumsum(self.sizes) - self.sizes)

    def summed(self, nodes: NDArray[np.float64]) -> NDArray[np.float64]:
        """(groups, precisions) to (codes of all decisions,): the sum over each decision's groups."""
        member, code = np.nonzero(np.arange(self.given.shape[1]) < self.sizes[self.owners][:, None])
        places = self.starts[self.owners[member]] + code
        weights = nodes[self.groups[member], self.given[member, code]]
        return np.asarray(np.bincount(places, weights, int(self.sizes.sum())), dtype=np.float64)

    def by_code(self, nodes: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """The same, of every decision (codes,)."""
        return np.split(self.summed(nodes), self.starts[1:]) if len(self.sizes) else []


@dataclass(frozen=True)
class Ends:
    """Edges, by what is decided at their ends.

    Attributes:
        left, right: (edges, most codes) int8 precision at source and target, by code of their decisions.
        fixed: edges between groups that no decision is about.
        alone: (decision, edge) where one decision is at one end or at both.
        between: (edge, (i, j) with i < j, whether j is at the source) where two decisions are.
        kinds: of every edge 0 if no decision is about its source, 1 about its target, 2 where one is about both.
    """

    left: Precisions
    right: Precisions
    fixed: NDArray[np.int64]
    alone: tuple[tuple[int, int], ...]
    between: tuple[tuple[int, tuple[int, int], bool], ...]
    kinds: tuple[int, ...]

    @classmethod
    def of(cls, layout: Layout) -> Ends:
        owner = np.full(len(layout.groups), -1)
        given = np.repeat(np.maximum(layout.fixed, 0)[:, None], layout.entries.given.shape[1], axis=1)
        owner[layout.entries.groups] = layout.entries.owners
        given[layout.entries.groups] = layout.entries.given
        ends = owner[layout.edges].tolist()
        alone = [(max(i, j), e) for e, (i, j) in enumerate(ends) if (i < 0) != (j < 0) or 0 <= i == j]
        between = [(e, (min(i, j), max(i, j)), i > j) for e, (i, j) in enumerate(ends) if min(i, j) >= 0 and i != j]
        return cls(
            left=given[layout.edges[:, 0]],
            right=given[layout.edges[:, 1]],
            fixed=np.flatnonzero((owner[layout.edges] < 0).all(axis=1)),
            alone=tuple(alone),
            between=tuple(between),
            kinds=tuple(0 if i < 0 else 1 if j < 0 else 2 for i, j in ends),
        )

    def line(self, edge: int, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """(codes,) what an edge costs by the one decision at its ends."""
        return table[0] if self.kinds[edge] == 0 else table[:, 0] if self.kinds[edge] == 1 else np.diagonal(table)


def make_layout(
    groups: Sequence[str],
    edges: Sequence[Edge],
    space: Space,
    blocks: Sequence[str] = (),
    also: Iterable[Precision] = (),
) -> Layout:
    """The layout of a model's groups (ids in graph order) and edges in a space.

    Args:
        blocks: the repeated structure of every group; empty if not known.
        also: further precisions in use that no group is offered here, for example because another target has them.
    """
    palette = tuple(sorted({Precision.FP32, *space.precisions, *also}))
    number = {precision: i for i, precision in enumerate(palette)}
    place = {group: i for i, group in enumerate(groups)}
    inner = [edge for edge in edges if edge.source is not None and edge.source != edge.target]
    ends = [[place[edge.source or ""], place[edge.target]] for edge in inner]
    members, effects, fixed = [], [], np.full(len(place), -1, np.int8)
    lowest = {variable.id: 0 for variable in space.variables}
    for variable in space.variables:
        given = [space.assignment({**lowest, variable.id: code}) for code in range(len(variable.precisions))]
        members.append(np.array([place[group] for group in variable.groups], dtype=np.int64))
        effects.append(np.array([[number[a[group]] for group in variable.groups] for a in given], dtype=np.int8))
    decided = {group for variable in space.variables for group in variable.groups}
    some = space.assignment(lowest)
    for group, i in place.items():
        if group not in decided:
            fixed[i] = number[some[group]]
    return Layout(
        groups=tuple(place),
        palette=palette,
        edges=np.array(ends, dtype=np.int64).reshape(len(ends), 2),
        elements=np.array([edge.elements for edge in inner], dtype=np.float64),
        effects=tuple(effects),
        members=tuple(members),
        fixed=fixed,
        space=space,
        blocks=np.unique(np.array(blocks, dtype=str), return_inverse=True)[1].astype(np.int64),
    )
