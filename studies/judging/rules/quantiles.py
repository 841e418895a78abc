"""Quantiles of the normal distribution, for bounds of measured losses."""

from __future__ import annotations

from statistics import NormalDist

from search.values import bound_level


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
