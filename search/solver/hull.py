"""Two costs over the same decisions, and the lower left convex hull of their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
    def of(cls, first: Pairwise, second: Pairwise) -> Both:
        structure = Structure.of(first, second)
        terms = np.stack([structure.terms(first), structure.terms(second)])
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
    hull: list[HullPoint] = []
    for point in sorted(points, key=lambda point: (point.first, point.second)):
        while hull and _is_covered(hull, point, extent):
            hull.pop()
        if not hull or (hull[-1].second - point.second) / extent[1] > NEGLIGIBLE:
            hull.append(point)
    return hull


def _is_covered(hull: list[HullPoint], point: HullPoint, extent: Terms) -> bool:
    """Whether the last point of `hull` is no longer a corner when `point` follows."""
    across, down = (costs(point) - costs(hull[-1])) / extent * (1, -1)
    if down <= NEGLIGIBLE or len(hull) == 1:
        return bool(down > 0 and across <= NEGLIGIBLE)
    before_across, before_down = (costs(hull[-1]) - costs(hull[-2])) / extent * (1, -1)
    return bool(across <= NEGLIGIBLE or before_down * across - before_across * down <= NEGLIGIBLE**2)
