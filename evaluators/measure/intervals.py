"""Confidence intervals of a loss, from the paired differences between a candidate and FP32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

Z95 = 1.959963984540054  # two-sided 95 % point of the normal distribution
RESAMPLES = 1000


def paired_interval(
    differences: Floats, *, ratio: bool, z: float = Z95, clusters: Codes | None = None
) -> tuple[float, float]:
    """Interval of the mean of paired per-sample differences: mean ± z·s/√n.

    For ratio metrics the spread is that of Agresti and Min (Statistics in Medicine 24, 2005, 729-740): half a
    discordant pair is added each way and one pair that agrees. Where no pair differs, s is 0, yet the true loss is
    not known to be 0: it may well be one sample in n. The half width is then 2/n, not 0. Where scores are shares
    themselves, as of the right tokens of a text, what is added is as large as the largest difference that was seen.

    With clusters the spread is that of clusters, see `_clustered_half`.

    Args:
        differences: (n,) float64 loss of each sample, n ≥ 2, in any order.
        ratio: whether scores are shares of one.
        z: 1.96 for 95 %, 2.58 for 99 %.
        clusters: (n,) integer code of the cluster of each sample, at least two different ones; None where samples
            are independent.

    Returns:
        Low and high end; the mean lies in the middle.

    Raises:
        ValueError: fewer than two samples or clusters.
    """
    n, mean = len(differences), float(np.mean(differences))
    if n < 2:
        raise ValueError(f"an interval needs at least two samples, got {n}")
    if clusters is not None:
        half = _clustered_half(differences, clusters, ratio, z)
    elif ratio:
        square = float(np.square(differences).sum())
        variance = (square + _unit(differences) ** 2 - (n * mean) ** 2 / (n + 2)) / (n + 2)
        half = z * math.sqrt(variance / (n + 2))
    else:
        half = z * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def _unit(differences: Floats) -> float:
    """What one discordant pair differs by: the largest difference that was seen; 1 where none was, or one beyond 1."""
    largest = float(np.abs(differences).max(initial=0.0))
    return largest if 0.0 < largest < 1.0 else 1.0


def bootstrap_interval(
    differences: Floats, counts: Floats, centre: float, clusters: Codes | None = None
) -> tuple[float, float]:
    """95 % interval of a loss, by resampling the paired differences of whole batches (Efron's percentiles).

    The loss of a whole split (`centre`) is not the mean over batches where the metric is no mean, mIoU say, so the
    spread is taken from the batches and laid around the loss.

    The interval is widened by √(k/(k-1)) and by Student's t over the normal point, as percentiles of few units are too
    narrow (Hesterberg, The American Statistician 69, 2015, 371-386): those of two batches cover the truth half of the
    time. With clusters, whole blocks of batches are resampled, and k is the number of blocks.

    Args:
        differences: (k,) float64 loss of each batch, k ≥ 2.
        counts: (k,) samples of each batch, their weights.
        centre: the loss over everything.
        clusters: (k,) integer code of the block of each batch, at least two different ones: batches of two blocks
            share no cluster. None where samples are independent.
    """
    totals, weights = differences * counts, counts
    if clusters is not None:
        codes = _recode(clusters)
        totals, weights = _sum_by(codes, totals), _sum_by(codes, weights)
    units = len(totals)
    widening = math.sqrt(units / (units - 1)) * student_point(Z95, units - 1) / Z95
    picks = np.random.default_rng(0).integers(units, size=(RESAMPLES, units))
    means = totals[picks].sum(axis=1) / weights[picks].sum(axis=1)
    low, high = np.quantile(means - np.average(differences, weights=counts), [0.025, 0.975])
    return centre + widening * min(0.0, float(low)), centre + widening * max(0.0, float(high))


def signed_rank_interval(differences: Floats) -> tuple[float, float, float]:
    """Hodges and Lehmann's estimate of the centre of paired differences, between the ends of Wilcoxon's interval.

    A few wild differences, of samples that are garbage, move neither the estimate nor the interval far.

    Args:
        differences: (n,) float64, finite.

    Returns:
        Low end, centre, high end: medians and order statistics of the means of all pairs. The ends are infinite where
        the samples are too few for them.

    Raises:
        ValueError: no difference at all.
    """
    n = len(differences)
    if n == 0:
        raise ValueError("an interval needs at least one difference, got none")
    rows, columns = np.triu_indices(n)
    means = np.sort((differences[rows] + differences[columns]) / 2)
    left_out = math.floor(len(means) / 2 - Z95 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    centre = float(np.median(means))
    if left_out < 1:
        return -math.inf, centre, math.inf
    return float(means[left_out - 1]), centre, float(means[-left_out])


def student_point(z: float, freedom: int) -> float:
    """The point of Student's t that leaves as much on either side as z does of the normal distribution."""
    from scipy.special import ndtr, stdtrit  # takes a while, and most intervals do without

    return float(stdtrit(freedom, ndtr(z)))


@dataclass(frozen=True)
class ClusterSums:
    """What clusters add up to.

    Attributes:
        sizes: (k,) samples of each.
        residuals: (k,) sum over each cluster of how far a difference is from the mean.
        square: sum of the squares of all samples' residuals.
        unit: what one discordant pair differs by.
    """

    sizes: Floats
    residuals: Floats
    square: float
    unit: float = 1.0

    @property
    def typical_size(self) -> float:
        """Size of the cluster that a sample drawn at random is in, on average."""
        return float(np.square(self.sizes).sum() / self.sizes.sum())

    @property
    def design_effect(self) -> float:
        """How much clusters inflate the variance of a mean: 1 for independent samples, at most about their size.

        One change that its whole cluster shares is added to what was seen. So where no sample changes, nothing is known
        of how alike those of a cluster are, and they count as entirely alike.
        """
        size, unit = self.typical_size, self.unit**2
        seen, alone = float(np.square(self.residuals).sum()), self.square
        return max(1.0, (seen + size * unit) / (alone + unit))


def cluster_sums(differences: Floats, clusters: Codes, centre: float | None = None) -> ClusterSums:
    """Add up residuals by cluster.

    Args:
        differences: (n,) float64.
        clusters: (n,) integer codes.
        centre: what residuals are taken from; None for the mean.
    """
    codes = _recode(clusters)
    residuals = differences - (float(np.mean(differences)) if centre is None else centre)
    sizes = _sum_by(codes, np.ones(len(codes)))
    return ClusterSums(sizes, _sum_by(codes, residuals), float(np.square(residuals).sum()), _unit(differences))


def _clustered_half(differences: Floats, clusters: Codes, ratio: bool, z: float) -> float:
    """Half the width of the interval of a mean where samples of a cluster may be alike.

    The mean is a ratio of two sums over clusters, changes and samples, so clusters may differ in size. Its variance is
    that of the jackknife that leaves out one cluster at a time, and the quantile is Student's t with one degree of
    freedom less than there are clusters (MacKinnon, Nielsen and Webb, Journal of Econometrics 232, 2023, 272-299, their
    CV3). For clusters of one size that is the cluster-robust variance of Liang and Zeger.

    For ratio metrics the pairs of Agresti and Min are added to the effective number of samples, n over the design
    effect, as Korn and Graubard do with other intervals of shares (Survey Methodology 24, 1998, 193-201): each stands
    for as many samples as the design effect says. With clusters of one sample that is the interval without clusters,
    but for the quantile.
    """
    sums, n = cluster_sums(differences, clusters), float(len(differences))
    k = len(sums.sizes)
    if k < 2:
        raise ValueError(f"an interval needs at least two clusters, got {k}")
    added = 0.0
    if ratio:
        effect = sums.design_effect
        n += 2 * effect
        mean = float(np.sum(differences)) / n
        sums = cluster_sums(differences, clusters, mean)
        added = effect**2 * (_unit(differences) ** 2 + 2 * mean**2) / n**2
    variance = (k - 1) / k * float(np.square(sums.residuals / (n - sums.sizes)).sum()) + added
    return student_point(z, k - 1) * math.sqrt(variance)


def _sum_by(codes: Codes, values: Floats) -> Floats:
    return np.bincount(codes, weights=values).astype(np.float64)


def _recode(clusters: Codes) -> Codes:
    """Codes from 0 on without gaps."""
    return np.unique(clusters, return_inverse=True)[1]
