"""Solutions under a surrogate: the cheapest, the front of two costs, or not seen before.

On narrow graphs of decisions (chains with residual blocks) decisions are eliminated one by one, which is exact. On wide
ones HiGHS solves an integer program, which may take minutes, or with `exact=False` minimum cuts find a good solution in
milliseconds. A cost of +inf forbids a code or a pair of codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

import numpy as np

from search.errors import SolverError, UnfinishedError
from search.solver import hull
from search.solver import integer_program as program
from search.solver.cuts import Cutter
from search.solver.elimination import Eliminator, eliminator
from search.solver.hull import Both, HullPoint
from search.space.layout import Codes, Pairwise
from search.space.structure import Structure, Terms

AT_ONCE = 64  # costs that a front solves together, so that they share the work of an elimination
TIME_LIMIT_S = 60.0  # of one integer program, for callers that want the optimum and wait for it

Fixed = Mapping[int, int]


def minimize(
    cost: Pairwise, fixed: Fixed | None = None, time_limit_s: float = TIME_LIMIT_S, *, exact: bool = True
) -> Codes:
    """Find the (decisions,) codes of least cost.

    Args:
        fixed: fixed codes by decision.
        time_limit_s: the time limit of HiGHS, which is used if the graph is too wide for elimination.
        exact: if False, minimum cuts are used there instead, and the codes may cost slightly more than the least.

    Raises:
        SolverError: nothing is allowed.
        UnfinishedError: HiGHS did not finish.
    """
    structure = Structure.of(cost)
    terms = structure.restrict(structure.terms(cost), fixed or {})
    codes, least = minima(structure, terms[None], time_limit_s, exact=exact)
    _check_allowed(least)
    return np.asarray(codes[0])


def solver_of(structure: Structure, terms: Terms, *, exact: bool) -> Eliminator | Cutter | None:
    """The quick solver of these costs, exact wherever it can be; None if only an integer program does."""
    chosen = eliminator(structure)
    if chosen.fits:
        return chosen
    return None if exact or not Cutter.fits(structure, terms) else Cutter(structure)


def minima(
    structure: Structure, terms: Terms, time_limit_s: float = TIME_LIMIT_S, *, exact: bool = True
) -> tuple[Codes, Terms]:
    """Find the minima of many costs of one structure, such as draws from a posterior.

    Args:
        terms: (batch, length) float64; see `Structure.terms`.
        exact: see `minimize`.

    Returns:
        (batch, decisions) codes and (batch,) least costs without base, +inf if nothing is allowed.

    Raises:
        UnfinishedError: HiGHS did not finish one of them.
    """
    solver = solver_of(structure, terms, exact=exact)
    if solver is not None:
        return solver.minimize(terms)
    codes = np.zeros((len(terms), len(structure.sizes)), dtype=np.int64)
    least = np.full(len(terms), np.inf)
    for lane, costs in enumerate(terms):
        for found, value in islice(_rank_by_program(structure, costs, time_limit_s), 1):
            codes[lane], least[lane] = found, value
    return codes, least


def rank_codes(
    cost: Pairwise, fixed: Fixed | None = None, time_limit_s: float = TIME_LIMIT_S, *, exact: bool = True
) -> Iterator[tuple[Codes, float]]:
    """Yield all allowed (decisions,) codes and their costs, cheapest first.

    Args:
        exact: if False, and the graph is too wide for elimination, only a good minimum and its single changes.

    Raises:
        UnfinishedError: HiGHS did not finish, where the graph is too wide for elimination.
    """
    structure = Structure.of(cost)
    terms = structure.restrict(structure.terms(cost), fixed or {})
    solver = solver_of(structure, terms, exact=exact)
    found = _rank_by_program(structure, terms, time_limit_s) if solver is None else solver.rank(terms)
    return ((codes, cost.base + value) for codes, value in found)


def best_new(
    cost: Pairwise,
    seen: Collection[tuple[int, ...]],
    fixed: Fixed | None = None,
    effort: int = 1000,
    *,
    exact: bool = True,
) -> Codes | None:
    """Find the cheapest (decisions,) codes that are not in `seen`.

    Args:
        seen: codes as tuples, preferably in a set.
        effort: after this many cheaper codes that were seen, the result is the cheapest new single change of the
            cheapest of them that has one.
        exact: see `rank_codes`; if False, that change follows also where `rank_codes` ends.

    Returns:
        The codes; None if all allowed codes were seen, or nothing new was found within `effort`.

    Raises:
        UnfinishedError: HiGHS did not finish, where the graph is too wide for elimination.
    """
    tried = []
    for codes, _ in islice(rank_codes(cost, fixed, exact=exact), effort):
        if tuple(codes.tolist()) not in seen:
            return codes
        tried.append(codes)
    return _cheapest_change(cost, fixed or {}, tried, seen) if len(tried) == effort or not exact else None


def front(
    first: Pairwise,
    second: Pairwise,
    most: int = 100,
    fixed: Fixed | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    *,
    exact: bool = True,
) -> list[HullPoint]:
    """Find the corners of the convex front of two costs, sorted by `first`: the optima of their weighted sums.

    Between two known corners, the problem with weights for which both are equally good gives a point between them or
    shows that there is none. Many gaps are tried together. A point within 1e-9 of the front's extent of a line between
    corners is not a corner.

    Args:
        most: the largest number of corners, at least 2. If there are more, those in the widest gaps are kept.
        time_limit_s: the time limit of each integer program, used if the graph is too wide for elimination.
        exact: see `minimize`; if False, corners may be missing or lie slightly above the front.

    Raises:
        SolverError: nothing is allowed.
        UnfinishedError: HiGHS did not finish.
    """
    both = Both.of(first, second, fixed or {})
    ends = _solve_weightings(both, np.eye(2), time_limit_s, exact)
    extent = both.measure_extent(ends)
    if extent.all():
        # Of all that have the least of one cost, the one with the least of the other.
        ends = _solve_weightings(both, np.where(np.eye(2) > 0, 1.0, hull.NEGLIGIBLE) / extent, time_limit_s, exact)
        extent = both.measure_extent(ends)
    if not extent.all():
        return [ends[1] if extent[1] else ends[0]]
    points, gaps = ends, [(ends[0], ends[1])]
    while gaps and len(points) < most:
        gaps.sort(key=lambda gap: -hull.width(gap, extent))
        tried, gaps = gaps[: min(AT_ONCE, most - len(points))], gaps[min(AT_ONCE, most - len(points)) :]
        weights = np.array([hull.weights(gap, extent) for gap in tried])
        for gap, weight, point in zip(
            tried, weights, _solve_weightings(both, weights, time_limit_s, exact), strict=True
        ):
            if weight @ hull.costs(gap[0]) - weight @ hull.costs(point) > hull.NEGLIGIBLE:
                points.append(point)
                gaps += [(gap[0], point), (point, gap[1])]
    return hull.corners(points, extent)


def _cheapest_change(
    cost: Pairwise, fixed: Fixed, tried: list[Codes], seen: Collection[tuple[int, ...]]
) -> Codes | None:
    """The cheapest new single change of the first codes of `tried` that have one."""
    structure = Structure.of(cost)
    terms = structure.restrict(structure.terms(cost), fixed)
    for codes in tried:
        found = [
            [*codes[:i], code, *codes[i + 1 :]]
            for i, size in enumerate(structure.sizes)
            for code in range(size)
            if code != codes[i]
        ]
        changes = np.array(found, dtype=np.int64).reshape(len(found), len(codes))
        values = structure.sums(terms, changes)
        for place in np.argsort(values, kind="stable"):
            if np.isfinite(values[place]) and tuple(changes[place].tolist()) not in seen:
                return np.asarray(changes[place])
    return None


def _rank_by_program(structure: Structure, terms: Terms, time_limit_s: float) -> Iterator[tuple[Codes, float]]:
    """The same as `Eliminator.ranked`, with one integer program for each item."""
    cuts: list[Codes] = []
    while (found := program.solve(structure, terms, forbidden=cuts, time_limit_s=time_limit_s)) is not None:
        if found.timed_out or found.codes is None:
            raise UnfinishedError(
                f"solving {len(structure.sizes)} decisions: too many of them are connected for elimination, and HiGHS "
                "did not "
                f"finish within {time_limit_s:g} s. Search with --granularity block."
            )
        cuts.append(found.codes)
        yield found.codes, float(structure.sums(terms, found.codes[None])[0])


def _solve_weightings(both: Both, weights: Terms, time_limit_s: float, exact: bool) -> list[HullPoint]:
    """The minimum of each of (n, 2) weightings of two costs."""
    terms = sum((weight[:, None] * costs for weight, costs in zip(weights.T, both.finite, strict=True)), both.denied)
    codes, least = minima(both.structure, np.asarray(terms), time_limit_s, exact=exact)
    _check_allowed(least)
    return [HullPoint(row, *costs) for row, costs in zip(codes, both.values(codes).T.tolist(), strict=True)]


def _check_allowed(least: Terms) -> None:
    if np.isinf(least).any():
        raise SolverError("solving for the least cost: every assignment is forbidden; allow more precisions.")
