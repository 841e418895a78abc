"""Dividing whole clusters between parts of given sizes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_MOST_STEPS = 1000
_Change = tuple[tuple[int, int], ...]  # clusters, each with its new part


def divide_clusters(sizes: Integers, targets: Integers, least: Integers, random: np.random.RandomState) -> Integers:
    """Give every cluster to one part so that the parts come near to their targets.

    Clusters are dealt out in random order, each to the part that lacks most. Then single clusters are moved and pairs
    exchanged between parts as long as that brings the parts nearer to their targets.

    Args:
        sizes: (clusters,) samples of each cluster.
        targets: (parts,) samples that each part should have; they sum to those of all clusters.
        least: (parts,) clusters that each part needs at least; fewer in all than there are.

    Returns:
        (clusters,) number of the part of each cluster. A part whose target is 0 gets none.
    """
    parts = _deal(sizes, targets, random.permutation(len(sizes)))
    # Move clusters, each time the one that fits best, to parts that have fewer than they need.
    for part in range(len(least)):
        while np.count_nonzero(parts == part) < least[part]:
            surplus = _surplus(parts, sizes, targets)
            cost = (surplus[parts] - sizes) ** 2 - surplus[parts] ** 2 + (surplus[part] + sizes) ** 2
            may_go = _spare(parts, least)[parts] & (parts != part)
            parts[np.argmin(np.where(may_go, cost, np.iinfo(np.int64).max))] = part
    for _ in range(_MOST_STEPS):
        if not _improve(parts, sizes, targets, least):
            break
    return parts


def _deal(sizes: Integers, targets: Integers, order: Integers) -> Integers:
    parts, lacking = np.zeros(len(sizes), np.int64), targets.astype(np.int64)
    for cluster in order:
        part = int(np.argmax(lacking))
        parts[cluster] = part
        lacking[part] -= sizes[cluster]
    return parts


def _surplus(parts: Integers, sizes: Integers, targets: Integers) -> Integers:
    return np.bincount(parts, weights=sizes, minlength=len(targets)).astype(np.int64) - targets


def _spare(parts: Integers, least: Integers) -> NDArray[np.bool_]:
    """Which parts have more clusters than they need."""
    spare: NDArray[np.bool_] = np.bincount(parts, minlength=len(least)) > least
    return spare


def _improve(parts: Integers, sizes: Integers, targets: Integers, least: Integers) -> bool:
    """Make the one move or exchange that helps most; False if none helps.

    What is made smaller is the sum of the squares of the parts' surpluses.
    """
    surplus, spare = _surplus(parts, sizes, targets), _spare(parts, least)
    best, change = 0, _Change()
    for giver in np.flatnonzero(targets):
        for taker in np.flatnonzero(targets):
            if surplus[giver] <= surplus[taker]:
                continue
            # Handing over d samples changes the sum by 2·d·(d - gap): least at half the gap.
            gap = int(surplus[giver] - surplus[taker])
            for gain, transfer in _transfers(parts, sizes, int(giver), int(taker), gap, bool(spare[giver])):
                if gain > best:
                    best, change = gain, transfer
    for cluster, part in change:
        parts[cluster] = part
    return best > 0


def _transfers(
    parts: Integers, sizes: Integers, giver: int, taker: int, gap: int, spare: bool
) -> list[tuple[int, _Change]]:
    """The best move and the best exchange between two parts: what each gains, and the new parts of its clusters."""
    giver_clusters, taker_clusters = np.flatnonzero(parts == giver), np.flatnonzero(parts == taker)
    transfers: list[tuple[int, _Change]] = []
    if spare and len(giver_clusters):
        gains = sizes[giver_clusters] * (gap - sizes[giver_clusters])
        best = int(np.argmax(gains))
        transfers.append((int(gains[best]), ((int(giver_clusters[best]), taker),)))
    if len(giver_clusters) and len(taker_clusters):
        taker_clusters = taker_clusters[np.argsort(sizes[taker_clusters], kind="stable")]
        place = np.searchsorted(sizes[taker_clusters], sizes[giver_clusters] - gap / 2)
        for near in (np.maximum(place - 1, 0), np.minimum(place, len(taker_clusters) - 1)):
            handed = sizes[giver_clusters] - sizes[taker_clusters[near]]
            gains = handed * (gap - handed)
            best = int(np.argmax(gains))
            transfers.append(
                (int(gains[best]), ((int(giver_clusters[best]), taker), (int(taker_clusters[near[best]]), giver)))
            )
    return transfers
