"""Exact tests of a drop of a share such as top-1, from the samples that two engines score differently.

*Lost* samples are right with the baseline and wrong with the candidate, *won* samples the other way round. The drop is
the share of lost samples less that of won ones. Every test holds its level for any number of samples.

Whether there is a drop at all is McNemar's exact test: where there is none, a sample that changes is lost or won with
equal probability. For a drop of another size the share of samples that change matters too. It is not known, so the
p-value is the largest over all shares up to an upper confidence bound of it, to which the small error probability of
that bound is added (Berger and Boos, Journal of the American Statistical Association 89, 1994, 1012-1016).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BOUND_SHARE = 0.05  # of the level, which goes to the bound of the share that changes
_GRID = 9  # shares that are tried up to that bound; the p-value is nearly always largest at its end
_DEVIATIONS = 7.0  # of the number of samples that change, beyond which its probability is below 10⁻¹¹
_HALVINGS = 18
_POWER_Z = 1.4757910281791706  # a drop is called detectable where even its 7 % quantile would be found


def drop_p_value(lost: int, won: int, samples: int, limit: float, level: float) -> float:
    """The p-value of the hypothesis that the true drop is at most `limit`.

    Args:
        lost, won: samples that change, of `samples`.
        limit: from -1 to 1.
        level: of the test; decides how much of it goes to the bound of the share that changes.
    """
    if limit == 0:
        return _at_least(lost, lost + won, 0.5)
    spent = _BOUND_SHARE * level
    highest = _upper_share(lost + won, samples, spent)
    if highest < -limit:
        return spent  # so few samples change that the drop cannot be as far below zero
    lowest = min(abs(limit), highest)
    shares = np.linspace(max(lowest, 1e-12), max(highest, 1e-12), _GRID)
    return min(1.0, spent + float(_difference_tail(lost - won, samples, shares, limit).max()))


def is_above(lost: int, won: int, samples: int, limit: float, level: float) -> bool:
    """Whether the true drop is above `limit`, by a test of this level.

    A drop above zero is above any limit below zero too, and for limits near zero McNemar's test is the stronger one. So
    either test may say so. That both together still keep the level was computed: over all tables of 30, 60 and 150
    samples and limits from 0.1 to 8 %, with a level of 1 %, at most 0.64 % are rejected wrongly.
    """
    if drop_p_value(lost, won, samples, limit, level) <= level:
        return True
    return limit < 0 and drop_p_value(lost, won, samples, 0.0, level) <= level


def drop_bounds(lost: int, won: int, samples: int, level: float) -> tuple[float, float]:
    """One-sided bounds of the true drop, each of this level.

    The lower one is the largest limit that `drop_p_value` rejects, to a hundred-thousandth of the width; the upper one
    likewise with lost and won exchanged. Zero is rejected by McNemar's test, so a bound beyond zero agrees with it.
    """
    low = _lower_bound(lost, won, samples, level)
    return low, 0.0 - _lower_bound(won, lost, samples, level)


def detectable_drop(won: int, samples: int, limit: float, level: float) -> float | None:
    """The smallest true drop that is found to exceed `limit` in nine of ten such samples; None if none is.

    Args:
        won: samples that the candidate won. As many, by a bound that holds in nine of ten cases, are taken to change
            either way without any loss of accuracy.
    """
    background = _upper_share(won, samples, 0.1)

    def is_found(drop: float) -> bool:
        changing = min(1.0, 2 * background + drop)
        spread = math.sqrt(samples * max(changing - drop**2, 0.0))
        difference = math.floor(samples * drop - _POWER_Z * spread)
        changed = max(min(samples, math.ceil(samples * changing)), abs(difference))
        seen_lost = (changed + difference) // 2
        return drop_p_value(seen_lost, seen_lost - difference, samples, limit, level) <= level

    low, high = max(limit, 0.0), 1 - background
    if high <= low or not is_found(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def _lower_bound(lost: int, won: int, samples: int, level: float) -> float:
    """The largest limit that is rejected. McNemar's test decides on which side of zero it is."""
    difference, changed = (lost - won) / samples, (lost + won + 2) / samples
    reach = 10 * math.sqrt(changed / samples) + 30 / samples
    low, high = max(-1.0, difference - reach), difference

    def rejects(limit: float) -> bool:
        return drop_p_value(lost, won, samples, limit, level) <= level

    if not rejects(low):
        low = -1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejects(middle or 1e-12) else (low, middle)
    return max(low, 0.0) if rejects(0.0) else min(low, 0.0)


def _difference_tail(difference: int, samples: int, shares: Floats, drop: float) -> Floats:
    """P(lost - won ≥ difference) for each share of changing samples, where the drop is as given, or all of the share.

    Args:
        shares: (k,) shares of samples that change.
    """
    from scipy.special import gammaln, xlog1py, xlogy

    middle, spread = samples * shares, np.sqrt(samples * shares * (1 - shares))
    first = max(0, math.floor(float((middle - _DEVIATIONS * spread).min()) - 10))
    last = min(samples, math.ceil(float((middle + _DEVIATIONS * spread).max()) + 30))
    changed = np.arange(first, last + 1, dtype=np.float64)
    share = shares[:, None]
    log_ways = gammaln(samples + 1) - gammaln(changed + 1) - gammaln(samples - changed + 1)
    weights = np.exp(log_ways + xlogy(changed, share) + xlog1py(samples - changed, -share))
    lost_share = np.clip((1 + drop / share) / 2, 0.0, 1.0)
    least = np.ceil((changed + difference) / 2)
    return np.asarray((weights * _at_least_each(least, changed, lost_share)).sum(axis=1), dtype=np.float64)


def _at_least_each(least: Floats, trials: Floats, share: Floats) -> Floats:
    """P(Bin(trials, share) ≥ least), element by element."""
    from scipy.special import betainc

    inside = (least > 0) & (least <= trials)
    safe_least, safe_rest = np.where(inside, least, 1.0), np.where(inside, trials - least + 1, 1.0)
    return np.asarray(np.where(inside, betainc(safe_least, safe_rest, share), np.where(least <= 0, 1.0, 0.0)))


def _at_least(least: int, trials: int, share: float) -> float:
    numbers = (np.array([float(least)]), np.array([float(trials)]), np.array([share]))
    return float(_at_least_each(*numbers)[0])


def _upper_share(hits: int, samples: int, level: float) -> float:
    """Clopper's and Pearson's upper bound of a share."""
    from scipy.special import betaincinv

    return 1.0 if hits >= samples else float(betaincinv(hits + 1, samples - hits, 1 - level))
