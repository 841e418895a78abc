"""One-sided bounds of a loss, by which limits are judged in the search, on the final split and in a gate.

The bound is that of Gaffke (Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
variable, Mathematical Methods of Statistics 14, 2005, 451-467). One sample that loses the most possible is added to
those that were seen, all of them get weights from a flat Dirichlet distribution, and the bound is a quantile of the
weighted mean. It asks nothing of the distribution but how much one sample can lose.

For samples that are right or wrong it equals exact tests: the bound of Clopper and Pearson where no sample is won back,
and McNemar's exact test where the limit is 0. `benchmarks/trust/false_kept.py` simulates how often it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

# Of scores of which nobody knows how much one sample can lose, as of signal-to-noise ratios, fewer samples give no
# bound: a loss that one sample in a hundred carries is not seen by 300 of them in 5 % of cases, by 100 in 37 %.
LEAST_SAMPLES = 300
LEAST_CLUSTERS = 10  # the same of clusters and batches, whose means vary less wildly than samples
_NODES = np.linspace(0.0, 4.5, 31)  # of the integral below: errors stay under 10⁻⁷
_CHUNK = 2**16  # units that are integrated at a time
_STEPS = 40
_EXACT = 1e-9  # of the quantile of the normal distribution, and of the place of the saddle: nearer is equal


@dataclass(frozen=True)
class LossUnits:
    """Losses of independent units: samples, clusters of samples, or batches. Units that are alike are counted.

    Attributes:
        sums: (k,) what the samples of a unit lose together.
        sizes: (k,) samples of a unit.
        counts: (k,) how many units are like this one.
        most: the most that one sample can lose; None if that is not known.
        gathered: whether the units are batches of a metric that is no mean over samples.
    """

    sums: Floats
    sizes: Floats
    counts: Floats
    most: float | None
    gathered: bool = False

    @property
    def units(self) -> int:
        """How many independent units there are."""
        return round(float(self.counts.sum()))

    @property
    def least(self) -> int:
        """How many of them a bound needs."""
        if self.most is not None and not self.gathered:
            return 1
        return LEAST_CLUSTERS if self.gathered or (self.sizes > 1).any() else LEAST_SAMPLES

    @property
    def is_enough(self) -> bool:
        """Whether there are enough of them for a bound."""
        return self.units >= self.least

    @cached_property
    def mean(self) -> float:
        """The loss."""
        return float((self.sums * self.counts).sum() / (self.sizes * self.counts).sum())

    def chance_below(self, limit: float) -> float:
        """The chance of losses as small as these, or smaller, where the true loss is `limit`: the p-value of a test.

        Of fewer units than `least` it is a guess, which decides no verdict.
        """
        sums, sizes, counts = self._with_added()
        return _chance_positive(sums - limit * sizes, counts)

    def upper(self, level: float) -> float:
        """What the true loss is not above, with an error probability of `level`; infinite for too few units."""
        return self.uppers([level])[0]

    def uppers(self, levels: Sequence[float]) -> list[float]:
        """`upper` for several levels, which falls as they rise."""
        from scipy.special import ndtri

        if not self.is_enough:
            return [math.inf] * len(levels)
        sums, sizes, _ = self._with_added()
        worst = float((sums / sizes).max())
        return [self._solve(float(ndtri(1 - level)), worst) for level in levels]

    def _solve(self, point: float, worst: float) -> float:
        """The limit where the quantile of the chance is `point`: by secants, between ends that enclose it."""
        from scipy.special import ndtri

        low, high = self.mean, worst
        before, limit = (low, 0.0), min(worst, low + point * self._error)
        for _ in range(_STEPS):
            if not low < limit < high:
                limit = (low + high) / 2
            if not low < limit < high:
                break
            quantile = float(-ndtri(max(self.chance_below(limit), 1e-300)))
            if abs(quantile - point) < _EXACT:
                return limit
            low, high = (limit, high) if quantile < point else (low, limit)
            slope = (quantile - before[1]) / (limit - before[0])
            before, limit = (limit, quantile), limit + (point - quantile) / slope if slope > 0 else low
        return high

    @property
    def _error(self) -> float:
        """Standard error of the mean, about."""
        n = float((self.sizes * self.counts).sum())
        square = float((self.counts * np.square(self.sums - self.mean * self.sizes)).sum())
        return math.sqrt(square + self.sizes.max() ** 2 * 1e-6) / n

    def _with_added(self) -> tuple[Floats, Floats, Floats]:
        """Sums, sizes and counts with the unit that is added: the largest, of samples that lose the most possible.

        Where that is not known it loses more than the worst unit by as much as that does than all. Of batches the same
        is added, and one sample that loses the most possible: many batches that all lose nothing leave open that some
        sample does.
        """
        values, size = self.sums / self.sizes, float(self.sizes.max())
        worst = float(values.max())
        beyond = 2 * worst - self.mean
        if self.most is None:
            added = [(beyond, size)]
        elif self.gathered:
            added = [(min(beyond, self.most), size), (self.most, 1.0)]
        else:
            added = [(max(self.most, worst), size)]
        more, sizes = (np.array(column) for column in zip(*added, strict=True))
        return (
            np.concatenate([self.sums, more * sizes]),
            np.concatenate([self.sizes, sizes]),
            np.concatenate([self.counts, np.ones(len(added))]),
        )


def sample_losses(losses: Floats, most: float | None, clusters: Codes | None = None) -> LossUnits:
    """The units of losses of samples.

    Args:
        losses: (n,) float64, in any order.
        most: the most that one sample can lose; None if that is not known.
        clusters: (n,) the same integer for samples that belong together; None where samples are independent.
    """
    if clusters is None:
        values, counts = np.unique(losses, return_counts=True)
        return LossUnits(values, np.ones(len(values)), counts.astype(np.float64), most)
    _, codes = np.unique(clusters, return_inverse=True)
    units = np.stack([_sum_by(codes, losses), _sum_by(codes, np.ones(len(codes)))])
    alike, counts = np.unique(units, axis=1, return_counts=True)
    return LossUnits(alike[0], alike[1], counts.astype(np.float64), most)


def batch_losses(
    losses: Floats, counts: Floats, loss: float, most: float | None, clusters: Codes | None = None
) -> LossUnits:
    """The units of losses of batches, of a metric that is no mean over samples.

    Args:
        losses: (k,) float64, the loss of each batch alone.
        counts: (k,) samples of each batch.
        loss: over all samples, about which the batches are taken to vary.
        most: the most that the metric can lose; None if that is not known.
        clusters: (k,) the same integer for batches of one block; None where they are independent.
    """
    codes = np.arange(len(losses)) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    weights = np.asarray(counts, dtype=np.float64)
    shifted = losses - np.average(losses, weights=weights) + loss
    sums, sizes = _sum_by(codes, shifted * weights), _sum_by(codes, weights)
    return LossUnits(sums, sizes, np.ones(len(sums)), most, gathered=True)


def _sum_by(codes: Codes, values: Floats) -> Floats:
    return np.bincount(codes, weights=values).astype(np.float64)


def reverse_units(units: LossUnits) -> LossUnits:
    """Turn losses of units into gains: their upper bound is the lower one with its sign turned.

    One sample can win as much as it can lose.
    """
    return replace(units, sums=-units.sums)


def _chance_positive(values: Floats, counts: Floats) -> float:
    """P(Σ values · X > 0) where each X is a sum of so many independent exponential variables.

    A mean with Dirichlet weights is above a limit where such a sum of what exceeds the limit is positive. The
    probability is an integral of the moment generating function e^K over s, along a path through the saddle point of
    e^K / s that follows its steepest descent (Rice, SIAM Journal on Scientific and Statistical Computing 1, 1980,
    438-448); it is exact but for rounding.
    """
    top = float(values.max())
    if top <= 0:
        return 0.0
    if float(values.min()) >= 0:
        return 1.0
    a = values / top
    s = _saddle(a, counts)
    each = a / (1 - s * a)
    second = float((counts * each**2).sum()) + 1 / s**2
    third = 2 * float((counts * each**3).sum()) - 2 / s**3
    width, bend = 1 / math.sqrt(second), third / (3 * second**1.5)
    path = s + width * (1j * np.sinh(_NODES) + bend * (np.cosh(_NODES) - 1))
    slope = width * (1j * np.cosh(_NODES) + bend * np.sinh(_NODES))
    logarithm = -np.log(path)
    for first in range(0, len(a), _CHUNK):
        part = slice(first, first + _CHUNK)
        logarithm -= np.log1p(-np.multiply.outer(path, a[part])) @ counts[part]
    heights = (slope * np.exp(logarithm)).imag
    heights[0] /= 2
    return min(1.0, max(0.0, float(heights.sum() * (_NODES[1] - _NODES[0]) / math.pi)))


def _saddle(a: Floats, counts: Floats) -> float:
    """The s between 0 and 1 where e^K / s is least, for `a` of at most 1: by Newton's steps, between enclosing ends.

    The derivative of K - log s rises from minus to plus infinity. Times s (1 - s) it is nearly a straight line.
    """
    low, high, s = 0.0, 1.0, 0.5
    for _ in range(_STEPS):
        each = a / (1 - s * a)
        weighted = counts * each
        rise, bend = float(weighted.sum()) - 1 / s, float(weighted @ each) + 1 / s**2
        low, high = (low, s) if rise > 0 else (s, high)
        slope = (1 - 2 * s) * rise + s * (1 - s) * bend
        following = s - s * (1 - s) * rise / slope if slope > 0 else low
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - s) < _EXACT * s * (1 - s):
            break
        s = following
    return s
