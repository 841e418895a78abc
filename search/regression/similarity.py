"""Similarity of mixes. Similar mixes have similar errors of prediction, which no sum of costs explains.

There are two measures: the share of the total cost in groups with the same precision, and the share in the same runs. A
run is a sequence of neighbours with one precision, which engines fuse and choose kernels for together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from search.space.layout import Layout, Precisions

if TYPE_CHECKING:
    from scipy.sparse import csr_array


Floats = NDArray[np.float64]
MOST_SHARING = 200
"""Rows up to which errors are shared among them; more are costly, and then sums are known well."""
_EXACT = 400  # rows up to which groups are compared in double precision; single precision takes half of the time


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
        return KnownMixes(self, right).between(left)

    def alike(self, left: Precisions, right: Precisions) -> Floats:
        """(m, n) share of the cost in groups with the same precision; in single precision for many rows."""
        dtype = np.float32 if len(left) > _EXACT else np.float64
        weights = self.weights.astype(dtype)
        shares = np.zeros((len(left), len(right)), dtype)
        for precision in range(len(self.layout.palette)):
            shares += (left == precision).astype(dtype) @ ((right == precision) * weights).T
        return shares.astype(np.float64)

    @cached_property
    def _joins_previous(self) -> NDArray[np.bool_]:
        """(groups,) whether a group reads what the one before it writes."""
        joined = np.zeros(len(self.layout.groups), dtype=bool)
        following = self.layout.edges[:, 1] == self.layout.edges[:, 0] + 1
        joined[self.layout.edges[following, 1]] = True
        return joined

    def runs(self, precisions: Precisions) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """The runs of all rows: (runs,) their rows, their numbers, and the share of the cost of their groups.

        Equal numbers mean the same first group, last group and precision.
        """
        rows, count = precisions.shape
        breaks = np.ones((rows, count), dtype=bool)
        breaks[:, 1:] = (precisions[:, 1:] != precisions[:, :-1]) | ~self._joins_previous[1:]
        row, first = np.nonzero(breaks)
        last = np.append(first[1:], 0) - 1  # every row begins with a run, and there its last one ends
        last[last < 0] = count - 1
        before = np.append(0.0, np.cumsum(self.weights))
        number = (first * count + last) * len(self.layout.palette) + precisions[row, first]
        return row, number, before[last + 1] - before[first]


@dataclass(frozen=True)
class KnownMixes:
    """Mixes that others are compared with, again and again.

    Attributes:
        known: (n, groups) int8 precisions.
    """

    similarity: Similarity
    known: Precisions

    def between(self, mixes: Precisions) -> Floats:
        """(m, groups) precisions to (m, n) covariances."""
        reach = self.similarity.kind.reach
        if reach > 0:
            return np.asarray(np.exp((np.minimum(self.similarity.alike(mixes, self.known), 1.0) - 1.0) / reach))
        if not len(mixes) or not len(self.known):
            return np.zeros((len(mixes), len(self.known)))
        return np.asarray((self._share_runs(mixes) @ self._holds_run).toarray())

    def weigh(self, mixes: Precisions, weights: Floats) -> Floats:
        """The (m,) sums of covariances times (n,) weights; fast where runs are compared."""
        if self.similarity.kind.reach > 0 or not len(mixes) or not len(self.known):
            return np.asarray(self.between(mixes) @ weights)
        return np.asarray(self._share_runs(mixes) @ (self._holds_run @ weights))

    @cached_property
    def _of_known(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        return self.similarity.runs(self.known)

    @cached_property
    def _runs(self) -> NDArray[np.int64]:
        """(runs,) numbers of the runs that known mixes have, sorted."""
        return np.unique(self._of_known[1])

    @cached_property
    def _holds_run(self) -> csr_array:
        """(runs, n) sparse: 1 where a known mix has a run."""
        from scipy.sparse import csr_array

        row, runs, _ = self._of_known
        places = np.searchsorted(self._runs, runs), row
        return csr_array((np.ones(len(row)), places), shape=(len(self._runs), len(self.known)))

    def _share_runs(self, mixes: Precisions) -> csr_array:
        """(m, runs) sparse: the share of the cost in those of its runs that known mixes have."""
        from scipy.sparse import csr_array

        row, runs, weights = self._of_known if mixes is self.known else self.similarity.runs(mixes)
        column = np.minimum(np.searchsorted(self._runs, runs), len(self._runs) - 1)
        shared = np.flatnonzero(self._runs[column] == runs)
        starts = np.searchsorted(row[shared], np.arange(len(mixes) + 1))
        return csr_array((weights[shared], column[shared], starts), shape=(len(mixes), len(self._runs)))


@dataclass(frozen=True)
class Pairs:
    """Compares mixes by the pairs of groups that their noise comes from.

    Errors of two groups add as vectors: the energy of their sum is the sum of their energies, plus twice the product of
    their sizes and the cosine of the angle between them. Where errors cancel, the cosine is negative; where one group
    passes on what another made, it is positive. Nothing says beforehand which pairs do so. But mixes whose noise comes
    from the same groups have the same pairs, so what pairs add to one of them tells of the others.

    The cosines of all pairs are taken as independent and equally large. A pair's angle is another one if one of its
    groups changes its precision.

    Attributes:
        nodes: (groups, precisions) noise of each group, zero in the first precision.
    """

    nodes: Floats

    def between(self, left: Precisions, right: Precisions) -> Floats:
        """(m, groups) and (n, groups) precisions to (m, n) covariances of what pairs add, relative to the noise.

        A mix whose noise comes from many groups evenly has nearly 1 with itself, and one with a single noisy group 0.
        """
        one, two = self._shares(left), self._shares(right)
        return np.asarray(np.maximum((np.sqrt(one) @ np.sqrt(two).T) ** 2 - one @ two.T, 0.0))

    def own(self, precisions: Precisions) -> Floats:
        """(m,) variances: the diagonal of `between`."""
        shares = self._shares(precisions)
        return np.asarray(np.maximum(shares.sum(axis=1) ** 2 - (shares**2).sum(axis=1), 0.0))

    def _shares(self, precisions: Precisions) -> Floats:
        """(n, groups · lower precisions) share of a mix's noise that each group has, in the column of its precision."""
        rows, (groups, palette) = len(precisions), self.nodes.shape
        noise = self.nodes[np.arange(groups), precisions]
        noise = noise / np.maximum(noise.sum(axis=1, keepdims=True), 1e-300)
        shares = np.zeros((rows, palette - 1, groups))
        for precision in range(1, palette):
            shares[:, precision - 1] = noise * (precisions == precision)
        return shares.reshape(rows, (palette - 1) * groups)
