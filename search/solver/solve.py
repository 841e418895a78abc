"""Solutions under a surrogate: the cheapest, the front of two costs, or not seen before.

On narrow graphs of decisions (chains with residual blocks) decisions are eliminated one by one, which is exact. On wide
ones minimum cuts find a good solution in milliseconds. A cost of +inf forbids a code, on narrow graphs also a pair of
codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

import numpy as np

from search.errors import SolverError
from search.solver import hull
from search.solver.cuts import Cutter
from search.solver.elimination import Eliminator, eliminator
from search.solver.hull import Both, HullPoint
from search.space.layout import Codes, Pairwise
from search.space.structure import Structure, Terms

AT_ONCE = 64  # costs that a front solves together, so that they share the work of an elimination


def minimize(cost: Pairwise) -> Codes:
    """Find the (decisions,) codes of least cost, on wide graphs slightly more than the least.

    Raises:
        SolverError: nothing is allowed.
    """
    structure = Structure.of(cost)
    codes, least = minima(structure, structure.terms(cost)[None])
    _check_allowed(least)
    return np.asarray(codes[0])


def solver_of(structure: Structure, terms: Terms) -> Eliminator | Cutter:
    """The solver of costs of one structure: exact where the graph is narrow, and a good one elsewhere.

    Args:
        terms: (…, length) float64; see `Structure.terms`.

    Raises:
        SolverError: pairs of codes are forbidden on a wide graph.
    """
    chosen = eliminator(structure)
    if chosen.fits:
        return chosen
    if not Cutter.fits(structure, terms):
        raise SolverError(
            f"solving {len(structure.sizes)} decisions: too many of them are connected for pairs of codes to be "
            "forbidden. Search with --granularity block."
        )
    return Cutter(structure)


def minima(structure: Structure, terms: Terms) -> tuple[Codes, Terms]:
    """Find the minima of many costs of one structure, such as draws from a posterior.

    Args:
        terms: (batch, length) float64; see `Structure.terms`.

    Returns:
        (batch, decisions) codes and (batch,) least costs without base, +inf if nothing is allowed.
    """
    return solver_of(structure, terms).minimize(terms)


def rank_codes(cost: Pairwise) -> Iterator[tuple[Codes, float]]:
    """Yield all allowed (decisions,) codes and their costs, cheapest first.

    On wide graphs these are only a good minimum and its single changes.
    """
    structure = Structure.of(cost)
    terms = structure.terms(cost)
    return ((codes, cost.base + value) for codes, value in solver_of(structure, terms).rank(terms))


def best_new(cost: Pairwise, seen: Collection[tuple[int, ...]], effort: int = 1000) -> Codes | None:
    """Find the cheapest (decisions,) codes that are not in `seen`.

    Args:
        seen: codes as tuples, preferably in a set.
        effort: after this many cheaper codes that were seen, or where `rank_codes` ends before, the result is the
            cheapest new single change of the cheapest of them that has one.

    Returns:
        The codes; None if nothing new was found so.
    """
    tried = []
    for codes, _ in islice(rank_codes(cost), effort):
        if tuple(codes.tolist()) not in seen:
            return codes
        tried.append(codes)
    return _cheapest_change(cost, tried, seen)


def front(first: Pairwise, second: Pairwise, most: int = 100) -> list[HullPoint]:
    """Find the corners of the convex front of two costs, sorted by `first`: the optima of their weighted sums.

    Between two known corners, the problem with weights for which both are equally good gives a point between them or
    shows that there is none. Many gaps are tried together. A point within 1e-9 of the front's extent of a line between
    corners is not a corner. On wide graphs corners may be missing or lie slightly above the front.

    Args:
        most: the largest number of corners, at least 2. If there are more, those in the widest gaps are kept.

    Raises:
        SolverError: nothing is allowed.
    """
    both = Both.of(first, second)
    ends = _solve_weightings(both, np.eye(2))
    extent = both.measure_extent(ends)
    if extent.all():
        # Of all that have the least of one cost, the one with the least of the other.
        ends = _solve_weightings(both, np.where(np.eye(2) > 0, 1.0, hull.NEGLIGIBLE) / extent)
        extent = both.measure_extent(ends)
    if not extent.all():
        return [ends[1] if extent[1] else ends[0]]
    points, gaps = ends, [(ends[0], ends[1])]
    while gaps and len(points) < most:
        gaps.sort(key=lambda gap: -hull.width(gap, extent))
        tried, gaps = gaps[: min(AT_ONCE, most - len(points))], gaps[min(AT_ONCE, most - len(points)) :]
        weights = np.array([hull.weights(gap, extent) for gap in tried])
        for gap, weight, point in zip(tried, weights, _solve_weightings(both, weights), strict=True):
            if weight @ hull.costs(gap[0]) - weight @ hull.costs(point) > hull.NEGLIGIBLE:
                points.append(point)
                gaps += [(gap[0], point), (point, gap[1])]
    return hull.corners(points, extent)


def _cheapest_change(cost: Pairwise, tried: list[Codes], seen: Collection[tuple[int, ...]]) -> Codes | None:
    """The cheapest new single change of the first codes of `tried` that have one."""
    structure = Structure.of(cost)
    terms = structure.terms(cost)
    for codes in tried:
        rows = [
            [*codes[:i], code, *codes[i + 1 :]]
            for i, size in enumerate(structure.sizes)
            for code in range(size)
            if code != codes[i]
        ]
        changes = np.array(rows, dtype=np.int64).reshape(len(rows), len(codes))
        values = structure.sums(terms, changes)
        for place in np.argsort(values, kind="stable"):
            if np.isfinite(values[place]) and tuple(changes[place].tolist()) not in seen:
                return np.asarray(changes[place])
    return None


def _solve_weightings(both: Both, weights: Terms) -> list[HullPoint]:
    """The minimum of each of (n, 2) weightings of two costs."""
    terms = sum((weight[:, None] * costs for weight, costs in zip(weights.T, both.finite, strict=True)), both.denied)
    codes, least = minima(both.structure, np.asarray(terms))
    _check_allowed(least)
    return [HullPoint(row, *costs) for row, costs in zip(codes, both.values(codes).T.tolist(), strict=True)]


def _check_allowed(least: Terms) -> None:
    if np.isinf(least).any():
        raise SolverError("solving for the least cost: every assignment is forbidden; allow more precisions.")
