"""The smallest loss that a number of samples can show, and the number of samples that a loss needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evaluators.measure.intervals import Z95, student_point

Z_ONE_SIDED = 1.6448536269514722  # leaves 5 % of the normal distribution above it
_CHANCE = 0.05
_MOST_SAMPLES = 10**12


@dataclass(frozen=True)
class Spread:
    """How much losses vary from sample to sample.

    Attributes:
        shares: whether scores are shares of one, of which every sample gives 0 or 1.
        deviation: standard deviation of the loss of one sample, with what clusters add to it; for shares not used.
    """

    shares: bool
    deviation: float = 0.0

    def smallest_loss(self, samples: float, clusters: float | None = None) -> float:
        """The least loss that can be told from none, in the metric's unit.

        For shares that is the upper bound, one-sided and of 95 %, where no answer changes. Each cluster counts as one
        sample then, since nothing is known of how alike its samples are. Of other scores it is the bound of a loss of
        0 that varies like this.

        Args:
            samples: how many there are.
            clusters: how many clusters they are in; None where samples are independent.
        """
        if self.shares:
            return 1 - float(_CHANCE ** (1 / max(1.0, samples if clusters is None else clusters)))
        point = Z_ONE_SIDED if clusters is None else student_point(Z_ONE_SIDED, max(1, int(clusters) - 1))
        return point * self.deviation / math.sqrt(samples)

    def needed_samples(self, loss: float, samples: int, clusters: int | None = None) -> int | None:
        """How many samples tell this loss from none, to two digits; None if no number of them does.

        Args:
            loss: above 0.
            samples, clusters: those that there are, for the size of clusters.
        """
        each = None if clusters is None else clusters / samples
        low, high = 1, samples
        while self.smallest_loss(high, None if each is None else high * each) > loss:
            low, high = high, 2 * high
            if high > _MOST_SAMPLES:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            enough = self.smallest_loss(middle, None if each is None else middle * each) <= loss
            low, high = (low, middle) if enough else (middle, high)
        digits: int = 10 ** max(0, len(str(high)) - 2)
        return math.ceil(high / digits) * digits


def spread_of_interval(low: float, high: float, samples: int, clusters: int | None) -> Spread:
    """The spread of a loss that is no share, from a 95 % interval of it.

    Args:
        samples, clusters: that the interval comes from.
    """
    point = Z95 if clusters is None else student_point(Z95, max(1, clusters - 1))
    return Spread(shares=False, deviation=(high - low) / 2 / point * math.sqrt(samples))
