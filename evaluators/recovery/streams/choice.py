"""Choose powers of two for the channels of a stream, so that one INT8 scale for each of its tensors wastes least."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluators.calibration.channels import ChannelValues
from evaluators.recovery.streams.layers import Floats, Layer, RoundedTensor
from evaluators.recovery.streams.result import Exponents
from evaluators.recovery.streams.slots import PINNED, Slot

STRENGTHS = (1.0, 0.75, 0.5, 0.25)
"""How far activations are evened out; the rest of the way weights are."""
_PHASES = (-1 / 3, 1 / 3)
_WORTH = 0.95  # of the error: a smaller gain is left alone
_MOST = 12  # of an exponent either way: 8-bit codes tell 2**7 apart
_HIGHEST = 512.0  # where a scaled stream is to end at most; data may exceed the samples by 2**7 then
_DEAD = 2.0**-40  # of the largest channel: such a channel keeps its factor


@dataclass(frozen=True)
class Stream:
    """Slots that are chosen for together.

    Attributes:
        slots: all of them, ascending.
        layers: the weighted ops that read tensors of theirs.
        rounded: tensors of theirs that INT8 rounds.
        magnitudes: (slots,) largest value of each slot in any tensor.
    """

    slots: Sequence[int]
    layers: Sequence[Layer]
    rounded: Sequence[RoundedTensor]
    magnitudes: Floats

    def noise(self, exponents: Exponents) -> float:
        """Sum of the noise that all its layers have, each over its output's power."""
        steps = sum(tensor.step(exponents) ** 2 for tensor in self.rounded)
        return sum(layer.noise(exponents, steps) for layer in self.layers)

    def candidate(self, strength: float, phase: float, count: int) -> Exponents:
        """Exponents of all slots of the model, `count` of them, that are zero outside this stream.

        Args:
            phase: is added to all logarithms before they are rounded, so that another channel is the largest.
        """
        inputs, weights = self._log_sizes()
        known = np.isfinite(inputs) & np.isfinite(weights)
        return self._settle(np.where(known, strength * inputs - (1 - strength) * weights + phase, np.nan), count)

    def _log_sizes(self) -> tuple[Floats, Floats]:
        """(slots,) logarithms of what is rounded, over the largest of its tensor, and of the weights that read it."""
        inputs, weights = np.zeros(len(self.slots)), np.zeros(len(self.slots))
        for tensor in self.rounded:
            free = tensor.slots != PINNED
            size = tensor.magnitude / max(float(tensor.magnitude.max()), np.finfo(np.float64).tiny)
            np.maximum.at(inputs, np.searchsorted(self.slots, tensor.slots[free]), size[free])
        for layer in self.layers:
            free = layer.slots != PINNED
            np.add.at(weights, np.searchsorted(self.slots, layer.slots[free]), layer.gain[free])
        with np.errstate(divide="ignore"):
            return np.where(inputs > _DEAD, np.log2(inputs), np.nan), np.log2(weights) / 2

    def _settle(self, logs: Floats, count: int) -> Exponents:
        """Round, and move all together so that the largest value of the stream stays below what it was."""
        found = np.zeros(count, np.int64)
        known = np.isfinite(logs)
        if not known.any():
            return found
        powers = np.rint(logs[known])
        sizes = self.magnitudes[known]
        after = float((sizes * np.exp2(-powers)).max())
        wanted = min(float(self.magnitudes.max()), _HIGHEST)
        powers += np.ceil(np.log2(after / wanted))
        found[np.array(self.slots)[known]] = np.clip(powers, -_MOST, _MOST).astype(np.int64)
        return found


def choose_exponents(stream: Stream, count: int, error: Callable[[Exponents], float]) -> Exponents:
    """The candidate with the least error; zero throughout where none is clearly better than that."""
    best, least = np.zeros(count, np.int64), error(np.zeros(count, np.int64)) * _WORTH
    chosen = None
    for strength in STRENGTHS:
        found = stream.candidate(strength, 0.0, count)
        if (measured := error(found)) < least:
            best, least, chosen = found, measured, strength
    for phase in _PHASES if chosen is not None else ():
        assert chosen is not None
        found = stream.candidate(chosen, phase, count)
        if (measured := error(found)) < least:
            best, least = found, measured
    return best


def magnitudes_of(tensors: Mapping[str, Slot], values: Mapping[str, ChannelValues], count: int) -> Floats:
    """(count,) largest value of every slot in any tensor; NaN where a tensor holds one."""
    found = np.zeros(count)
    for name, seen in values.items():
        slots = tensors[name]
        size = np.broadcast_to(seen.magnitude, slots.shape).astype(np.float64)
        np.maximum.at(found, slots.reshape(-1), size.reshape(-1))
    return found


def kept_axes(slots: Slot) -> tuple[int, ...]:
    """The axes along which slots of a tensor vary."""
    return tuple(axis for axis, size in enumerate(slots.shape) if size > 1)
