"""Local search from the best candidates of a proposal, by what the models expect of every change.

The solver knows only costs that are sums, and changes of measured mixes go one step. What the models have learned
beyond sums, of runs, regions and pairs, is used by going on: changes of the best candidates, then of the best of those.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from search.space.layout import Codes, Precisions

Rating = Callable[[Precisions], NDArray[np.float64]]
"""(n, groups) precisions to (n,) expected gains."""

_ROUNDS, _STARTS = 6, 8  # most rounds, of which fewer usually suffice, and mixes that each goes on from
_RISE = 1.02  # of the gain, below which another round is not worth its time
_EFFORT = 800  # most decisions times rounds: the time of a round grows with the decisions, and above 800 there is none


def climb(
    codes: Codes,
    gains: NDArray[np.float64],
    around: Callable[[Codes], tuple[Codes, Precisions]],
    shortlist: Callable[[Precisions], NDArray[np.int64]],
    rate: Rating,
) -> NDArray[np.int64]:
    """Find the best of candidates and of their changes, as long as the expected gain rises.

    Args:
        codes, gains: (n, decisions) candidates, and (n,) what is expected of each.
        around: gives new codes (m, decisions) and precisions (m, groups) beside some candidates.
        shortlist: gives the indices of those of (m, groups) precisions that are worth to be rated.

    Returns:
        (decisions,) codes.
    """
    for _ in range(min(_ROUNDS, _EFFORT // codes.shape[1])):
        best = np.argsort(-gains, kind="stable")[:_STARTS]
        codes, gains, before = codes[best], gains[best], gains[best[0]]
        neighbours, precisions = around(codes)
        if not len(neighbours):
            break
        kept = shortlist(precisions)
        codes, gains = np.concatenate([codes, neighbours[kept]]), np.concatenate([gains, rate(precisions[kept])])
        if gains.max() < _RISE * before:
            break
    return np.asarray(codes[int(np.argmax(gains))])
