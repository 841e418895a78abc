"""Gradient-boosted trees on a linear trend, over features that no model of the search has.

Every feature is yes or no: the two precisions of groups that follow one another in the file, how much of a stage and of
the whole is in a precision, how long its longest run is, how often it changes, and which precisions two neighbouring
stages mostly have. Trees of two levels put two of them together, and trees of pairs reach four groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator import PRECISIONS
from search.space.layout import Precisions

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

TREES, RATE = 800, 0.04
_ROWS, _COLUMNS = 0.6, 0.3  # share of them that each tree sees
_LEAST = 3  # rows on either side of a split
_LEAF_PRIOR = 1.0  # rows of zero in every leaf
_TIE = 1e-9
_PENALTIES = np.logspace(-3, 2, 21)
_SHARES = (0.01, 0.26, 0.51, 0.76, 1.0)


class Trend(Protocol):
    def __call__(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n, k) features between about −1 and 1."""


def flags(precisions: Precisions) -> Flags:
    """(n, groups) precisions to (n, features)."""
    n, groups = precisions.shape
    stages = np.array_split(np.arange(groups), max(2, round(groups**0.5)))
    codes = np.arange(PRECISIONS)
    pairs = PRECISIONS * precisions[:, :-1] + precisions[:, 1:]
    columns = [(pairs[:, :, None] == np.arange(PRECISIONS**2)).reshape(n, -1)]
    held = np.stack([(precisions[:, stage, None] == codes).mean(axis=1) for stage in stages], axis=1)
    whole = (precisions[:, :, None] == codes).mean(axis=1)
    columns.append((held[..., None] >= _SHARES).reshape(n, -1))
    columns.append((whole[..., None] >= np.arange(1, 11) / 10).reshape(n, -1))
    mostly = PRECISIONS * held.argmax(axis=2)[:, :-1] + held.argmax(axis=2)[:, 1:]
    columns.append((mostly[:, :, None] == np.arange(PRECISIONS**2)).reshape(n, -1))
    lengths = 2 ** np.arange(1, max(2, groups.bit_length()))
    columns.append((_longest(precisions)[..., None] >= lengths).reshape(n, -1))
    changes = (precisions[:, 1:] != precisions[:, :-1]).sum(axis=1)
    columns.append(changes[:, None] >= np.concatenate([[1], lengths]))
    return np.concatenate(columns, axis=1)


def _longest(precisions: Precisions) -> NDArray[np.int64]:
    """(n, `PRECISIONS`) length of the longest run of each."""
    longest, run = np.zeros((2, len(precisions), PRECISIONS), dtype=np.int64)
    for column in precisions.T:
        run = np.where(column[:, None] == np.arange(PRECISIONS), run + 1, 0)
        longest = np.maximum(longest, run)
    return longest


