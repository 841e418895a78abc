"""Confidence intervals of a loss, from the paired differences between a candidate and FP32."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Z95 = 1.959963984540054  # two-sided 95 % and 99 % points of the normal distribution
Z99 = 2.5758293035489004
RESAMPLES = 1000


def paired_interval(differences: Floats, *, ratio: bool, z: float = Z95) -> tuple[float, float]:
    """Interval of the mean of paired per-sample differences: mean ± z·s/√n.

    For ratio metrics the spread is that of Agresti and Min (Statistics in Medicine 24, 2005, 729-740): half a
    discordant pair is added each way and one pair that agrees. Where no pair differs, s is 0, yet the true loss is
    not known to be 0: it may well be one sample in n. The half width is then 2/n, not 0.

    Args:
        differences: (n,) float64 loss of each sample, n ≥ 2, in any order.
        ratio: whether scores are shares of one.
        z: 1.96 for 95 %, 2.58 for 99 %.

    Returns:
        Low and high end; the mean lies in the middle.
    """
    n, mean = len(differences), float(np.mean(differences))
    if n < 2:
        raise ValueError(f"an interval needs at least two samples, got {n}")
    if ratio:
        square = float(np.square(differences).sum())
        variance = (square + 1 - (n * mean) ** 2 / (n + 2)) / (n + 2)
        half = z * math.sqrt(variance / (n + 2))
    else:
        half = z * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def bootstrap_interval(differences: Floats, counts: Floats, centre: float, seed: int = 0) -> tuple[float, float]:
    """95 % interval of a loss from differences per batch, by resampling batches in pairs (Efron's percentiles).

    The loss of a whole split (`centre`) is not the mean over batches where the metric is no mean, mIoU say, so the
    spread is taken from the batches and laid around the loss.

    Args:
        differences: (k,) float64 loss of each batch, k ≥ 2.
        counts: (k,) samples of each batch, their weights.
        centre: the loss over everything.
        seed: of the 1000 resamples.
    """
    picks = np.random.default_rng(seed).integers(len(differences), size=(RESAMPLES, len(differences)))
    means = (differences * counts)[picks].sum(axis=1) / counts[picks].sum(axis=1)
    low, high = np.quantile(means - np.average(differences, weights=counts), [0.025, 0.975])
    return centre + min(0.0, float(low)), centre + max(0.0, float(high))
