"""The common structure of pairwise costs over the same decisions, with which each cost is one flat array."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.errors import SolverError
from search.space.layout import Codes, Pairwise

Terms = NDArray[np.float64]


@dataclass(frozen=True)
class Structure:
    """The number of codes of every decision, and the pairs of decisions that share a table.

    The terms of a cost as a flat array are the unary costs of decision 0, of decision 1, …, then the table of every
    pair row by row, in the order of `pairs`. The base is not a term.

    Attributes:
        sizes: the number of codes of every decision.
        pairs: (i, j) with i < j, sorted.
    """

    sizes: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, *costs: Pairwise) -> Structure:
        """The smallest structure that fits all these costs.

        Raises:
            SolverError: they are not about the same decisions.
        """
        sizes = {tuple(len(terms) for terms in cost.unary) for cost in costs}
        if len(sizes) != 1:
            raise SolverError(f"solving for {len(costs)} costs: they have different decisions or codes: {sizes}.")
        first, *others = ([*cost.pairs] for cost in costs)
        # Costs of one layout have the same pairs, sorted.
        pairs = first if all(other == first for other in others) else {*first}.union(*others)
        return cls(sizes.pop(), tuple(sorted(pairs)))

    @cached_property
    def unary_starts(self) -> Codes:
        """(decisions,) where each decision's unary costs start in the terms."""
        return np.asarray(np.cumsum((0, *self.sizes), dtype=np.int64)[:-1])

    @cached_property
    def pair_starts(self) -> Codes:
        """(pairs,) where each pair's table starts in the terms."""
        lengths = [self.sizes[i] * self.sizes[j] for i, j in self.pairs]
        return np.asarray(sum(self.sizes) + np.cumsum((0, *lengths), dtype=np.int64)[:-1])

    @cached_property
    def length(self) -> int:
        """The number of terms."""
        return sum(self.sizes) + sum(self.sizes[i] * self.sizes[j] for i, j in self.pairs)

    @cached_property
    def _ends(self) -> Codes:
        return np.asarray(np.array(self.pairs, dtype=np.int64).reshape(len(self.pairs), 2).T)

    def terms(self, cost: Pairwise) -> Terms:
        """(length,) terms of a cost; 0 for terms that it does not have.

        Raises:
            SolverError: a cost is NaN or -inf; +inf is allowed and forbids.
        """
        none = {pair: np.zeros((self.sizes[pair[0]], self.sizes[pair[1]])) for pair in self.pairs - cost.pairs.keys()}
        pairs = {**none, **cost.pairs}
        tables = [*cost.unary, *(pairs[pair].reshape(-1) for pair in self.pairs)]
        terms = np.concatenate([np.zeros(0), *tables]).astype(np.float64)
        if np.isnan(terms).any() or np.isneginf(terms).any():
            raise SolverError(
                "solving for a cost: it holds NaN or -inf, where numbers or +inf (forbidden) were expected."
            )
        return terms

    def places(self, codes: Codes) -> Codes:
        """(n, decisions) codes to (n, decisions + pairs) indices of their terms."""
        left, right = self._ends
        sizes = np.array(self.sizes, dtype=np.int64)
        tables = self.pair_starts + codes[:, left] * sizes[right] + codes[:, right]
        return np.concatenate([self.unary_starts + codes, tables], axis=1)

    def sums(self, terms: Terms, codes: Codes) -> Terms:
        """(length,) terms and (n, decisions) codes to (n,) costs without base."""
        return np.asarray(terms[self.places(codes)].sum(axis=1))
