"""Slots: sets of channels of tensors that have to be scaled by the same factor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Slot = NDArray[np.int64]
"""Slots of a tensor's elements: of the tensor's rank, each dimension of its size, or 1 where all along it are alike."""

Shape = Sequence[int]

PINNED = 0
"""The slot whose factor is 1."""


class Slots:
    """Disjoint sets of slots. All slots of a set take one factor; those of the set of `PINNED` take none."""

    def __init__(self) -> None:
        self._parent = [PINNED]

    def make(self, *shape: int) -> Slot:
        """New slots, each a set of its own."""
        start = len(self._parent)
        count = int(np.prod(shape))
        self._parent.extend(range(start, start + count))
        return np.arange(start, start + count, dtype=np.int64).reshape(shape)

    def unite(self, first: Slot, second: Slot) -> Slot:
        """Make slots equal, element by element of two arrays that broadcast; returns the broadcast array."""
        left, right = np.broadcast_arrays(first, second)
        count = len(self._parent)  # each pair as one number: NumPy sorts columns a hundred times as slowly
        pairs = np.unique(left.ravel() * count + right.ravel())
        for one, other in zip((pairs // count).tolist(), (pairs % count).tolist(), strict=True):
            low, high = sorted((self._root(one), self._root(other)))
            self._parent[high] = low  # the pinned slot is the lowest of all
        return left

    def pin(self, slots: Slot) -> None:
        """Let these slots, and all that are equal to one of them, have the factor 1."""
        self.unite(slots, np.array(PINNED))

    def roots(self, slots: Slot) -> Slot:
        """The one slot that stands for each slot's set."""
        different, place = np.unique(slots, return_inverse=True)
        roots = np.array([self._root(slot) for slot in different.tolist()], np.int64)
        return roots[place].reshape(np.shape(slots))

    def merge_axes(self, slots: Slot, axes: Iterable[int]) -> Slot:
        """Make slots equal along some axes, which become 1."""
        for axis in axes:
            if slots.shape[axis] > 1:
                first = np.take(slots, [0], axis)
                self.unite(slots, first)
                slots = first
        return slots

    def merge_all(self, slots: Slot, rank: int) -> Slot:
        """Make all these slots equal; the one slot as an array of a rank."""
        return self.merge_axes(slots.reshape(-1), [0]).reshape((1,) * rank)

    def _root(self, slot: int) -> int:
        parent = self._parent
        while parent[slot] != slot:
            parent[slot] = parent[parent[slot]]
            slot = parent[slot]
        return slot

    def __len__(self) -> int:
        return len(self._parent)


def with_rank(slots: Slot, rank: int) -> Slot:
    """The slots with leading dimensions of 1 added."""
    return slots.reshape((1,) * (rank - slots.ndim) + slots.shape)


def reshape_slots(sets: Slots, slots: Slot, shapes: Sequence[tuple[Shape, Shape]]) -> Slot:
    """Follow slots through a reshape.

    Dimensions are matched in the smallest blocks of equal size, so that (batch, channels, 1, 1) → (batch, channels)
    keeps one slot a channel whatever the batch is. Blocks that only the measured sizes agree with, as with a batch of
    1, are none.

    Args:
        sets: where slots are made equal that cannot be told apart.
        slots: of size 1 along axes whose sizes change.
        shapes: before and after, none of them empty: first at the measured input shapes, then at others if they change.
    """
    old, new = shapes[0]
    axes = [axis for axis in range(len(old)) if any(before[axis] > 1 for before, _ in shapes)]
    targets = [axis for axis in range(len(new)) if any(after[axis] > 1 for _, after in shapes)]
    sizes = [([before[axis] for axis in axes], [after[axis] for axis in targets]) for before, after in shapes]
    blocks = _common_blocks(sizes)
    if blocks is None:
        return sets.merge_all(slots, len(new))
    slots = slots.reshape([slots.shape[axis] for axis in axes])
    full, shape = list(slots.shape), [1] * len(new)
    for before, after in blocks:
        varied = [axis for axis in before if slots.shape[axis] > 1]
        changing = any(one[axis] != sizes[0][0][axis] for one, _ in sizes for axis in before)
        if varied and changing:
            slots = sets.merge_axes(slots, varied)
            varied = []
        for axis in before:
            full[axis] = old[axes[axis]] if varied else 1
        for axis in after:
            shape[targets[axis]] = new[targets[axis]] if varied else 1
    return np.broadcast_to(slots, full).reshape(shape)


def _common_blocks(sizes: Sequence[tuple[Shape, Shape]]) -> list[tuple[list[int], list[int]]] | None:
    """The blocks of the largest of some pairs of shapes; None if they do not hold for all of them."""
    largest = max(sizes, key=lambda pair: math.prod(pair[0]))
    if 1 in (*largest[0], *largest[1]):
        return None
    blocks = list(_blocks(*largest))
    for old, new in sizes:
        for before, after in blocks:
            if math.prod(old[axis] for axis in before) != math.prod(new[axis] for axis in after):
                return None
    return blocks


def _blocks(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Consecutive axes of both shapes that hold equally many elements, as few as can be; all sizes are above 1."""
    i = j = 0
    while i < len(old):
        before, after, left, right = [i], [j], old[i], new[j]
        while left != right:
            if left < right:
                i += 1
                before.append(i)
                left *= old[i]
            else:
                j += 1
                after.append(j)
                right *= new[j]
        yield before, after
        i, j = i + 1, j + 1
