"""The result of the search for streams: the slots of every tensor, and the constants that take their factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.recovery.streams.slots import PINNED, Slot

Factor = NDArray[np.float32]
Exponents = NDArray[np.int64]
"""(slots,) powers of two by which tensors are divided, 0 for slots that stay as they are."""


@dataclass(frozen=True)
class Scaling:
    """A constant that factors move into: it is multiplied by those of `read` and divided by those of `written`.

    Attributes:
        constant: its name in the clean model; no other node reads it.
        read, written: slots that broadcast to its shape; None if it has no such side.
        is_weight: whether sums of its products make the output, so that it should not become too small for FP16.
    """

    constant: str
    read: Slot | None
    written: Slot | None
    is_weight: bool = False


@dataclass(frozen=True)
class Reader:
    """A weighted op with a constant weight that reads a tensor: `slots` of its (channels,)."""

    node: str
    tensor: str
    slots: Slot


@dataclass(frozen=True)
class Streams:
    """Channels that may take factors.

    Attributes:
        count: of slots, among them the one that is pinned.
        tensors: slots of each tensor that has free ones, by name.
        scalings: of constants.
        readers: weighted ops that read free slots.
        normalized: slots that a normalization writes.
        notes: what was left alone, and why, one sentence each.
    """

    count: int
    tensors: Mapping[str, Slot]
    scalings: Sequence[Scaling]
    readers: Sequence[Reader]
    normalized: frozenset[int]
    notes: tuple[str, ...]

    def components(self) -> list[list[int]]:
        """Free slots in sets that share tensors: what is chosen for one matters to the others of its set."""
        parent = list(range(self.count))

        def root(slot: int) -> int:
            while parent[slot] != slot:
                parent[slot] = parent[parent[slot]]
                slot = parent[slot]
            return slot

        for slots in self.tensors.values():
            members = [int(slot) for slot in np.unique(slots) if slot != PINNED]
            for slot in members[1:]:
                parent[root(slot)] = root(members[0])
        used = {int(slot) for slots in self.tensors.values() for slot in np.unique(slots)} - {PINNED}
        slots_by_root: dict[int, list[int]] = {}
        for slot in sorted(used):
            slots_by_root.setdefault(root(slot), []).append(slot)
        return list(slots_by_root.values())


def shift_of(scaling: Scaling, exponents: Exponents) -> NDArray[np.int64]:
    """The power of two by which a constant is multiplied, in an array that broadcasts to its shape."""
    read = exponents[scaling.read] if scaling.read is not None else np.zeros((), np.int64)
    written = exponents[scaling.written] if scaling.written is not None else np.zeros((), np.int64)
    return np.asarray(read - written)


def factors_of(scalings: Sequence[Scaling], exponents: Exponents) -> dict[str, tuple[Factor, ...]]:
    """The factors of all constants that change, of those that they are read and of those that they are written for."""
    factors: dict[str, tuple[Factor, ...]] = {}
    for scaling in scalings:
        if shift_of(scaling, exponents).any():
            parts = [(scaling.read, 1), (scaling.written, -1)]
            powers = [_power(sign * exponents[slots]) for slots, sign in parts if slots is not None]
            factors[scaling.constant] = tuple(powers)
    return factors


def join_factors(first: Sequence[Factor], second: Sequence[Factor]) -> tuple[Factor, ...]:
    """All factors of one constant, those of one shape multiplied with each other."""
    by_shape: dict[tuple[int, ...], Factor] = {}
    for factor in (*first, *second):
        by_shape[factor.shape] = by_shape[factor.shape] * factor if factor.shape in by_shape else factor
    return tuple(by_shape.values())


def _power(exponents: NDArray[np.int64]) -> Factor:
    return np.asarray(np.ldexp(np.float32(1), exponents), np.float32)
