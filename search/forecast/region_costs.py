"""The extra time of a region with mixed precisions, where engines fuse the region only as a whole.

Two effects are learned for every division of the network into regions: the whole region runs in its highest precision,
or the fused region is split and takes longer. Each effect has a factor that all regions of a division share, and every
region has a factor of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.space.layout import Layout, Precisions
from search.space.regions import Division, divisions

Floats = NDArray[np.float64]

# Mean and standard deviation of the factors. What profiles show as one layer usually does not survive a mix (a
# transformer's Myelin regions on the H200: all INT8 took 2.6 times FP16).
_OPAQUE_SLOWEST, _OPAQUE_APART = (0.5, 0.5), (0.2, 0.3)
# The same of regions that profiles do not show as one layer: nothing is known of them beforehand. Half of these
# standard deviations costs 2.8 points of the share in a made-up world whose opaque regions profiles show layer by
# layer, and gains no more than chance in five others.
_SLOWEST, _APART = (0.0, 0.3), (0.0, 0.15)
_OWN_OPAQUE, _OWN = 0.2, 0.08  # standard deviations of what one region differs from the others of its division


@dataclass(frozen=True)
class RegionCosts:
    """Features of mixed regions, in milliseconds.

    Attributes:
        nodes: (groups, precisions) expected ms of every group.
        opaque: (groups,) whether a group runs inside a layer that shows none of its groups; None if no group does.
        broken: (groups,) precisions of each uniform assignment whose engine shows what others run as a whole. Of the
            other uniform assignments no region is mixed.
    """

    layout: Layout
    nodes: Floats
    opaque: NDArray[np.bool_] | None
    broken: Sequence[Precisions] = ()

    @cached_property
    def _whole(self) -> list[Precisions]:
        """The (groups,) precisions of the uniform assignments that are not known to be broken up."""
        return [each for each in self.layout.uniforms if not any((each == other).all() for other in self.broken)]

    @cached_property
    def divisions(self) -> list[Division]:
        return divisions(self.layout, self.opaque)

    @cached_property
    def _starts(self) -> list[NDArray[np.int64]]:
        """For every division the indices where its regions start; regions are runs in the order of the graph."""
        return [np.flatnonzero(np.diff(owners, prepend=-1) != 0) for owners in self.divisions]

    @cached_property
    def _long(self) -> list[NDArray[np.int64]]:
        """For every division the regions of more than one group."""
        ends = [np.append(starts[1:], len(self.layout.groups)) for starts in self._starts]
        return [np.flatnonzero(end - start > 1) for start, end in zip(self._starts, ends, strict=True)]

    @cached_property
    def size(self) -> int:
        """The number of features."""
        return sum(2 + len(regions) for regions in self._long)

    @cached_property
    def beliefs(self) -> tuple[Floats, Floats]:
        """The (size,) prior means and standard deviations of the factors."""
        means, stds = [], []
        for number, (starts, regions) in enumerate(zip(self._starts, self._long, strict=True)):
            hidden = np.zeros(len(regions), bool) if self.opaque is None else self.opaque[starts[regions]]
            known = bool(hidden.any()) and number == 0
            slowest, apart = (_OPAQUE_SLOWEST, _OPAQUE_APART) if known else (_SLOWEST, _APART)
            means.append(np.concatenate([[slowest[0], apart[0]], np.zeros(len(regions))]))
            own = np.where(hidden & known, _OWN_OPAQUE, _OWN)
            stds.append(np.concatenate([[slowest[1], apart[1]], own]))
        nothing = np.zeros(0)
        return np.concatenate([nothing, *means]), np.concatenate([nothing, *stds])

    def features(self, precisions: Precisions) -> Floats:
        """The (n, size) features of (n, groups) precisions."""
        rows = len(precisions)
        columns = [np.zeros((rows, 0))]
        took = self.nodes[np.arange(len(self.nodes)), precisions]
        for starts, regions in zip(self._starts, self._long, strict=True):
            highest, lowest = (
                np.minimum.reduceat(precisions, starts, axis=1)[:, regions],
                np.maximum.reduceat(precisions, starts, axis=1)[:, regions],
            )
            mixed = highest != lowest
            for uniform in self._whole:  # where groups have no INT8, uniform INT8 has several precisions
                mixed &= np.logical_or.reduceat(precisions != uniform, starts, axis=1)[:, regions]
            own = np.where(mixed, np.add.reduceat(took, starts, axis=1)[:, regions], 0.0)
            table = np.add.reduceat(self.nodes, starts, axis=0)[regions]
            whole = np.where(mixed, table[np.arange(len(regions)), highest], 0.0)
            columns += [(whole - own).sum(axis=1)[:, None], own.sum(axis=1)[:, None], own]
        return np.concatenate(columns, axis=1)
