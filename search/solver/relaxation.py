"""Two costs over the same decisions: the hull of their values, and the Lagrangian relaxation of a limit of one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from search.solver.cuts import Cutter
from search.solver.elimination import Eliminator
from search.space.layout import Codes, Pairwise
from search.space.structure import Structure, Terms

NEGLIGIBLE = 1e-9  # of the front's extent: a point that adds less is the same point, rounded otherwise


class HullPoint(NamedTuple):
    """Codes on the front of two costs, and both costs."""

    codes: Codes
    first: float
    second: float


@dataclass(frozen=True)
class Both:
    """Two costs over the same decisions. Codes that one of them forbids are forbidden.

    Attributes:
        bases: (2,) float64.
        finite: (2, length) float64.
        denied: (length,) float64, +inf where something is forbidden, else 0.
    """

    structure: Structure
    bases: Terms
    finite: Terms
    denied: Terms

    @classmethod
    def of(cls, first: Pairwise, second: Pairwise, fixed: Mapping[int, int]) -> Both:
        structure = Structure.of(first, second)
        terms = structure.restrict(np.stack([structure.terms(first), structure.terms(second)]), fixed)
        denied = np.isinf(terms).any(axis=0)
        bases = np.array([first.base, second.base])
        return cls(structure, bases, np.where(denied, 0.0, terms), np.where(denied, np.inf, 0.0))

    def values(self, codes: Codes) -> Terms:
        """(n, decisions) codes to (2, n) costs."""
        return self.bases[:, None] + np.stack([self.structure.sums(terms, codes) for terms in self.finite])

    def measure_extent(self, ends: list[HullPoint]) -> Terms:
        """(2,) the difference of the two minima in each cost; 0 if only rounding separates them."""
        extent = np.abs(costs(ends[1]) - costs(ends[0]))
        return np.where(extent > 1e-12 * np.abs(self.finite).max(axis=1, initial=0), extent, 0.0)


def costs(point: HullPoint) -> Terms:
    """(2,) both costs of a point."""
    return np.array([point.first, point.second])


def weights(gap: tuple[HullPoint, HullPoint], extent: Terms) -> Terms:
    """(2,) the weighting, in units of the extent, that likes both ends equally."""
    first, second = np.abs(costs(gap[1]) - costs(gap[0])) / extent
    return np.asarray(np.array([second, first]) / (first + second) / extent)


def width(gap: tuple[HullPoint, HullPoint], extent: Terms) -> float:
    """How far its ends are apart, in units of the extent."""
    return float(np.linalg.norm((costs(gap[1]) - costs(gap[0])) / extent))


def corners(points: list[HullPoint], extent: Terms) -> list[HullPoint]:
    """The points that are corners of the lower left convex hull, sorted by the first cost."""
    found: list[HullPoint] = []
    for point in sorted(points, key=lambda point: (point.first, point.second)):
        while found and _is_covered(found, point, extent):
            found.pop()
        if not found or (found[-1].second - point.second) / extent[1] > NEGLIGIBLE:
            found.append(point)
    return found


def _is_covered(found: list[HullPoint], point: HullPoint, extent: Terms) -> bool:
    """Whether the last point of `found` is no longer a corner when `point` follows."""
    across, down = (costs(point) - costs(found[-1])) / extent * (1, -1)
    if down <= NEGLIGIBLE or len(found) == 1:
        return bool(down > 0 and across <= NEGLIGIBLE)
    before_across, before_down = (costs(found[-1]) - costs(found[-2])) / extent * (1, -1)
    return bool(across <= NEGLIGIBLE or before_down * across - before_across * down <= NEGLIGIBLE**2)


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
        forbidden: codes that do not count, as tuples.
        looked_at: the effort: how many decisions, summed over all codes, are enumerated by rising relaxed cost.
    """

    chosen: Eliminator | Cutter
    base: float
    terms: Terms
    limited: Terms
    limit: float
    forbidden: Collection[tuple[int, ...]]
    looked_at: int = LOOKED_AT

    def solve(self, gap: float) -> Relaxed:
        """Bracket the limit between two corners of the convex front, then enumerate codes near that edge.

        Args:
            gap: the relative difference of value and bound that is small enough.
        """
        cheapest, inside = self._minima([self.terms, np.where(np.isinf(self.terms), np.inf, self.limited)])
        if np.isinf(self._costs(cheapest)[0]) or self._costs(inside)[1] > self.limit:
            return Relaxed(None, np.inf, np.inf)
        found = Relaxed(None, np.inf, self._costs(cheapest)[0])
        weight = 0.0
        if self._costs(cheapest)[1] > self.limit:
            weight = self._bracket_limit(found, cheapest, inside)
        self._look(found, weight, gap)
        return found

    def _bracket_limit(self, found: Relaxed, beyond: Codes, inside: Codes) -> float:
        """The weights with the highest bound, for which the corners on both sides of the limit are equally good.

        Every step tries the weight at which two corners are equally good, and others between those of the corners.
        """
        best, low, high = 0.0, 0.0, np.inf
        for _ in range(STEPS):
            self._consider(found, inside)
            (value, excess), (other, room) = self._costs(beyond), self._costs(inside)
            weight = max(0.0, (other - value) / (excess - room))
            weights = _between(low, weight, high, self.chosen.lanes)
            corners = self._minima([self.terms + each * self.limited for each in weights])
            for each, codes in zip(weights, corners, strict=True):
                reached = self._costs(codes)
                bound = reached[0] + each * (reached[1] - self.limit)
                if bound > found.bound:
                    found.bound, best = bound, each
                if each == weight and bound >= value + weight * (excess - self.limit) - 1e-12 * abs(value):
                    return best
                if reached[1] > self.limit:
                    low, beyond = each, codes
                elif each < high:
                    high, inside = each, codes
        return best

    def _look(self, found: Relaxed, weight: float, gap: float) -> None:
        """Enumerate codes by rising relaxed cost until no later one can be better."""
        offset = self.base - weight * self.limit
        most, looked = self.looked_at // max(1, len(self.chosen.structure.sizes)), 0
        for codes, relaxed in islice(self.chosen.rank(self.terms + weight * self.limited), most):
            found.bound = min(found.value, max(found.bound, relaxed + offset))
            if found.proven(gap):
                return
            self._consider(found, codes)
            looked += 1
        if looked < most:  # that was all there is
            found.bound = found.value

    def _consider(self, found: Relaxed, codes: Codes) -> None:
        value, limited = self._costs(codes)
        if value < found.value and limited <= self.limit and tuple(codes.tolist()) not in self.forbidden:
            found.codes, found.value = codes, value

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
