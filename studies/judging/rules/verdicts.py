"""Verdicts of the final split about the limits, and whether it agrees with the search."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search.values import BOUND_TRIES, bound_level
from studies.options.limits import LOSS, METRIC_VALUE, Limits


def quantile(tries: int = 1, *, two_sided: bool = False) -> float:
    """How many standard errors a 95 % bound lies from an estimate that was chosen among several.

    Šidák's correction: all bounds of `tries` independent estimates hold together with 95 %.

    Args:
        tries: how many estimates the one in question was chosen from; values below one count as one.
        two_sided: of an interval, not of one bound.
    """
    level = bound_level(tries)
    return NormalDist().inv_cdf(1 - level / 2 if two_sided else 1 - level)


STORED = quantile(two_sided=True)  # what the half width of a stored 95 % interval has of these


Floats = NDArray[np.float64]


class Verdict(Enum):
    """Whether an evaluation keeps all limits with its numbers of the final split."""

    SURELY = "kept"
    HOLDS = "likely"
    FAILS = "missed"
    UNCONFIRMED = "unseen"
    UNLIMITED = "no limits"

    @property
    def holds(self) -> bool | None:
        """None if nothing is known, or where there is nothing to hold."""
        return {Verdict.SURELY: True, Verdict.HOLDS: True, Verdict.FAILS: False}.get(self)


@dataclass(frozen=True)
class Disagreement:
    """Two independent estimates of one loss that differ by more than chance explains.

    Attributes:
        search, final: the estimates, in the metric's unit.
        pooled: both together, each weighted by its precision.
        half: half of the 95 % interval of that.
    """

    search: float
    final: float
    pooled: float
    half: float


def margins(
    loss: ArrayLike,
    loss_error: ArrayLike,
    value: ArrayLike,
    value_error: ArrayLike,
    limits: Limits,
    *,
    higher_is_better: bool,
) -> Floats:
    """Standard errors between each estimate and the nearest accuracy limit; negative beyond it.

    Args:
        loss_error, value_error: (n,) standard errors of loss and metric value.

    Returns:
        (n,) float64; infinite if no accuracy limit is set, NaN if a measure is missing.
    """
    estimates = {LOSS: (loss, loss_error), METRIC_VALUE: (value, value_error)}
    margin: Floats = np.full(np.shape(loss), np.inf)
    for limit, bound in limits.rows():
        if limit.column in estimates:
            estimate, error = estimates[limit.column]
            beyond = limit.sign(higher_is_better) * (np.asarray(estimate, float) - bound)
            margin = np.minimum(margin, _in_errors(-beyond, error))
    return margin


def _in_errors(distance: Floats, error: ArrayLike) -> Floats:
    """(n,) distances in standard errors; without an error, infinite on the side on which it lies, kept at zero."""
    errors = np.asarray(error, float)
    exact = np.where(distance >= 0, np.inf, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = distance / errors
    result: Floats = np.where(np.isnan(distance), np.nan, np.where(errors > 0, ratio, exact))
    return result


@dataclass(frozen=True)
class FinalBounds:
    """How large the loss of one evaluation may be, and how bad its metric, by its scores on the final split.

    Attributes:
        loss, value: for each of `BOUND_TRIES`; empty where there are too few samples for a bound.
    """

    loss: Sequence[float] = ()
    value: Sequence[float] = ()

    def at(self, tries: int) -> tuple[float, float]:
        """The bounds of loss and value that allow for so many candidates that were looked at; NaN where there is none.

        Where no bound allows for just so many, it is that of the next larger number.
        """
        place = bisect_left(BOUND_TRIES, tries)
        return _item(self.loss, place), _item(self.value, place)

    def margin(self, limits: Limits, *, higher_is_better: bool) -> float:
        """Standard errors between this and the nearest accuracy limit, as if it were of a normal distribution.

        It is `quantile(tries)` or more just where the bounds that allow for so many tries keep the limits.
        """
        bounds = {LOSS: self.loss, METRIC_VALUE: self.value}
        limited = [
            (limit.sign(higher_is_better), bounds[limit.column], bound)
            for limit, bound in limits.rows()
            if limit.column in bounds
        ]
        if not limited:
            return math.inf
        kept = [
            tries
            for place, tries in enumerate(BOUND_TRIES)
            if all(sign * (_item(by_tries, place) - bound) <= 0 for sign, by_tries, bound in limited)
        ]
        return quantile(kept[-1]) if kept else 0.0


def _item(bounds: Sequence[float], place: int) -> float:
    return bounds[place] if place < len(bounds) else math.nan


def search_error(loss: Floats, low: Floats, high: Floats, upper: Floats) -> Floats:
    """(n,) standard errors of losses of the search: by the 95 % interval, or by the upper bound where that is wider.

    Args:
        upper: the bounds; NaN where there are too few samples for one.
    """
    result: Floats = np.fmax(standard_error(low, high), (upper - loss) / quantile())
    return result


def standard_error(low: ArrayLike, high: ArrayLike) -> Floats:
    """(n,) standard errors of estimates whose 95 % intervals end there."""
    result: Floats = (np.asarray(high, float) - np.asarray(low, float)) / (2 * STORED)
    return result


def value_error(value: ArrayLike, loss_error: ArrayLike, samples: ArrayLike, *, relative: bool, ratio: bool) -> Floats:
    """(n,) standard errors of metric values.

    A metric relative to FP32 has a constant for FP32, so its value is as uncertain as its loss. A ratio of samples
    that are right or wrong has the error of a share, or that of the loss where that is wider; of any other metric only
    the difference to FP32 is known.
    """
    errors = np.asarray(loss_error, float)
    if relative or not ratio:
        return errors
    share = np.clip(np.asarray(value, float), 0.0, 1.0)
    result: Floats = np.maximum(errors, np.sqrt(share * (1 - share) / np.maximum(np.asarray(samples, float), 1.0)))
    return result


def find_disagreement(
    search: float, search_error: float, final: float, final_error: float, tries: int
) -> Disagreement | None:
    """The two estimates where they differ beyond their joint 95 % interval, else None.

    Args:
        tries: how many evaluations were compared so.
    """
    joint = math.hypot(search_error, final_error)
    if not joint > 0 or not abs(final - search) > quantile(tries, two_sided=True) * joint:
        return None
    precise = [min(1 / error**2, 1e300) if error > 0 else 1e300 for error in (search_error, final_error)]
    pooled = (search * precise[0] + final * precise[1]) / sum(precise)
    return Disagreement(search, final, pooled, STORED / math.sqrt(sum(precise)))
