"""Good minima of pairwise costs on graphs of any width, by expansion moves, each of them one minimum cut.

A move takes one code and lets any set of decisions switch to it; a minimum cut finds the best such set. With two codes
for every decision, and tables in which equal codes cost less than different ones, the first move already ends at the
minimum. Otherwise moves with each code follow until none helps, which ends near the minimum but proves nothing.

Boykov, Veksler, Zabih: *Fast Approximate Energy Minimization via Graph Cuts*, 2001. A table for which a cut would need
a negative capacity is raised where exactly one of the two switches, as in Rother et al., *Digital Tapestry*, 2005: so
the cost of the decisions as they are is exact, all others are overestimated, and no accepted move makes it worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.space.layout import Codes
from search.space.structure import Structure, Terms

MOST_ROUNDS = 10  # of moves with every code; two or three are usual
NEGLIGIBLE = 1e-12  # of a cost: a gain that may be rounding
CAPACITIES = 2**30  # of all edges together, so that no flow exceeds 32 bits


@dataclass(frozen=True)
class Move:
    """The costs of switching: Σ switch · x + Σ pairs[(i, j)] · (1 − x_i) · x_j, where x is 1 for who switches.

    Attributes:
        switch: (decisions,) float64.
        pairs: (pairs,) float64, none of them negative.
    """

    switch: NDArray[np.float64]
    pairs: NDArray[np.float64]


class Cutter:
    """Minimises costs of one structure whose tables hold no +inf. It is immutable and may be shared."""

    lanes = 1  # costs that are solved together in the time of one

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self._ends = np.array(structure.pairs, dtype=np.int64).reshape(-1, 2).T
        self._sizes = np.array(structure.sizes, dtype=np.int64)

    @staticmethod
    def fits(structure: Structure, terms: Terms) -> bool:
        """Whether only codes are forbidden, and no pairs of them."""
        return bool(np.isfinite(terms[..., sum(structure.sizes) :]).all())

    def minimize(self, terms: Terms) -> tuple[Codes, Terms]:
        """Find a good minimum of each of many costs.

        Args:
            terms: (batch, length) float64; +inf where a code is forbidden.

        Returns:
            (batch, decisions) codes and (batch,) their costs without base. If nothing is allowed, the cost is +inf and
            the codes are meaningless.
        """
        codes = np.zeros((len(terms), len(self._sizes)), dtype=np.int64)
        for lane, costs in enumerate(terms):
            # What was good for the costs before is often good for these, for example along a front.
            codes[lane] = self._minimum(costs, codes[max(0, lane - 1)])
        least = [self._value(costs, row) for costs, row in zip(terms, codes, strict=True)]
        return codes, np.array(least, dtype=np.float64)

    def rank(self, terms: Terms) -> Iterator[tuple[Codes, float]]:
        """Yield a good minimum of one cost, then its single changes, the cheapest first, with their costs."""
        (minimum,), (value,) = self.minimize(terms[None])
        if not np.isfinite(value):
            return
        yield minimum, float(value)
        owners = np.repeat(np.arange(len(minimum)), self._sizes)
        others = np.concatenate([np.arange(size) for size in self._sizes])
        changes = np.repeat(minimum[None], len(owners), axis=0)
        changes[np.arange(len(owners)), owners] = others
        changes = np.asarray(changes[others != minimum[owners]])
        values = self.structure.sums(terms, changes)
        for place in np.argsort(values, kind="stable"):
            if not np.isfinite(values[place]):
                return
            yield changes[place], float(values[place])

    def _minimum(self, terms: Terms, before: Codes) -> Codes:
        codes = self._start(terms, before)
        value, most = self._value(terms, codes), int(self._sizes.max(initial=0))
        unchanged = 0
        for number in range(MOST_ROUNDS * most if np.isfinite(value) else 0):
            code = number % most
            switches = _cut(self._move(terms, codes, code), self._ends)
            switched = np.where(switches, self._offer_code(terms, codes, code), codes)
            reached = self._value(terms, switched)
            unchanged += 1
            if reached < value - NEGLIGIBLE * abs(value):
                codes, value, unchanged = switched, reached, 0
            if unchanged == most:
                break
        return codes

    def _start(self, terms: Terms, before: Codes) -> Codes:
        """The cheapest of earlier codes, each decision's own cheapest, and each code for all that may have it."""
        own = np.split(terms[: self._sizes.sum()], np.cumsum(self._sizes)[:-1])
        cheapest = np.array([costs.argmin() for costs in own], dtype=np.int64)
        tried = [before, cheapest]
        for code in range(int(self._sizes.max(initial=0))):
            may = [code < len(costs) and bool(np.isfinite(costs[code])) for costs in own]
            tried.append(np.where(may, code, cheapest))
        values = self.structure.sums(terms, np.array(tried))
        return tried[int(values.argmin())]

    def _value(self, terms: Terms, codes: Codes) -> float:
        return float(self.structure.sums(terms, codes[None])[0])

    def _move(self, terms: Terms, codes: Codes, code: int) -> Move:
        """The costs of switching to a code, for those that may; the others stay as they are."""
        left, right = self._ends
        wanted = self._offer_code(terms, codes, code)
        starts, width = self.structure.pair_starts, self._sizes[right]

        def table(of_left: Codes, of_right: Codes) -> NDArray[np.float64]:
            return np.asarray(terms[starts + of_left[left] * width + of_right[right]])

        stay, both = table(codes, codes), table(wanted, wanted)
        right_switches, left_switches = table(codes, wanted), table(wanted, codes)
        lacking = np.maximum(0.0, stay + both - right_switches - left_switches)
        left_switches = left_switches + lacking / 2
        pairs = np.maximum(0.0, right_switches + lacking / 2 + left_switches - stay - both)
        switch = terms[self.structure.unary_starts + wanted] - terms[self.structure.unary_starts + codes]
        switch += np.bincount(left, left_switches - stay, len(codes))
        switch += np.bincount(right, both - left_switches, len(codes))
        return Move(switch, pairs)

    def _offer_code(self, terms: Terms, codes: Codes, code: int) -> Codes:
        """(decisions,) this code, or the present one where it does not exist or is forbidden."""
        places = self.structure.unary_starts + np.minimum(code, self._sizes - 1)
        return np.where((code < self._sizes) & np.isfinite(terms[places]), code, codes)


def _cut(move: Move, ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(decisions,) who switches in the cheapest set: what lies on the side of the sink of a minimum cut."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    count = len(move.switch)
    source, sink, decisions = count, count + 1, np.arange(count)
    costly = move.switch > 0
    tails = np.concatenate([ends[0], np.where(costly, source, decisions)])
    heads = np.concatenate([ends[1], np.where(costly, decisions, sink)])
    capacities = np.concatenate([move.pairs, np.abs(move.switch)])
    total = capacities.sum()
    if not total:
        return np.zeros(count, dtype=bool)
    whole = np.rint(capacities * (CAPACITIES / total)).astype(np.int32)
    graph = csr_array((whole, (tails, heads)), shape=(count + 2, count + 2), dtype=np.int32)
    left = graph - maximum_flow(graph, source, sink).flow
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    switching = np.ones(count + 2, dtype=bool)
    switching[reached] = False
    return switching[:count]