@dataclass(frozen=True)
class Boosted:
    """A trend and trees on what it leaves.

    Attributes:
        line: (1 + k,) intercept and coefficients of the trend.
        splits: (trees, 3) features: of the root, of its no side, of its yes side.
        leaves: (trees, 4) values: no-no, no-yes, yes-no, yes-yes.
    """

    trend: Trend
    line: Floats
    splits: NDArray[np.int64]
    leaves: Floats

    def predict(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,); in pieces, so that memory stays small."""
        parts = [precisions[i : i + 1024] for i in range(0, len(precisions), 1024)]
        return np.concatenate([np.zeros(0), *(self._predict(part) for part in parts)])

    def _predict(self, precisions: Precisions) -> Floats:
        bits, trees = flags(precisions), np.arange(len(self.splits))
        root = bits[:, self.splits[:, 0]]
        below = np.where(root, bits[:, self.splits[:, 2]], bits[:, self.splits[:, 1]])
        values = self.leaves[trees, 2 * root + below]
        return np.asarray(self.line[0] + self.trend(precisions) @ self.line[1:] + values.sum(axis=1))


def fit(precisions: Precisions, values: Floats, sds: Floats, trend: Trend, trees: int = TREES) -> Boosted:
    """Fit the trend, then the trees.

    Args:
        values: (n,); `sds`: (n,) known standard deviations: rows that are surer count more.
    """
    weights = _weights(values, sds)
    features = trend(precisions)
    line = _ridge(features, values, weights)
    residual = values - line[0] - features @ line[1:]
    bits, rng = flags(precisions), np.random.default_rng(0)
    usable = np.flatnonzero((bits.sum(axis=0) >= _LEAST) & ((~bits).sum(axis=0) >= _LEAST))
    splits, leaves = np.zeros((trees, 3), dtype=np.int64), np.zeros((trees, 4))
    if not len(usable):
        return Boosted(trend, line, splits, leaves)
    for tree in range(trees):
        rows = np.flatnonzero(rng.random(len(values)) < _ROWS)
        columns = rng.choice(usable, max(1, round(_COLUMNS * len(usable))), replace=False)
        splits[tree] = _grown(bits, residual, weights, rows, columns)
        place = _places(bits, splits[tree])
        for leaf in range(4):
            own = rows[place[rows] == leaf]
            leaves[tree, leaf] = RATE * (weights[own] @ residual[own]) / (weights[own].sum() + _LEAF_PRIOR)
        residual = residual - leaves[tree, place]
    return Boosted(trend, line, splits, leaves)


def _weights(values: Floats, sds: Floats) -> Floats:
    """(n,) mean 1: the inverse of the variance, what no model explains included."""
    own = sds**2 + 0.05 * values.var() + 1e-300
    return np.asarray(own.mean() / own / np.mean(own.mean() / own))


def _grown(
    bits: Flags, residual: Floats, weights: Floats, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> list[int]:
    """Root, and the best split of either side."""
    root = _split(bits, residual, weights, rows, columns)
    yes = bits[rows, root]
    return [root, *(_split(bits, residual, weights, rows[side], columns) for side in (~yes, yes))]


def _split(bits: Flags, residual: Floats, weights: Floats, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> int:
    """The feature whose two sides differ most."""
    part = bits[np.ix_(rows, columns)].astype(float)
    heavy, count = weights[rows] @ part, part.sum(axis=0)
    total, mass = weights[rows] @ residual[rows], weights[rows].sum()
    sums = (weights[rows] * residual[rows]) @ part
    gain = sums**2 / (heavy + _LEAF_PRIOR) + (total - sums) ** 2 / (mass - heavy + _LEAF_PRIOR)
    gain[(count < _LEAST) | (len(rows) - count < _LEAST)] = -1.0
    # Features that part these rows alike tie but for rounding, which differs between processors: the first of them.
    return int(columns[np.flatnonzero(gain >= gain.max() - _TIE * abs(gain.max()))[0]])


def _places(bits: Flags, split: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) leaf of each row."""
    root = bits[:, split[0]]
    return np.asarray(2 * root + np.where(root, bits[:, split[2]], bits[:, split[1]]))


def _ridge(features: Floats, values: Floats, weights: Floats) -> Floats:
    """Intercept and coefficients; the penalty that predicts each row best from all others."""
    root = np.sqrt(weights)[:, None]
    middle, centre = weights @ features / weights.sum(), weights @ values / weights.sum()
    x, y = root * (features - middle), root[:, 0] * (values - centre)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    best, chosen = np.inf, np.zeros(features.shape[1])
    for penalty in _PENALTIES:
        kept = s**2 / (s**2 + penalty)
        leverage = np.minimum((u**2) @ kept + weights / weights.sum(), 0.999)
        missed = float((((y - u @ (kept * (u.T @ y))) / (1 - leverage)) ** 2).sum())
        if missed < best:
            best, chosen = missed, vt.T @ (s / (s**2 + penalty) * (u.T @ y))
    return np.concatenate([[centre - middle @ chosen], chosen])
