"""The least cost within a limit on another cost, under a surrogate, by the Lagrangian relaxation of the limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search.solver.cuts import Cutter
from search.solver.hull import Both
from search.solver.relaxation import LOOKED_AT, Relaxation
from search.solver.solve import solver_of
from search.space.layout import Codes, Pairwise


@dataclass(frozen=True)
class Solution:
    """Codes that keep a limit.

    Attributes:
        value: the objective, including the base.
        limited: the limited cost, including the base.
        gap: a proof that no codes are better by more than this share of `value`; if that is 0, by more than this. It
            is +inf on graphs that are too wide for elimination, where nothing is proven.
    """

    codes: Codes
    value: float
    limited: float
    gap: float


def within(
    objective: Pairwise, limited: Pairwise, limit: float, gap: float = 1e-3, looked_at: int = LOOKED_AT
) -> Solution | None:
    """Find codes of low objective, usually the least, whose other cost keeps a limit.

    Args:
        limit: the upper limit of `limited`, with a tolerance of 1e-9 of the limit and of the largest term.
        gap: the search stops when it is proven that no codes are better by more than this share of the value.
        looked_at: effort of the relaxation; see there.

    Returns:
        The solution; None if no codes keep the limit, or on graphs that are too wide for elimination if none were
        found.
    """
    both = Both.of(objective, limited)
    terms, other = both.finite[0] + both.denied, both.finite[1]
    left = limit - limited.base
    room = left + 1e-9 * (abs(left) + float(np.abs(other).max(initial=0)))
    solver = solver_of(both.structure, terms)
    known = Relaxation(solver, objective.base, terms, other, room, looked_at).solve(gap)
    if known.codes is None:
        return None
    above = np.inf if isinstance(solver, Cutter) else max(0.0, known.value - known.bound)
    share = above / abs(known.value) if above and known.value else above
    return Solution(known.codes, known.value, float(both.values(known.codes[None])[1][0]), share)
