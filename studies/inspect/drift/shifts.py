"""Testing whether fresh samples differ from calibration samples beyond chance, from their statistics alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.calibration.sample_statistics import BINS, STATISTICS, SampleStatistics

Floats = NDArray[np.float64]

LEVEL = 0.001  # chance of any false alarm at all, over every tensor and statistic
_FACTOR = 2.17  # of the bound of Wei and Dudley
_LARGEST_MISSED = 0.5  # a comparison that can miss a distance as large as this says nothing
_Z95 = 1.959963984540054
LEAST_UNITS = 20  # samples, clusters or batches by which losses are compared


class DriftVerdict(str, Enum):
    """What a comparison says of fresh data."""

    DRIFT = "drift"
    NO_DRIFT = "no drift"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Shift:
    """One statistic of one tensor, on calibration samples and on fresh ones.

    Attributes:
        statistic: one of STATISTICS.
        before, now: its median over the samples: of `low`, `high` and `mean` in the tensor's unit, of `clipped` a
            share.
        distance: of the two distributions, 0 to 1: the largest difference of their cumulative shares (Kolmogorov and
            Smirnov).
        p: bound of the chance of such a distance where nothing has changed.
        moved: how far values moved on average, in widths of the calibrated range (Wasserstein distance of the tensor's
            histograms; what lies beyond one width outside the range counts as lying there).
        drifted: whether it differs beyond chance.
    """

    tensor: str
    statistic: str
    before: float
    now: float
    distance: float
    p: float
    moved: float
    drifted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values; None for what is not finite."""
        return {name: _finite_or_none(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class LossShift:
    """The loss of a mix against FP32, on the study's final split and on fresh samples, with 95 % intervals.

    Attributes:
        trial: that was scored.
        p: chance of as much more loss where nothing has changed.
        value: of the metric on the fresh samples; `fp32_value` that of FP32.
        failure: why it could not be scored on them, say because its outputs are not finite; empty if it was.
        drifted: whether it loses more than it did, beyond chance.
    """

    trial: int
    before: tuple[float, float, float]
    now: tuple[float, float, float]
    p: float
    value: float
    fp32_value: float
    samples: int
    failure: str = ""
    drifted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values; losses as `loss`, `low`, `high`; None for what is not finite."""
        plain = {name: _finite_or_none(value) for name, value in vars(self).items()}
        for name in ("before", "now"):
            values = map(_finite_or_none, plain[name])
            plain[name] = dict(zip(("loss", "low", "high"), values, strict=True))
        return plain


@dataclass(frozen=True)
class Judged:
    """What all comparisons together say.

    Attributes:
        shifts: every statistic of every tensor, the least likely by chance first.
        loss: None if it was not compared.
        smallest: the least distance that is told from chance with so many samples and comparisons.
    """

    verdict: DriftVerdict
    shifts: tuple[Shift, ...]
    loss: LossShift | None
    smallest: float


def judge_drift(before: SampleStatistics, now: SampleStatistics, loss: LossShift | None = None) -> Judged:
    """Compare every statistic of every tensor, and the loss, with one level for all of them.

    The level is divided by Holm's method: of m comparisons the least likely has to stay below level / m, the next below
    level / (m - 1), and so on until one does not. The chance that there is any alarm where nothing has changed is the
    level at most, however the tensors depend on each other.

    Args:
        before: of calibration samples; now: of fresh ones, with the same ranges.
    """
    shifts = compare_statistics(before, now)
    alarms = reject_by_holm([*(shift.p for shift in shifts), *([] if loss is None else [loss.p])], LEVEL)
    judged = [replace(shift, drifted=alarm) for shift, alarm in zip(shifts, alarms, strict=False)]
    judged.sort(key=lambda shift: (not shift.drifted, shift.p))
    loss = None if loss is None else replace(loss, drifted=alarms[-1])
    comparisons = len(alarms)
    smallest = math.sqrt(
        math.log(_FACTOR * max(1, comparisons) / LEVEL)
        * (before.samples + now.samples)
        / (2 * before.samples * now.samples)
    )
    verdict = DriftVerdict.NO_DRIFT if smallest <= _LARGEST_MISSED else DriftVerdict.NOT_JUDGED
    return Judged(DriftVerdict.DRIFT if any(alarms) else verdict, tuple(judged), loss, smallest)


def compare_statistics(before: SampleStatistics, now: SampleStatistics) -> list[Shift]:
    """The shift of each statistic of each tensor that both have, in the order of the tensors."""
    places = {name: place for place, name in enumerate(now.tensors)}
    shifts = []
    for row, tensor in enumerate(before.tensors):
        if tensor not in places:
            continue
        other = places[tensor]
        moved = _histogram_distance(before.histograms[row], now.histograms[other])
        for column, statistic in enumerate(STATISTICS):
            one, two = (values.astype(np.float64) for values in (before.values[row, column], now.values[other, column]))
            distance = largest_difference(one, two)
            p = chance_of(distance, len(one), len(two))
            shifts.append(Shift(tensor, statistic, float(np.median(one)), float(np.median(two)), distance, p, moved))
    return shifts


def largest_difference(one: Floats, two: Floats) -> float:
    """Kolmogorov and Smirnov's statistic of two samples: the largest difference of their cumulative shares."""
    every = np.concatenate([one, two])
    shares = [np.searchsorted(np.sort(values), every, side="right") / len(values) for values in (one, two)]
    return float(np.abs(shares[0] - shares[1]).max())


def chance_of(distance: float, one: int, two: int) -> float:
    """Bound of the chance of such a distance between two samples of the same distribution, whatever that is.

    The inequality of Dvoretzky, Kiefer and Wolfowitz for two samples, with the factor of Wei and Dudley (Statistics and
    Probability Letters 82, 2012, 636-644), which also holds for few samples.
    """
    return min(1.0, _FACTOR * math.exp(-2 * distance**2 * one * two / (one + two)))


def reject_by_holm(chances: Sequence[float], level: float) -> list[bool]:
    """Which comparisons are beyond chance, all together at one level (S. Holm, Scand. J. Statistics 6, 1979, 65-70)."""
    rejected = [False] * len(chances)
    for rank, place in enumerate(np.argsort(np.asarray(chances), kind="stable")):
        if not chances[place] <= level / (len(chances) - rank):
            break
        rejected[place] = True
    return rejected


def compare_losses(before: tuple[float, float, float], now: tuple[float, float, float], units: int) -> float:
    """Chance of so much more loss on other samples where nothing has changed, by Student's t.

    Args:
        before, now: loss and 95 % interval on each.
        units: samples, clusters or batches that the shorter of both intervals comes from. Of fewer than 20 nothing is
            said: an interval of few samples is too uncertain itself for chances as small as these.
    """
    from scipy.special import stdtr

    if units < LEAST_UNITS:
        return 1.0
    errors = [(high - low) / (2 * _Z95) for _, low, high in (before, now)]
    error = math.hypot(*errors)
    if error == 0:
        return float(now[0] <= before[0])
    return float(stdtr(units - 1, (before[0] - now[0]) / error))


def _histogram_distance(one: NDArray[np.int64], two: NDArray[np.int64]) -> float:
    """In widths of the range."""
    shares = [np.cumsum(counts) / max(1, counts.sum()) for counts in (one, two)]
    return float(np.abs(shares[0] - shares[1]).sum()) / (BINS // 3)


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
