"""The smallest drop of a share such as top-1 that a number of samples would show."""

from __future__ import annotations

import math

import numpy as np

from evaluators.measure.mean_bounds import LossUnits, reverse_units

_HALVINGS = 18
_POWER_Z = 1.4757910281791706  # a drop is called detectable where even its 7 % quantile would be found


def count_units(lost: int, won: int, samples: int) -> LossUnits:
    """The units of samples that are right or wrong.

    Args:
        lost: those that are right with the baseline and wrong with the candidate; `won` the other way round.
    """
    counts = np.array([lost, won, samples - lost - won], dtype=np.float64)
    return LossUnits(np.array([1.0, -1.0, 0.0]), np.ones(3), counts, 1.0)


def above_p_value(units: LossUnits, limit: float) -> float:
    """The p-value of the hypothesis that the true drop is at most `limit`; McNemar's exact test where that is 0."""
    return reverse_units(units).chance_below(-limit)


def detectable_drop(won: int, samples: int, limit: float, level: float) -> float | None:
    """The smallest true drop that is found to exceed `limit` in nine of ten such samples; None if none is.

    Args:
        won: samples that the candidate won. As many, by a bound that holds in nine of ten cases, are taken to change
            either way without any loss of accuracy.
    """
    background = count_units(won, 0, samples).upper(0.1)

    def is_found(drop: float) -> bool:
        changing = min(1.0, 2 * background + drop)
        spread = math.sqrt(samples * max(changing - drop**2, 0.0))
        difference = math.floor(samples * drop - _POWER_Z * spread)
        changed = max(min(samples, math.ceil(samples * changing)), abs(difference))
        seen_lost = (changed + difference) // 2
        return above_p_value(count_units(seen_lost, seen_lost - difference, samples), limit) <= level

    low, high = max(limit, 0.0), 1 - background
    if high <= low or not is_found(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high
