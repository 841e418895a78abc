"""Exact solutions under a surrogate: the cheapest, the front of two costs, within a limit, or not seen before.

On narrow graphs of decisions (chains with residual blocks) decisions are eliminated one by one. On others, and for a
limit with a small gap, HiGHS solves an integer program. A cost of +inf forbids a code or a pair of codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from search.errors import SolverError, UnfinishedError
from search.solver import hull
from search.solver import integer_program as program
from search.solver.elimination import eliminator
from search.solver.hull import Both, Point
from search.solver.relaxation import LOOKED_AT, Relaxation, Relaxed
from search.space.layout import Codes, Pairwise
from search.space.structure import Structure, Terms

AT_ONCE = 64  # costs that a front solves together
TIME_LIMIT_S = 60.0  # of one integer program

Fixed = Mapping[int, int]


@dataclass(frozen=True)
class Solution:
    """Codes that keep a limit.

    Attributes:
        value: the objective, including the base.
        limited: the limited cost, including the base.
        gap: a proof that no codes are better by more than this share of `value`; if that is 0, by more than this.
        timed_out: whether the solver stopped at its time limit.
    """

    codes: Codes
    value: float
    limited: float
    gap: float
    timed_out: bool


def minimize(cost: Pairwise, fixed: Fixed | None = None, time_limit_s: float = TIME_LIMIT_S) -> Codes:
    """Find the (decisions,) codes of least cost.

    Args:
        fixed: fixed codes by decision.
        time_limit_s: the time limit of HiGHS, which is used if the graph is too wide for elimination.

    Raises:
        SolverError: nothing is allowed.
        UnfinishedError: HiGHS did not finish.
    """
    structure = Structure.of(cost)
    codes, least = minima(structure, structure.restricted(structure.terms(cost), fixed or {})[None], time_limit_s)
    _check_allowed(least)
    return np.asarray(codes[0])


def minima(structure: Structure, terms: Terms, time_limit_s: float = TIME_LIMIT_S) -> tuple[Codes, Terms]:
    """Find the minima of many costs of one structure, such as draws from a posterior.

    Args:
        terms: (batch, length) float64; see `Structure.terms`.

    Returns:
        (batch, decisions) codes and (batch,) least costs without base, +inf if nothing is allowed.

    Raises:
        UnfinishedError: HiGHS did not finish one of them.
    """
    chosen = eliminator(structure)
    if chosen.fits:
        return chosen.minimize(terms)
    codes = np.zeros((len(terms), len(structure.sizes)), dtype=np.int64)
    least = np.full(len(terms), np.inf)
    for lane, costs in enumerate(terms):
        for found, value in islice(_programmed(structure, costs, time_limit_s), 1):
            codes[lane], least[lane] = found, value
    return codes, least


def ranked(
    cost: Pairwise, fixed: Fixed | None = None, time_limit_s: float = TIME_LIMIT_S
) -> Iterator[tuple[Codes, float]]:
    """Yield all allowed (decisions,) codes and their costs, cheapest first.

    Raises:
        UnfinishedError: HiGHS did not finish, where the graph is too wide for elimination.
    """
    structure = Structure.of(cost)
    terms = structure.restricted(structure.terms(cost), fixed or {})
    chosen = eliminator(structure)
    found = chosen.ranked(terms) if chosen.fits else _programmed(structure, terms, time_limit_s)
    return ((codes, cost.base + value) for codes, value in found)


def best_new(
    cost: Pairwise, seen: Collection[tuple[int, ...]], fixed: Fixed | None = None, effort: int = 1000
) -> Codes | None:
    """Find the cheapest (decisions,) codes that are not in `seen`.

    Args:
        seen: codes as tuples, preferably in a set.
        effort: after this many cheaper codes that were seen, the result is the cheapest new single change of the
            cheapest of them that has one.

    Returns:
        The codes; None if all allowed codes were seen, or nothing new was found within `effort`.

    Raises:
        UnfinishedError: HiGHS did not finish, where the graph is too wide for elimination.
    """
    tried = []
    for codes, _ in islice(ranked(cost, fixed), effort):
        if tuple(codes.tolist()) not in seen:
            return codes
        tried.append(codes)
    return _changed(cost, fixed or {}, tried, seen) if len(tried) == effort else None


def front(
    first: Pairwise,
    second: Pairwise,
    most: int = 100,
    fixed: Fixed | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> list[Point]:
    """Find the corners of the convex front of two costs, sorted by `first`: the optima of their weighted sums.

    Between two known corners, the problem with weights for which both are equally good gives a point between them or
    shows that there is none. Many gaps are tried together. A point within 1e-9 of the front's extent of a line between
    corners is not a corner.

    Args:
        most: the largest number of corners, at least 2. If there are more, those in the widest gaps are kept.
        time_limit_s: the time limit of each integer program, used if the graph is too wide for elimination.

    Raises:
        SolverError: nothing is allowed.
        UnfinishedError: HiGHS did not finish.
    """
    both = Both.of(first, second, fixed or {})
    ends = _solved(both, np.eye(2), time_limit_s)
    extent = both.extent(ends)
    if extent.all():
        # Of all that have the least of one cost, the one with the least of the other.
        ends = _solved(both, np.where(np.eye(2) > 0, 1.0, hull.NEGLIGIBLE) / extent, time_limit_s)
        extent = both.extent(ends)
    if not extent.all():
        return [ends[1] if extent[1] else ends[0]]
    points, gaps = ends, [(ends[0], ends[1])]
    while gaps and len(points) < most:
        gaps.sort(key=lambda gap: -hull.width(gap, extent))
        tried, gaps = gaps[: min(AT_ONCE, most - len(points))], gaps[min(AT_ONCE, most - len(points)) :]
        weights = np.array([hull.weights(gap, extent) for gap in tried])
        for gap, weight, point in zip(tried, weights, _solved(both, weights, time_limit_s), strict=True):
            if weight @ hull.costs(gap[0]) - weight @ hull.costs(point) > hull.NEGLIGIBLE:
                points.append(point)
                gaps += [(gap[0], point), (point, gap[1])]
    return hull.corners(points, extent)


def within(
    objective: Pairwise,
    limited: Pairwise,
    limit: float,
    gap: float = 1e-3,
    time_limit_s: float = 5.0,
    forbidden: Sequence[Codes] = (),
    fixed: Fixed | None = None,
    looked_at: int = LOOKED_AT,
) -> Solution | None:
    """Find the codes of least objective whose other cost keeps a limit.

    Args:
        limit: the upper limit of `limited`, with a tolerance of 1e-9 of the limit and of the largest term.
        gap: the solver stops when it is proven that no codes are better by more than this share of the value.
        time_limit_s: the time limit of HiGHS, which is used if the Lagrangian relaxation leaves a larger gap; 0 for
            none.
        forbidden: (decisions,) codes to exclude.
        looked_at: effort of the relaxation; see there.

    Returns:
        The solution; None if no codes keep the limit.

    Raises:
        SolverError: no codes that keep the limit were found in time, though there may be some.
    """
    both = Both.of(objective, limited, fixed or {})
    structure, terms = both.structure, both.finite[0] + both.denied
    room = program.tolerated(both.finite[1], limit - limited.base)
    known, timed_out, chosen = Relaxed(None, np.inf, -np.inf), False, eliminator(structure)
    if chosen.fits:
        denied = {tuple(int(code) for code in codes) for codes in forbidden}
        known = Relaxation(chosen, objective.base, terms, both.finite[1], room, denied, looked_at).solved(gap)
    if not known.proven(gap) and time_limit_s <= 0:
        timed_out = True
    elif not known.proven(gap):
        budget = both.finite[1], limit - limited.base
        found = program.solve(structure, terms, objective.base, budget, forbidden, gap, time_limit_s)
        timed_out = found is not None and found.timed_out
        _improve(known, found, both)
    if known.codes is None and timed_out:
        raise SolverError(
            f"solving {len(structure.sizes)} decisions within a limit of {limit:g}: HiGHS found no solution that keeps "
            "it "
            f"within {time_limit_s:g} s. Allow more time or a looser limit."
        )
    return _solution(known, both, timed_out)


def _solution(known: Relaxed, both: Both, timed_out: bool) -> Solution | None:
    if known.codes is None:
        return None
    left = max(0.0, known.value - known.bound)
    share = left / abs(known.value) if left and known.value else left
    reached = float(both.values(known.codes[None])[1][0])
    return Solution(known.codes, known.value, reached, share, timed_out)


def _improve(known: Relaxed, found: program.Found | None, both: Both) -> None:
    """Add the result of HiGHS; None if there is no solution."""
    if found is None:
        known.bound = known.value
        return
    known.bound = max(known.bound, found.bound)
    if found.codes is not None:
        value = float(both.values(found.codes[None])[0][0])
        if value < known.value:
            known.codes, known.value = found.codes, value


def _changed(cost: Pairwise, fixed: Fixed, tried: list[Codes], seen: Collection[tuple[int, ...]]) -> Codes | None:
    """The cheapest new single change of the first codes of `tried` that have one."""
    structure = Structure.of(cost)
    terms = structure.restricted(structure.terms(cost), fixed)
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


def _programmed(structure: Structure, terms: Terms, time_limit_s: float) -> Iterator[tuple[Codes, float]]:
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


def _solved(both: Both, weights: Terms, time_limit_s: float) -> list[Point]:
    """The minimum of each of (n, 2) weightings of two costs."""
    terms = sum((weight[:, None] * costs for weight, costs in zip(weights.T, both.finite, strict=True)), both.denied)
    codes, least = minima(both.structure, np.asarray(terms), time_limit_s)
    _check_allowed(least)
    return [Point(row, *costs) for row, costs in zip(codes, both.values(codes).T.tolist(), strict=True)]


def _check_allowed(least: Terms) -> None:
    if np.isinf(least).any():
        raise SolverError("solving for the least cost: every assignment is forbidden; allow more precisions.")
