"""The Lagrangian relaxation of a limit, which gives a bound and codes close to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from search.solver.cuts import Cutter
from search.solver.elimination import Eliminator
from search.space.layout import Codes
from search.space.structure import Terms

STEPS = 60  # of narrowing the bracket; a few are usual
_REACH = 32.0  # factor between a weight and the farthest that are tried beside it: five doublings either side
LOOKED_AT = 50_000  # decisions of the codes that are looked at in the order of the relaxed cost: 0.05 s


@dataclass
class Relaxed:
    """The known facts about the least cost within a limit.

    Attributes:
        codes: the best known codes that keep the limit.
        value: their cost; +inf if none are known.
        bound: a lower bound of the cost within the limit; +inf if nothing keeps it.
    """

    codes: Codes | None
    value: float
    bound: float

    def proven(self, gap: float) -> bool:
        return self.value - self.bound <= gap * abs(self.value) if self.codes is not None else self.bound == np.inf


@dataclass(frozen=True)
class Relaxation:
    """Minimise base + Σ terms where Σ limited may be at most `limit`.

    Attributes:
        chosen: solves what is left without the limit. The bounds hold if it is exact.
        terms: (length,) float64, +inf where something is forbidden.
        limited: (length,) float64, finite.
        looked_at: the effort: how many decisions, summed over all codes, are enumerated by rising relaxed cost.
    """

    chosen: Eliminator | Cutter
    base: float
    terms: Terms
    limited: Terms
    limit: float
    looked_at: int = LOOKED_AT

    def solve(self, gap: float) -> Relaxed:
        """Bracket the limit between two corners of the convex front, then enumerate codes near that edge.

        Args:
            gap: the relative difference of value and bound that is small enough.
        """
        cheapest, inside = self._minima([self.terms, np.where(np.isinf(self.terms), np.inf, self.limited)])
        if np.isinf(self._costs(cheapest)[0]) or self._costs(inside)[1] > self.limit:
            return Relaxed(None, np.inf, np.inf)
        solution = Relaxed(None, np.inf, self._costs(cheapest)[0])
        weight = 0.0
        if self._costs(cheapest)[1] > self.limit:
            weight = self._bracket_limit(solution, cheapest, inside)
        self._look(solution, weight, gap)
        return solution

    def _bracket_limit(self, solution: Relaxed, beyond: Codes, inside: Codes) -> float:
        """The weights with the highest bound, for which the corners on both sides of the limit are equally good.

        Every step tries the weight at which two corners are equally good, and others between those of the corners.
        """
        best, low, high = 0.0, 0.0, np.inf
        for _ in range(STEPS):
            self._consider(solution, inside)
            (value, excess), (other, room) = self._costs(beyond), self._costs(inside)
            weight = max(0.0, (other - value) / (excess - room))
            weights = _between(low, weight, high, self.chosen.lanes)
            corners = self._minima([self.terms + each * self.limited for each in weights])
            for each, codes in zip(weights, corners, strict=True):
                reached = self._costs(codes)
                bound = reached[0] + each * (reached[1] - self.limit)
                if bound > solution.bound:
                    solution.bound, best = bound, each
                if each == weight and bound >= value + weight * (excess - self.limit) - 1e-12 * abs(value):
                    return best
                if reached[1] > self.limit:
                    low, beyond = each, codes
                elif each < high:
                    high, inside = each, codes
        return best

    def _look(self, solution: Relaxed, weight: float, gap: float) -> None:
        """Enumerate codes by rising relaxed cost until no later one can be better."""
        offset = self.base - weight * self.limit
        most, looked = self.looked_at // max(1, len(self.chosen.structure.sizes)), 0
        for codes, relaxed in islice(self.chosen.rank(self.terms + weight * self.limited), most):
            solution.bound = min(solution.value, max(solution.bound, relaxed + offset))
            if solution.proven(gap):
                return
            self._consider(solution, codes)
            looked += 1
        if looked < most:  # that was all there is
            solution.bound = solution.value

    def _consider(self, solution: Relaxed, codes: Codes) -> None:
        value, limited = self._costs(codes)
        if value < solution.value and limited <= self.limit:
            solution.codes, solution.value = codes, value

    def _minima(self, terms: Sequence[Terms]) -> Codes:
        return self.chosen.minimize(np.array(terms))[0]

    def _costs(self, codes: Codes) -> tuple[float, float]:
        structure = self.chosen.structure
        value = structure.sums(self.terms, codes[None])[0]
        return float(self.base + value), float(structure.sums(self.limited, codes[None])[0])


def _between(low: float, weight: float, high: float, count: int) -> list[float]:
    """At most so many weights in rising order: the one in the middle, and others between the ends around it."""
    ends = max(low, weight / _REACH), min(high, weight * _REACH)
    if count == 1 or not 0 < ends[0] < ends[1]:
        return [weight]
    others = np.geomspace(*ends, count + 1)[1:-1]
    return sorted({weight, *(float(other) for other in others if low < other < high)})
