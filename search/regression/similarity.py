"""Similarity of mixes. Similar mixes have similar errors of prediction, which no sum of costs explains.

There are two measures: the share of the total cost in groups with the same precision, and the share in the same runs. A
run is a sequence of neighbours with one precision, which engines fuse and choose kernels for together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.space.layout import Layout, Precisions

Floats = NDArray[np.float64]
MOST_SHARING = 200
"""Rows up to which errors are shared among them; more are costly, and then sums are known well."""
_AT_ONCE = 2_000_000  # comparisons whose results are held at a time


@dataclass(frozen=True)
class Kind:
    """A covariance between mixes, 1 of a mix with itself.

    Attributes:
        reach: the share of the cost that has to differ for a similarity of 1/e; 0 to compare runs instead.
    """

    reach: float


KINDS = (Kind(0.1), Kind(0.0))
"""Neighbours, and runs. Longer reaches never forecast held-out rows better on made-up worlds."""


@dataclass(frozen=True)
class Similarity:
    """Compares mixes of a layout.

    Attributes:
        weights: (groups,) weight of each group in the comparison, sum 1.
    """

    layout: Layout
    weights: Floats
    kind: Kind

    @classmethod
    def of(cls, layout: Layout, nodes: Floats, kind: Kind) -> Similarity:
        """Weigh each group by how much its (groups, precisions) costs can change."""
        span = np.ptp(nodes, axis=1) if nodes.size else np.zeros(len(nodes))
        span = span + 0.1 * span.mean() + 1e-300
        return cls(layout, span / span.sum(), kind)

    def between(self, left: Precisions, right: Precisions) -> Floats:
        """(m, groups) and (n, groups) precisions to (m, n) covariances."""
        if self.kind.reach > 0:
            palette = np.arange(len(self.layout.palette))
            one, two = (
                ((rows[:, :, None] == palette) * np.sqrt(self.weights)[:, None]).reshape(
                    len(rows), self.weights.size * palette.size
                )
                for rows in (left, right)
            )
            return np.asarray(np.exp((np.minimum(one @ two.T, 1.0) - 1.0) / self.kind.reach))
        one, two = self._runs(left), self._runs(right)
        found = np.zeros((len(left), len(right)))
        step = max(1, _AT_ONCE // max(1, len(left) * len(right)))
        for start in range(0, len(self.weights), step):
            part = slice(start, start + step)
            alike = one[:, None, part] == two[None, :, part]
            found += alike @ self.weights[part]
        return found

    @cached_property
    def _joined(self) -> NDArray[np.bool_]:
        """(groups,) whether a group reads what the one before it writes."""
        joined = np.zeros(len(self.layout.groups), dtype=bool)
        following = self.layout.edges[:, 1] == self.layout.edges[:, 0] + 1
        joined[self.layout.edges[following, 1]] = True
        return joined

    def _runs(self, precisions: Precisions) -> NDArray[np.int64]:
        """(n, groups) the run that each group is in, by its first group, last group and precision."""
        count = precisions.shape[1]
        breaks = np.ones(precisions.shape, dtype=bool)
        breaks[:, 1:] = (precisions[:, 1:] != precisions[:, :-1]) | ~self._joined[1:]
        places = np.arange(count)
        starts = np.maximum.accumulate(np.where(breaks, places, 0), axis=1)
        closes = np.ones(precisions.shape, dtype=bool)
        closes[:, :-1] = breaks[:, 1:]
        ends = np.minimum.accumulate(np.where(closes, places, count)[:, ::-1], axis=1)[:, ::-1]
        return np.asarray((starts * count + ends) * len(self.layout.palette) + precisions)
