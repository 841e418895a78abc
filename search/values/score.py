"""A weighted sum of accuracy and latency: the reward of the sampler `rl`, and the pick `score:ACCURACY,LATENCY`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Score:
    """R = accuracy · ΔAccuracy − latency · ΔLatency, both against uniform FP32.

    ΔAccuracy is the loss with its sign turned, in units of `loss_unit`. ΔLatency is relative: −0.5 is half of FP32's
    latency. So uniform FP32 has R = 0, and a larger R is better.

    Attributes:
        accuracy, latency: the weights, at least 0 and not both 0.
    """

    accuracy: float = 0.6
    latency: float = 0.4

    def of(self, latency_ms: ArrayLike, loss: ArrayLike, fp32_ms: float, unit: float) -> NDArray[np.float64]:
        """R of each mix.

        Args:
            latency_ms, loss: (n,) of the mixes.
            fp32_ms: latency of uniform FP32.
            unit: what `loss_unit` gives.

        Returns:
            (n,) float64.
        """
        gained = -np.asarray(loss, np.float64) / unit
        slower = np.asarray(latency_ms, np.float64) / fp32_ms - 1
        return np.asarray(self.accuracy * gained - self.latency * slower)

    @classmethod
    def parse(cls, text: str) -> Score:
        """Read `0.6,0.4`; ValueError where that is not two weights."""
        weights = [float(part) for part in text.split(",")]
        if len(weights) != 2 or not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise ValueError(f"{text!r} is not two weights of at least 0, of which one is above 0")
        return cls(*weights)

    def __str__(self) -> str:
        """`0.6,0.4`, which `parse` reads."""
        return f"{self.accuracy:g},{self.latency:g}"


USUAL = Score()


def loss_unit(ratio: bool, uniform_losses: Iterable[float]) -> float:
    """The loss that counts as ΔAccuracy = −1.

    That is 1 where the metric is a share of one, so that a loss of 1 % counts 0.01. Other metrics, say in dB, have no
    natural unit: there it is the largest loss of the uniform assignments, and 1 where none of them loses anything.
    """
    if ratio:
        return 1.0
    worst = max((loss for loss in uniform_losses if math.isfinite(loss)), default=0.0)
    return worst if worst > 0 else 1.0
