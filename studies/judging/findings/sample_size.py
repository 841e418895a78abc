"""The smallest loss that a number of samples can show, and the number of samples that a loss needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.measure.intervals import Z95, student_point
from evaluators.measure.mean_bounds import LossUnits
from search.values import bound_level

_KINDS = 100  # of different made-up losses
_MOST_SAMPLES = 10**12


@dataclass(frozen=True)
class Spread:
    """How much losses vary from sample to sample.

    Attributes:
        ratio: whether scores are shares of one.
        deviation: standard deviation of the loss of one sample, with what clusters add to it; 0 where it is not known.
        batch: samples of a batch, for metrics that are no means over samples; else None.
    """

    ratio: bool
    deviation: float = 0.0
    batch: int | None = None

    def smallest_loss(self, samples: float, clusters: float | None = None, tries: int = 1) -> float:
        """The least loss that can be told from none, in the metric's unit: the bound of a loss of 0 that varies so.

        It is the bound by which verdicts are given, of 95 %, on made-up losses; infinite for too few samples. Where the
        deviation is not known it is that of samples of which none changes.

        Args:
            samples: how many there are.
            clusters: how many clusters they are in; None where samples are independent.
            tries: how many candidates were looked at.
        """
        count = max(1.0, samples / (self.batch or 1) if clusters is None else clusters)
        kinds = min(_KINDS, round(count))
        deviation = self.deviation * math.sqrt(count / samples)
        size = max(1.0, samples / count)
        sums, counts = deviation * size * _normal_scores(kinds), np.full(kinds, count / kinds)
        if self.ratio and size == 1:  # of such samples each is won, lost or neither
            changed = min(1.0, deviation**2) * count / 2
            sums, counts = np.array([-1.0, 0.0, 1.0]), np.array([changed, count - 2 * changed, changed])
        most = 1.0 if self.ratio else None
        units = LossUnits(sums, np.full(len(sums), size), counts, most, gathered=self.batch is not None)
        return units.upper(bound_level(tries))

    def needed_samples(self, loss: float, samples: int, clusters: int | None = None, tries: int = 1) -> int | None:
        """How many samples tell this loss from none, to two digits; None if no number of them does.

        Args:
            loss: above 0.
            samples, clusters: those that there are, for the size of clusters.
            tries: as of `smallest_loss`.
        """
        each = None if clusters is None else clusters / samples
        low, high = 1, max(2, samples)
        while self.smallest_loss(high, None if each is None else high * each, tries) > loss:
            low, high = high, 2 * high
            if high > _MOST_SAMPLES:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            enough = self.smallest_loss(middle, None if each is None else middle * each, tries) <= loss
            low, high = (low, middle) if enough else (middle, high)
        digits: int = 10 ** max(0, len(str(high)) - 2)
        return math.ceil(high / digits) * digits


def deviation_of(low: float, high: float, samples: int, clusters: int | None, batch: int | None = None) -> float:
    """The standard deviation of the loss of one sample, from a 95 % interval of a mean.

    Args:
        samples, clusters: that the interval comes from.
        batch: samples of a batch, where batches are what varied.
    """
    units = clusters if clusters is not None else None if batch is None else samples // batch
    point = Z95 if units is None else student_point(Z95, max(1, units - 1))
    return (high - low) / 2 / point * math.sqrt(samples)


def _normal_scores(count: int) -> NDArray[np.float64]:
    """So many values as a normal distribution would give, evenly spread, of deviation 1."""
    from scipy.special import ndtri

    scores: NDArray[np.float64] = ndtri((np.arange(count) + 0.5) / count)
    return scores / scores.std() if count > 1 else scores
