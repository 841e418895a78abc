"""Keeping scaled constants within the range in which FP16 holds them and powers of two are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.recovery.streams.result import Exponents, Scaling, Streams, shift_of
from evaluators.recovery.streams.slots import PINNED, Slot
from evaluators.recovery.streams.tracker import array_of
from search.graph.model import Model

_LARGEST = 2.0**12  # of a scaled constant, unless it was larger before; FP16 ends at 65504
_SMALLEST = 2.0**-12  # of the largest weight of a channel, unless it was smaller; below 2**-14 FP16 loses digits
_NORMAL = 2.0**-126  # below it float32 loses digits as well


def limit_exponents(model: Model, streams: Streams, exponents: Exponents) -> Exponents:
    """Halve exponents until every constant that they scale fits into FP16, with room, and is scaled exactly.

    Args:
        model: the float model that the streams were found in.
    """
    safe_exponents: Exponents = exponents.copy()
    safe_exponents[PINNED] = 0
    constants = model.graph.graph.initializers
    waiting = list(streams.scalings)
    while waiting:
        wrong: dict[int, None] = {}
        for scaling in waiting:
            wrong.update(dict.fromkeys(_wrong_slots(array_of(constants[scaling.constant]), scaling, safe_exponents)))
        slots = [slot for slot in wrong if safe_exponents[slot]]
        if not slots:
            break
        safe_exponents[slots] = np.trunc(safe_exponents[slots] / 2).astype(np.int64)
        changed = np.zeros(streams.count, np.bool_)
        changed[slots] = True
        waiting = [scaling for scaling in streams.scalings if _touches(scaling, changed)]
    return safe_exponents


def _touches(scaling: Scaling, changed: NDArray[np.bool_]) -> bool:
    return any(bool(changed[side].any()) for side in (scaling.read, scaling.written) if side is not None)


def _wrong_slots(array: NDArray[Any], scaling: Scaling, exponents: Exponents) -> list[int]:
    shift = shift_of(scaling, exponents)
    if not shift.any():
        return []
    shift = shift.reshape((1,) * (array.ndim - shift.ndim) + shift.shape)
    alike = tuple(axis for axis in range(shift.ndim) if shift.shape[axis] == 1)
    size: NDArray[Any] = np.abs(array)
    before = size.max(axis=alike, keepdims=True)
    after = np.ldexp(before, shift)
    wrong = after > max(_LARGEST, float(before.max()))
    if (shift < 0).any():
        least = np.where(size > 0, size, np.float32(np.inf)).min(axis=alike, keepdims=True)
        wrong |= (shift < 0) & (np.ldexp(least, shift) < _NORMAL)
    slots = _slots_at(scaling.read, wrong) + _slots_at(scaling.written, wrong)
    if scaling.is_weight:
        slots += [slot for slot in _faint(scaling.read, before, after) if exponents[slot] < 0]
        slots += [slot for slot in _faint(scaling.written, before, after) if exponents[slot] > 0]
    return slots


def _faint(slots: Slot | None, before: NDArray[Any], after: NDArray[Any]) -> list[int]:
    """Slots of channels all of whose weights have become small."""
    if slots is None:
        return []
    slots = _compact(slots.reshape((1,) * (before.ndim - slots.ndim) + slots.shape))
    others = tuple(axis for axis in range(slots.ndim) if slots.shape[axis] == 1)
    members, place = np.unique(slots, return_inverse=True)
    most, left = np.zeros(len(members)), np.zeros(len(members))
    for maxima, sizes in ((most, before), (left, after)):
        largest = sizes.max(axis=others, keepdims=True)
        np.maximum.at(maxima, place.reshape(-1), np.broadcast_to(largest, slots.shape).reshape(-1))
    return [int(slot) for slot in members[(left < _SMALLEST) & (left < most)]]


def _compact(slots: Slot) -> Slot:
    """Slots without what repeats itself along an axis: the input channels of a weight are alike for all outputs."""
    for axis in range(slots.ndim):
        first = slots.take([0], axis)
        if slots.shape[axis] > 1 and (slots == first).all():
            slots = first
    return slots


def _slots_at(slots: Slot | None, wrong: NDArray[np.bool_]) -> list[int]:
    if slots is None or not wrong.any():
        return []
    spread = np.broadcast_to(slots, np.broadcast_shapes(slots.shape, wrong.shape))
    return [int(slot) for slot in np.unique(spread[np.broadcast_to(wrong, spread.shape)])]
