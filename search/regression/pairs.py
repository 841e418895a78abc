"""What pairs of groups add to a sum of noise, as a covariance between mixes.

Errors of two groups add as vectors: the energy of their sum is the sum of their energies, plus twice the product of
their sizes and the cosine of the angle between them. Where errors cancel, the cosine is negative; where one group
passes on what another made, it is positive. Nothing says beforehand which pairs do so. But mixes whose noise comes
from the same groups have the same pairs, so what pairs add to one of them tells of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.space.layout import Precisions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pairs:
    """Compares mixes by the pairs of groups that their noise comes from.

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
        found = np.zeros((rows, palette - 1, groups))
        for precision in range(1, palette):
            found[:, precision - 1] = noise * (precisions == precision)
        return found.reshape(rows, (palette - 1) * groups)
