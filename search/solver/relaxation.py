"""The Lagrangian relaxation of a limit, which gives a bound and codes close to it without HiGHS."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

import numpy as np

from search.solver.cuts import Cutter
from search.solver.elimination import Eliminator
from search.space.layout import Codes
from search.space.structure import Terms

STEPS = 60  # of narrowing the bracket; ten are usual
LOOKED_AT = 50_000  # decisions of the codes that are looked at in the order of the relaxed cost: 0.1 s


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

    def solved(self, gap: float) -> Relaxed:
        """Bracket the limit between two corners of the convex front, then enumerate codes near that edge.

        Args:
            gap: the relative difference of value and bound that is small enough.
        """
        cheapest = self._minimum(self.terms)
        inside = self._minimum(np.where(np.isinf(self.terms), np.inf, self.limited))
        if np.isinf(self._costs(cheapest)[0]) or self._costs(inside)[1] > self.limit:
            return Relaxed(None, np.inf, np.inf)
        found = Relaxed(None, np.inf, self._costs(cheapest)[0])
        weight = 0.0
        if self._costs(cheapest)[1] > self.limit:
            weight = self._bracketed(found, cheapest, inside)
        self._look(found, weight, gap)
        return found

    def _bracketed(self, found: Relaxed, beyond: Codes, inside: Codes) -> float:
        """The weights with the highest bound, for which the corners on both sides of the limit are equally good."""
        best = 0.0
        for _ in range(STEPS):
            self._consider(found, inside)
            (value, excess), (other, room) = self._costs(beyond), self._costs(inside)
            weight = max(0.0, (other - value) / (excess - room))
            codes = self._minimum(self.terms + weight * self.limited)
            reached = self._costs(codes)
            bound = reached[0] + weight * (reached[1] - self.limit)
            if bound > found.bound:
                found.bound, best = bound, weight
            if bound >= value + weight * (excess - self.limit) - 1e-12 * abs(value):
                break
            beyond, inside = (codes, inside) if reached[1] > self.limit else (beyond, codes)
        return best

    def _look(self, found: Relaxed, weight: float, gap: float) -> None:
        """Enumerate codes by rising relaxed cost until no later one can be better."""
        offset = self.base - weight * self.limit
        most, looked = self.looked_at // max(1, len(self.chosen.structure.sizes)), 0
        for codes, relaxed in islice(self.chosen.ranked(self.terms + weight * self.limited), most):
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

    def _minimum(self, terms: Terms) -> Codes:
        return np.asarray(self.chosen.minimize(terms[None])[0][0])

    def _costs(self, codes: Codes) -> tuple[float, float]:
        structure = self.chosen.structure
        value = structure.sums(self.terms, codes[None])[0]
        return float(self.base + value), float(structure.sums(self.limited, codes[None])[0])
