"""How accurate forecasts were, and whether they are too inaccurate to search by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NINETY = 1.645  # standard deviations either side that hold 90 % of a Gaussian
_ENOUGH = 8  # rows; the ranks of fewer say little
# See `is_poor`. Of 8 measurements 90 % intervals hold fewer than 60 % once in 200 times by chance.
_POOR_ERROR, _POOR_COVERAGE, _POOR_RANKS, _RESOLVED = 0.10, 0.6, 0.5, 2.0


@dataclass(frozen=True)
class Quality:
    """Measures of the agreement between forecasts and measurements.

    Attributes:
        rank_correlation: Spearman's; NaN for fewer than three rows, or if one side has only equal values.
        error: the median of |predicted - measured| divided by the scale.
        coverage: share of measurements inside their 90 % intervals.
        resolution: the standard deviation of the measurements divided by the typical predicted standard deviation.
            Below 2 the rows are too similar for ranks to say much.
        n: the number of rows.
    """

    rank_correlation: float
    error: float
    coverage: float
    resolution: float
    n: int


def quality(mean: Floats, std: Floats, measured: Floats, scale: float | None = None) -> Quality:
    """Compare (n,) predictions and their standard deviations with (n,) measurements; all NaN if n is 0.

    Args:
        scale: what errors are divided by, for example the worst loss of the baselines; None for each measurement.
    """
    if not len(measured):
        return Quality(float("nan"), float("nan"), float("nan"), float("nan"), 0)
    missed = np.abs(mean - measured)
    against = np.maximum(np.abs(measured) if scale is None else scale, 1e-300)
    typical = float(np.median(std))
    return Quality(
        rank_correlation=rank_correlation(mean, measured),
        error=float(np.median(missed / against)),
        coverage=float(np.mean(missed <= NINETY * std)),
        resolution=float(np.std(measured) / typical) if typical > 0 else float("inf"),
        n=len(measured),
    )


def is_poor(forecast_quality: Quality | None, band: float = 0.0) -> bool:
    """Whether a search should not rely on such forecasts.

    With 8 rows or more, forecasts are poor if the median error is above 10 % and above `band`, if fewer than 60 % of
    the measurements are inside the 90 % interval, or if the rank correlation is below 0.5 on rows that differ by more
    than twice the predicted standard deviation. Without forecasts the answer is no.

    Args:
        band: the difference up to which two measurements count as equal, divided by the same scale as the error.
    """
    if forecast_quality is None or forecast_quality.n < _ENOUGH:
        return False
    unranked = forecast_quality.resolution > _RESOLVED and not forecast_quality.rank_correlation >= _POOR_RANKS
    return bool(
        forecast_quality.error > max(_POOR_ERROR, band) or forecast_quality.coverage < _POOR_COVERAGE or unranked
    )


def rank_correlation(one: Floats, two: Floats) -> float:
    """Spearman's rank correlation of (n,) and (n,); NaN for n below 3, or if one has only equal values."""
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(two) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(one), _ranks(two))[0, 1])


def _ranks(values: Floats) -> Floats:
    """(n,) ranks; equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])
