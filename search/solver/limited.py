"""The least cost within a limit on another cost, under a surrogate.

The Lagrangian relaxation of the limit comes first. If it leaves too large a gap, HiGHS solves an integer program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from search.errors import SolverError
from search.solver import integer_program as program
from search.solver.cuts import Cutter
from search.solver.hull import Both
from search.solver.relaxation import LOOKED_AT, Relaxation, Relaxed
from search.solver.solve import solver_of
from search.space.layout import Codes, Pairwise


@dataclass(frozen=True)
class Solution:
    """Codes that keep a limit.

    Attributes:
        value: the objective, including the base.
        limited: the limited cost, including the base.
        gap: a proof that no codes are better by more than this share of `value`; if that is 0, by more than this.
        timed_out: whether the solver stopped at its time limit.
    """

    codes: Codes
    value: float
    limited: float
    gap: float
    timed_out: bool


def within(
    objective: Pairwise,
    limited: Pairwise,
    limit: float,
    gap: float = 1e-3,
    time_limit_s: float = 5.0,
    forbidden: Sequence[Codes] = (),
    fixed: Mapping[int, int] | None = None,
    looked_at: int = LOOKED_AT,
    *,
    exact: bool = True,
) -> Solution | None:
    """Find the codes of least objective whose other cost keeps a limit.

    Args:
        limit: the upper limit of `limited`, with a tolerance of 1e-9 of the limit and of the largest term.
        gap: the solver stops when it is proven that no codes are better by more than this share of the value.
        time_limit_s: the time limit of HiGHS, which is used if the Lagrangian relaxation leaves a larger gap; 0 for
            none.
        forbidden: (decisions,) codes to exclude.
        looked_at: effort of the relaxation; see there.
        exact: if False, a good solution is enough, and HiGHS is used only where the relaxation finds none. Nothing is
            proven of solutions on graphs that are too wide for elimination, so their gap is +inf.

    Returns:
        The solution; None if no codes keep the limit, or with `exact=False` if none were found.

    Raises:
        SolverError: no codes that keep the limit were found in time, though there may be some.
    """
    both = Both.of(objective, limited, fixed or {})
    structure, terms = both.structure, both.finite[0] + both.denied
    room = program.add_tolerance(both.finite[1], limit - limited.base)
    known, timed_out, solver = Relaxed(None, np.inf, -np.inf), False, solver_of(structure, terms, exact=exact)
    if solver is not None:
        denied = {tuple(int(code) for code in codes) for codes in forbidden}
        known = Relaxation(solver, objective.base, terms, both.finite[1], room, denied, looked_at).solve(gap)
    if isinstance(solver, Cutter):
        known.bound = -np.inf
        return _solution(known, both, timed_out=False)
    if not known.proven(gap) and (exact or known.codes is None):
        budget = both.finite[1], limit - limited.base
        asked = structure, terms, objective.base, budget, forbidden, gap, time_limit_s
        timed_out = time_limit_s <= 0 or _improve(known, program.solve(*asked), both)
    if known.codes is None and timed_out:
        raise SolverError(
            f"solving {len(structure.sizes)} decisions within a limit of {limit:g}: HiGHS found no solution that keeps "
            f"it within {time_limit_s:g} s. Allow more time or a looser limit."
        )
    return _solution(known, both, timed_out)


def _solution(known: Relaxed, both: Both, timed_out: bool) -> Solution | None:
    if known.codes is None:
        return None
    left = max(0.0, known.value - known.bound)
    share = left / abs(known.value) if left and known.value else left
    reached = float(both.values(known.codes[None])[1][0])
    return Solution(known.codes, known.value, reached, share, timed_out)


def _improve(known: Relaxed, found: program.Found | None, both: Both) -> bool:
    """Add the result of HiGHS, None if there is no solution; tells whether it ran out of time."""
    if found is None:
        known.bound = known.value
        return False
    known.bound = max(known.bound, found.bound)
    if found.codes is not None:
        value = float(both.values(found.codes[None])[0][0])
        if value < known.value:
            known.codes, known.value = found.codes, value
    return found.timed_out
