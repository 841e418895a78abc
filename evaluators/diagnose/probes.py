"""Runs with some groups lowered, and the errors of single groups that follow from them.

With time for few runs, whole stretches of the network are lowered together. Rounding errors of groups are nearly
independent, so their squares add up, and one run tells what all groups of a stretch add. The stretch that adds most is
halved, and both halves are run, until time is over. This is adaptive group testing by binary splitting (Hwang 1972),
with amounts in place of yes and no.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluators.diagnose.local_noise import Local, Pair

_TINY = 1e-18  # an error that is none, of which no logarithm is taken


@dataclass(frozen=True)
class Measured:
    """What a run with some groups lowered adds to the outputs."""

    error: float
    flipped: float | None
    samples: int


@dataclass(frozen=True)
class Probe:
    """One run.

    Attributes:
        pairs: that were lowered together, neighbours along the network.
    """

    pairs: tuple[Pair, ...]
    measured: Measured

    @property
    def single(self) -> bool:
        return len(self.pairs) == 1


def singles(probes: Sequence[Probe]) -> dict[Pair, Measured]:
    """The pairs that were lowered alone."""
    return {probe.pairs[0]: probe.measured for probe in probes if probe.single}


def to_halve(probes: Sequence[Probe]) -> Probe | None:
    """The stretch that adds most, an average one of its pairs left out, since one pair cannot be halved; None if no
    probe has several pairs.
    """
    several = [probe for probe in probes if not probe.single]
    return max(several, key=lambda probe: probe.measured.error * (1 - 1 / len(probe.pairs)), default=None)


def halves(probe: Probe) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
    middle = len(probe.pairs) // 2
    return probe.pairs[:middle], probe.pairs[middle:]


def estimates(places: Mapping[str, int], local: Mapping[Pair, Local], probes: Sequence[Probe]) -> dict[Pair, float]:
    """The error of every pair: as measured, or from its local noise and the gain from there to the outputs.

    The gain of a probe is its error divided by the noise of its pairs. Between the middles of probes the logarithm of
    the gain is interpolated. Estimates of the pairs of one probe are scaled so that they sum to its error.

    Args:
        places: of every group along the network.
        local: of every pair.
        probes: none of which shares a pair with another.
    """
    gains = _gains(places, local, probes)
    at = sorted(gains)
    means = [float(np.mean(gains[place])) for place in at]
    errors = {}
    for pair, alone in local.items():
        gain = float(np.interp(places[pair[0]], at, means)) if at else 0.0
        errors[pair] = alone.noise * math.exp(gain)
    for probe in probes:
        total = sum(errors[pair] for pair in probe.pairs)
        if probe.single:
            errors[probe.pairs[0]] = probe.measured.error
        elif 0 < total < math.inf and probe.measured.error < math.inf:
            errors |= {pair: errors[pair] * probe.measured.error / total for pair in probe.pairs}
    return errors


def _gains(places: Mapping[str, int], local: Mapping[Pair, Local], probes: Sequence[Probe]) -> dict[float, list[float]]:
    """Middle of a probe → the logarithms of the gains there."""
    gains: dict[float, list[float]] = {}
    for probe in probes:
        noise = sum(local[pair].noise for pair in probe.pairs)
        if _TINY < probe.measured.error < math.inf and _TINY < noise < math.inf:
            middle = float(np.mean([places[group] for group, _ in probe.pairs]))
            gains.setdefault(middle, []).append(math.log(probe.measured.error / noise))
    return gains
