"""A random function of pairs and triples of groups, so that no sum of terms of groups and edges is exactly right.

It is drawn from what the measured rows leave open: a Gaussian prior over tables, given what a fit missed of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from benchmarks.samplers.simulator import PRECISIONS
from search.space.layout import Precisions

Floats = NDArray[np.float64]
_NEAR = 3  # groups of a near pair or triple are at most so far apart, in the order of the file
# Of each precision its coordinates in a basis without the constant, of length 1: tables of products of these hold only
# what no fewer of their groups explain.
_CONTRASTS = np.array([[2.0, 0.0], [-1.0, 3.0**0.5], [-1.0, -(3.0**0.5)]]) / 2


@dataclass(frozen=True)
class Misfit:
    """Σ tables over a few groups each.

    Attributes:
        members: (terms,) tuples of two or three places of groups.
        tables: of each term, (`PRECISIONS`, …).
    """

    members: Sequence[tuple[int, ...]]
    tables: Sequence[Floats]

    def __call__(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,)."""
        total = np.zeros(len(precisions))
        for members, table in zip(self.members, self.tables, strict=True):
            total += table[tuple(precisions[:, member] for member in members)]
        return total


def draw(sd: float, precisions: Precisions, missed: Floats, noise: Floats, seed: int) -> Misfit:
    """A function that is `sd` large where nothing is known, and explains what was missed where something is.

    As many near pairs, pairs of any two, and near triples as there are groups.

    Args:
        precisions: (n, groups) of the rows that are known.
        missed: (n,) what a fit leaves of them; `noise`: (n,) > 0, how sure that is.
    """
    rng = np.random.default_rng([seed, 4211])
    members = _members(precisions.shape[1], rng)
    scale = sd / max(len(members), 1) ** 0.5
    known = scale * _features(members, precisions)
    weights = rng.standard_normal(known.shape[1])
    covariance = cho_factor(known @ known.T + np.diag(noise**2))
    unexplained = missed - known @ weights - noise * rng.standard_normal(len(noise))
    weights = scale * (weights + known.T @ cho_solve(covariance, unexplained))
    tables, start = [], 0
    for term in members:
        size = _CONTRASTS.shape[1] ** len(term)
        cells = np.stack(np.meshgrid(*[np.arange(PRECISIONS)] * len(term), indexing="ij"), axis=-1)
        own = _products([_CONTRASTS[cells[..., axis].ravel()] for axis in range(len(term))])
        tables.append((own @ weights[start : start + size]).reshape((PRECISIONS,) * len(term)))
        start += size
    return Misfit(members, tables)


def _members(groups: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    pairs = [(i, j) for i in range(groups) for j in range(i + 1, groups)]
    near = [pairs[i] for i in rng.permutation(len(pairs)) if pairs[i][1] - pairs[i][0] <= _NEAR][:groups]
    some = [pairs[i] for i in rng.integers(len(pairs), size=groups)] if pairs else []
    starts = rng.integers(max(1, groups - _NEAR), size=groups if groups > 2 else 0)
    places = [start + rng.permutation(min(_NEAR + 1, groups))[:3] for start in starts]
    return [*near, *some, *(tuple(sorted(int(place) for place in term)) for term in places)]


def _features(members: Sequence[tuple[int, ...]], precisions: Precisions) -> Floats:
    """(n, weights) products of the contrasts of each term's groups."""
    at = _CONTRASTS[precisions]
    columns = [np.zeros((len(precisions), 0)), *(_products([at[:, member] for member in term]) for term in members)]
    return np.concatenate(columns, axis=1)


def _products(parts: Sequence[Floats]) -> Floats:
    """(n, k) each to (n, k ** parts) products of one entry of each."""
    products = parts[0]
    for part in parts[1:]:
        products = (products[:, :, None] * part[:, None, :]).reshape(len(products), products.shape[1] * part.shape[1])
    return products
