"""Groups, edges and decisions as arrays, for surrogates and solvers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.graph.grouping import Edge
from search.space.choices import Space
from search.values import REFERENCE, Assignment, Precision

Codes = NDArray[np.int64]
Precisions = NDArray[np.int8]
_AT_ONCE = 2**17  # costs that are looked up together: what that needs still fits into a processor's cache


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
    def uniforms(self) -> Precisions:
        """(uniform assignments, groups) int8, in the order of `space.baselines`."""
        return self.precisions_of(list(self.space.baselines.values()))

    @cached_property
    def _ends(self) -> Ends:
        return Ends.of(self)

    def precisions(self, codes: Codes) -> Precisions:
        """(n, decisions) codes to (n, groups) int8 precisions."""
        precisions = np.repeat(self.fixed[None], len(codes), axis=0)
        precisions[:, self.entries.groups] = self.entries.precisions[
            np.arange(len(self.entries.groups)), codes[:, self.entries.owners]
        ]
        return precisions

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
        rows = max(1, _AT_ONCE // max(1, len(self.groups) + len(self.edges)))
        parts = [self._values(costs, precisions[at : at + rows]) for at in range(0, len(precisions), rows)]
        return np.concatenate([np.zeros(0), *parts])

    def _values(self, costs: Costs, precisions: Precisions) -> NDArray[np.float64]:
        count = costs.nodes.shape[1]
        own = np.arange(len(self.groups)) * count + precisions
        total = costs.base + costs.nodes.ravel().take(own).sum(axis=1)
        if costs.edges.any():
            ends = precisions[:, self.edges[:, 0]], precisions[:, self.edges[:, 1]]
            places = np.arange(len(self.edges)) * count**2 + ends[0].astype(np.int64) * count + ends[1]
            total = total + costs.edges.ravel().take(places).sum(axis=1)
        return np.asarray(total)

    def pairwise(self, costs: Costs) -> Pairwise:
        """A cost of groups as a cost of decisions."""
        ends, undecided = self._ends, np.flatnonzero(self.fixed >= 0)
        base = costs.base + float(costs.nodes[undecided, self.fixed[undecided]].sum())
        unary = self.entries.sum_groups(costs.nodes)
        if costs.edges.any():
            tables = costs.edges[
                np.arange(len(self.edges))[:, None, None], ends.left[:, :, None], ends.right[:, None, :]
            ]
            base += float(tables[ends.fixed, 0, 0].sum())
            unary = unary + _sums(ends.alone_places, tables.ravel()[ends.alone_terms], len(unary))
            summed = _sums(ends.pair_places, tables.ravel()[ends.pair_terms], int(ends.pair_starts[-1]))
        else:
            summed = np.zeros(int(ends.pair_starts[-1]))
        split = np.split(unary, self.entries.starts[1:]) if len(self.entries.sizes) else []
        starts = ends.pair_starts.tolist()
        pairs: dict[tuple[int, int], NDArray[np.float64]] = {
            key: summed[start:end].reshape(shape)
            for key, shape, start, end in zip(ends.keys, ends.shapes, starts[:-1], starts[1:], strict=True)
        }
        return Pairwise(base, tuple(split), pairs)


@dataclass(frozen=True)
class Entries:
    """Decisions, flat.

    Attributes:
        sizes: (decisions,) how many codes each has.
        groups, owners: (members,) a group that is decided about, by place, and its decision.
        precisions: (members, most codes) int8 precision that each code gives it; codes that are missing give that of
            the last one.
    """

    sizes: NDArray[np.int64]
    groups: NDArray[np.int64]
    owners: NDArray[np.int64]
    precisions: Precisions

    @classmethod
    def of(cls, members: Sequence[NDArray[np.int64]], effects: Sequence[Precisions]) -> Entries:
        sizes = np.array([len(each) for each in effects], dtype=np.int64)
        most, nothing = int(sizes.max(initial=1)), np.zeros(0, dtype=np.int64)
        precisions = [each[np.minimum(np.arange(most), len(each) - 1)].T for each in effects]
        owners = np.repeat(np.arange(len(members)), [len(each) for each in members])
        flat = np.concatenate([np.zeros((0, most), np.int8), *precisions])
        return cls(sizes, np.concatenate([nothing, *members]), owners, flat)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(decisions,) where each decision's codes start, all codes of all decisions in a row."""
        return np.asarray(np.cumsum(self.sizes) - self.sizes)

    @cached_property
    def _each(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Precisions]:
        """For every code of every member: its place among the codes of all decisions, the group, the precision."""
        member, code = np.nonzero(np.arange(self.precisions.shape[1]) < self.sizes[self.owners][:, None])
        return self.starts[self.owners[member]] + code, self.groups[member], self.precisions[member, code]

    def sum_groups(self, nodes: NDArray[np.float64]) -> NDArray[np.float64]:
        """(groups, precisions) to (codes of all decisions,): the sum over each decision's groups."""
        places, groups, precisions = self._each
        return _sums(places, nodes[groups, precisions], int(self.sizes.sum()))

    def by_code(self, nodes: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """What `sum_groups` gives, as one array (codes,) of each decision."""
        return np.split(self.sum_groups(nodes), self.starts[1:]) if len(self.sizes) else []


@dataclass(frozen=True)
class Ends:
    """Edges, by what is decided at their ends.

    Terms are the entries of (edges, most codes, most codes) costs by the codes at source and target, flat.

    Attributes:
        left, right: (edges, most codes) int8 precision at source and target, by code of their decisions.
        fixed: edges between groups that no decision is about.
        alone_terms, alone_places: terms of edges with one decision at one end or at both, and the place of each among
            the codes of all decisions.
        keys, shapes: the sorted pairs (i, j) of decisions with i < j that share edges, and the shapes of their tables.
        pair_terms, pair_places: terms of edges between two decisions, and the place of each among the entries of the
            tables of all pairs.
        pair_starts: (pairs + 1,) where each pair's table starts among these entries.
    """

    left: Precisions
    right: Precisions
    fixed: NDArray[np.int64]
    alone_terms: NDArray[np.int64]
    alone_places: NDArray[np.int64]
    keys: tuple[tuple[int, int], ...]
    shapes: tuple[tuple[int, int], ...]
    pair_terms: NDArray[np.int64]
    pair_places: NDArray[np.int64]
    pair_starts: NDArray[np.int64]

    @classmethod
    def of(cls, layout: Layout) -> Ends:
        entries, count = layout.entries, len(layout.members)
        owner = np.full(len(layout.groups), -1)
        precisions = np.repeat(np.maximum(layout.fixed, 0)[:, None], entries.precisions.shape[1], axis=1)
        owner[entries.groups] = entries.owners
        precisions[entries.groups] = entries.precisions
        source, target = owner[layout.edges].T
        alone_terms, alone_places = _lines(entries, source, target)
        between = np.flatnonzero((source >= 0) & (target >= 0) & (source != target))
        lower, upper = np.minimum(source, target)[between], np.maximum(source, target)[between]
        numbers, pair = np.unique(lower * count + upper, return_inverse=True)
        first, second = np.divmod(numbers, max(1, count))
        heights, widths = entries.sizes[first], entries.sizes[second]
        starts = np.concatenate([[0], np.cumsum(heights * widths)]).astype(np.int64)
        edge, left, right = _squares(entries, source[between], target[between])
        row, column = np.where(source[between][edge] < target[between][edge], (left, right), (right, left))
        most = precisions.shape[1]
        return cls(
            left=precisions[layout.edges[:, 0]],
            right=precisions[layout.edges[:, 1]],
            fixed=np.flatnonzero((source < 0) & (target < 0)),
            alone_terms=alone_terms,
            alone_places=alone_places,
            keys=tuple(zip(first.tolist(), second.tolist(), strict=True)),
            shapes=tuple(zip(heights.tolist(), widths.tolist(), strict=True)),
            pair_terms=(between[edge] * most + left) * most + right,
            pair_places=starts[pair[edge]] + row * widths[pair[edge]] + column,
            pair_starts=starts,
        )


def _sums(places: NDArray[np.int64], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """(count,) the sum of the values of each place."""
    return np.asarray(np.bincount(places, values, count), dtype=np.float64)


def _lines(
    entries: Entries, source: NDArray[np.int64], target: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Terms of edges with one decision at their ends, and their places among the codes of all decisions."""
    most = entries.precisions.shape[1]
    edges = np.flatnonzero(((source < 0) != (target < 0)) | ((source >= 0) & (source == target)))
    decisions = np.maximum(source, target)[edges]
    edge, code = np.nonzero(np.arange(most) < entries.sizes[decisions][:, None])
    left = np.where(source[edges[edge]] >= 0, code, 0)
    right = np.where(target[edges[edge]] >= 0, code, 0)
    return (edges[edge] * most + left) * most + right, entries.starts[decisions[edge]] + code


def _squares(
    entries: Entries, source: NDArray[np.int64], target: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """All codes at both ends of edges between two decisions: the edge, the code at its source and at its target."""
    codes = np.arange(entries.precisions.shape[1])
    left, right = (codes < entries.sizes[ends][:, None] for ends in (source, target))
    edge, at_source, at_target = np.nonzero(left[:, :, None] & right[:, None, :])
    return edge, at_source, at_target


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
    palette = tuple(sorted({REFERENCE, *space.precisions, *also}))
    number = {precision: i for i, precision in enumerate(palette)}
    place = {group: i for i, group in enumerate(groups)}
    inner = [edge for edge in edges if edge.source is not None and edge.source != edge.target]
    ends = [[place[edge.source or ""], place[edge.target]] for edge in inner]
    members, effects, fixed = [], [], np.full(len(place), -1, np.int8)
    lowest = {variable.id: 0 for variable in space.variables}
    for variable in space.variables:
        assignments = [space.effect(variable, code) for code in range(len(variable.precisions))]
        members.append(np.array([place[group] for group in variable.groups], dtype=np.int64))
        effects.append(np.array([[number[a[group]] for group in variable.groups] for a in assignments], dtype=np.int8))
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
