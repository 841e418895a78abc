"""Choosing powers of two for the channels of a stream, so that one INT8 scale per tensor loses least."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluators.calibration.channels import ChannelValues
from evaluators.recovery.streams.layers import Floats, RoundedLayer, RoundedTensor
from evaluators.recovery.streams.result import Exponents
from evaluators.recovery.streams.slots import PINNED, Slot

STRENGTHS = (1.0, 0.75, 0.5, 0.25)
"""How far activations are evened out; the rest of the way weights are."""
_PHASES = (-1 / 3, 1 / 3)
_HALVES = (0, 1)
_WORTH = 0.5  # of the error: what gains less is left alone, since errors of one layer only hint at those of outputs
_MOST = 12  # of an exponent either way: 8-bit codes tell 2**7 apart
_OPENS = 2.0**-3  # of what a channel reaches before an activation: it counts as reaching as much behind it
_HIGHEST = 512.0  # where a scaled stream is to end at most; data may exceed the samples by 2**7 then
_DEAD = 2.0**-40  # of the largest channel: nobody knows what such a channel would reach


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
    layers: Sequence[RoundedLayer]
    rounded: Sequence[RoundedTensor]
    magnitudes: Floats

    def noise(self, exponents: Exponents, half: int) -> float:
        """Sum of the noise that all its layers have, each over its output's power.

        Args:
            half: of the samples, that gives the ranges of its tensors.
        """
        errors = np.zeros(len(exponents))
        for tensor in self.rounded:
            largest = np.zeros(len(exponents))
            np.maximum.at(largest, tensor.slots, tensor.errors(exponents, half))
            errors += largest
        return sum(layer.noise(exponents, errors) for layer in self.layers)

    def candidate(self, strength: float, phase: float, half: int | None, count: int) -> Exponents:
        """Exponents of all slots of the model, `count` of them, that are zero outside this stream.

        Args:
            phase: is added to all logarithms before they are rounded, so that another channel is the largest.
            half: of the samples, that says how large channels are; None for both.
        """
        inputs, weights = self._log_sizes(half)
        known = np.isfinite(inputs) & np.isfinite(weights)
        return self._settle(np.where(known, strength * inputs - (1 - strength) * weights + phase, np.nan), count)

    def _log_sizes(self, half: int | None) -> tuple[Floats, Floats]:
        """(slots,) logarithms of what is rounded, over the largest of its tensor, and of the weights that read it."""
        inputs, weights = np.zeros(len(self.slots)), np.zeros(len(self.slots))
        for tensor in self.rounded:
            free = tensor.slots != PINNED
            magnitude = tensor.magnitude(half)
            largest = max(float(magnitude.max()), np.finfo(np.float64).tiny)
            here = np.searchsorted(self.slots, tensor.slots[free])
            # A channel that an activation has nearly shut may open on other samples.
            size = np.maximum(magnitude[free], _OPENS * self.magnitudes[here])
            np.maximum.at(inputs, here, size / largest)
        for layer in self.layers:
            free = layer.slots != PINNED
            np.add.at(weights, np.searchsorted(self.slots, layer.slots[free]), layer.gain[free])
        with np.errstate(divide="ignore"):
            logs = np.log2(inputs), np.log2(weights) / 2
        return np.where(inputs > _DEAD, logs[0], np.nan), np.where(weights > 0, logs[1], np.nan)

    def _settle(self, logs: Floats, count: int) -> Exponents:
        """Round, and move all together so that the largest value of the stream stays below what it was."""
        exponents = np.zeros(count, np.int64)
        known = np.isfinite(logs)
        if not known.any():
            return exponents
        powers = np.rint(logs[known])
        sizes = self.magnitudes[known]
        after = float((sizes * np.exp2(-powers)).max())
        wanted = min(float(self.magnitudes.max()), _HIGHEST)
        powers += np.ceil(np.log2(after / wanted))
        powers = np.clip(powers, -_MOST, _MOST)
        # Nobody knows what a dead channel would reach: with the largest factor it disturbs no other.
        exponents[self.slots] = int(powers.max())
        exponents[np.array(self.slots)[known]] = powers.astype(np.int64)
        return exponents


def choose_exponents(stream: Stream, count: int, error: Callable[[Exponents, int], float]) -> Exponents:
    """The candidate with the least error; zero throughout where none is clearly better than that.

    Each is chosen and calibrated with one half of the samples and judged by the other, in both ways: the more channels
    reach the end of a range, the more of them exceed it on samples that nobody has seen.

    Args:
        error: of exponents, where one half of the samples gives the ranges.
    """

    def judge(strength: float, phase: float) -> float:
        return sum(error(stream.candidate(strength, phase, half, count), half) for half in _HALVES)

    none = np.zeros(count, np.int64)
    worth = _WORTH * sum(error(none, half) for half in _HALVES)
    strengths = {strength: judge(strength, 0.0) for strength in STRENGTHS}
    best = min(strengths, key=lambda strength: strengths[strength])
    if strengths[best] >= worth:
        return none
    phases = {0.0: strengths[best], **{phase: judge(best, phase) for phase in _PHASES}}
    return stream.candidate(best, min(phases, key=lambda phase: phases[phase]), None, count)


def magnitudes_of(tensors: Mapping[str, Slot], values: Mapping[str, ChannelValues], count: int) -> Floats:
    """(count,) largest value of every slot in any tensor; NaN if a tensor holds one."""
    magnitudes = np.zeros(count)
    for name, seen in values.items():
        slots = tensors[name]
        size = np.broadcast_to(seen.magnitude, slots.shape).astype(np.float64)
        with np.errstate(invalid="ignore"):
            np.maximum.at(magnitudes, slots.reshape(-1), size.reshape(-1))
    return magnitudes


def kept_axes(slots: Slot) -> tuple[int, ...]:
    """The axes along which slots of a tensor vary."""
    return tuple(axis for axis, size in enumerate(slots.shape) if size > 1)
