"""Monotone maps from noise to loss, with which the loss model describes a metric.

Each has three positive parameters, of which the model fits the logarithms. `loss`: (n,) losses of (n,) noises.
`noise`: the noise that gives a loss, infinite if none does. `slopes`: (n,) derivatives by the logarithms of slope,
power, ceiling and noise. `start`: logarithms of the parameters for a loss of `worst` from a noise of 1. `per_noise`:
(n,) about how much each loss changes with a relative change of its noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_DECIBELS = 10 / np.log(10)  # of one unit of the natural logarithm
_MOST_DECIBELS = 1000.0  # of a loss; what is told to be worse is as lost


@dataclass(frozen=True)
class Saturating:
    """loss = ceiling · (1 - exp(-slope · noise^power / ceiling)), about slope · noise^power while that is small."""

    slope: float
    power: float
    ceiling: float

    @staticmethod
    def start(worst: float) -> tuple[float, float, float]:
        return float(np.log(worst)), 0.0, float(np.log(3 * worst))

    @staticmethod
    def per_noise(loss: Floats) -> Floats:
        return np.maximum(loss, 0.0)

    def loss(self, noise: Floats) -> Floats:
        return np.asarray(-self.ceiling * np.expm1(-self.slope * noise**self.power / self.ceiling))

    def noise(self, loss: float) -> float:
        if loss >= self.ceiling:
            return float("inf")
        raised = -self.ceiling * np.log1p(-max(loss, 0.0) / self.ceiling) / self.slope
        return float(raised ** (1 / self.power))

    def slopes(self, noise: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        straight = self.slope * noise**self.power
        passed = np.exp(-straight / self.ceiling)
        bent = straight * passed
        ceiling = self.ceiling * (1 - passed) - bent
        return bent, bent * self.power * np.log(noise), ceiling, bent * self.power


@dataclass(frozen=True)
class Decibels:
    """loss = 10 · log10(1 + slope · noise^power): of a metric in dB, the logarithm of an error or of its inverse.

    `ceiling` is not used.
    """

    slope: float
    power: float
    ceiling: float

    @staticmethod
    def start(worst: float) -> tuple[float, float, float]:
        many = min(worst, _MOST_DECIBELS) / _DECIBELS
        return float(many + np.log(-np.expm1(-many))), 0.0, 0.0  # log(exp(many) - 1), which may not be a number itself

    @staticmethod
    def per_noise(loss: Floats) -> Floats:
        return np.asarray(-_DECIBELS * np.expm1(-np.maximum(loss, 0.0) / _DECIBELS))

    def loss(self, noise: Floats) -> Floats:
        return np.asarray(_DECIBELS * np.log1p(self.slope * noise**self.power))

    def noise(self, loss: float) -> float:
        return float((np.expm1(max(loss, 0.0) / _DECIBELS) / self.slope) ** (1 / self.power))

    def slopes(self, noise: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        straight = self.slope * noise**self.power
        bent = _DECIBELS * straight / (1 + straight)
        return bent, bent * self.power * np.log(noise), np.zeros_like(noise), bent * self.power


Map = Saturating | Decibels
