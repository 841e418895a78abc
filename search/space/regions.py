"""Regions of a network that engines may treat as a whole: opaque ones, parts between cuts, blocks, and stages.

A division numbers the region of every group. A group outside of all regions has its own number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.space.layout import Layout

Division = NDArray[np.int64]
_LONG_SPAN = 24  # groups that an edge may skip before it counts as a shortcut, which ties nothing together
_LONGEST = 0.5  # share of all groups that one region may have


def divisions(layout: Layout, opaque: NDArray[np.bool_] | None = None) -> list[Division]:
    """Different divisions of the groups into regions, each (groups,) int64, the most certain first.

    Args:
        opaque: (groups,) whether a group runs inside a layer that shows none of its groups.
    """
    stretches, alone = between_cuts(layout), -1 - np.arange(len(layout.groups))
    candidates = []
    if opaque is not None and opaque.any():
        candidates.append(_number_regions(np.where(opaque, stretches, alone)))
        candidates.append(_number_regions(np.where(opaque, _runs(opaque), alone)))
    candidates.append(stretches)
    if len(layout.blocks):
        candidates.append(_number_regions(_runs(layout.blocks)))
    candidates.append(stages(layout, stretches))
    # The distinct divisions that have regions of several groups; regions that are too long are divided.
    kept: dict[bytes, Division] = {}
    for owners in candidates:
        too_long = np.bincount(owners)[owners] > max(_LONGEST * len(owners), 2)
        division = _first_places(np.where(too_long, -1 - np.arange(len(owners)), owners))
        if len(np.unique(division)) < len(division):
            kept.setdefault(division.tobytes(), division)
    return list(kept.values())


def between_cuts(layout: Layout) -> Division:
    """Regions between places where a single tensor connects all groups before and all behind."""
    count = len(layout.groups)
    last = np.arange(count)
    for source, target in layout.edges.tolist():
        if 0 < target - source <= _LONG_SPAN:
            last[source] = max(last[source], target)
    crossing = np.zeros(count + 1, dtype=np.int64)
    np.add.at(crossing, np.arange(count) + 1, last > np.arange(count))
    np.add.at(crossing, last + 1, -(last > np.arange(count)).astype(np.int64))
    starts = np.cumsum(crossing)[:-1] <= 1
    return np.asarray(np.cumsum(starts), dtype=np.int64)


def stages(layout: Layout, stretches: Division) -> Division:
    """Regions of neighbouring groups that read tensors of one size."""
    size = np.zeros(len(layout.groups))
    np.maximum.at(size, layout.edges[:, 1], layout.elements)
    largest = np.zeros(int(stretches.max(initial=0)) + 1)
    np.maximum.at(largest, stretches, size)
    return _number_regions(_runs(largest[stretches]))


def _runs(values: NDArray[np.generic]) -> Division:
    """(n,) number of the run of equal values to which each value belongs."""
    changes = np.ones(len(values), dtype=bool)
    changes[1:] = values[1:] != values[:-1]
    return np.asarray(np.cumsum(changes), dtype=np.int64)


def _number_regions(owners: Division) -> Division:
    return np.asarray(np.unique(owners, return_inverse=True)[1], dtype=np.int64)


def _first_places(owners: Division) -> Division:
    """A division with its regions numbered by their first group."""
    _, first, inverse = np.unique(owners, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse], dtype=np.int64)
