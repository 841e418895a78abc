"""A Gaussian process over assignments: a linear trend, terms of groups and of pairs, and interactions of any order.

k(a, b) = t · φ(a)·φ(b) + Σ_g v_g [a_g = b_g] + Σ_e w_e [a, b agree at both ends of e] + s · exp(−Σ_g r_g [a_g ≠ b_g])

φ are a few totals of a whole assignment (see `Trend`), so that what no row has is still judged by its like. The weights
were learned once from the rows (automatic relevance, by the posterior mode) and are kept in benchmarks/results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from benchmarks.samplers.simulator import PRECISIONS

Floats = NDArray[np.float64]
Precisions = NDArray[np.int8]

_SCALES = 6


class Trend(Protocol):
    def __call__(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n, k) features between about −1 and 1."""


@dataclass(frozen=True)
class Weights:
    """Hyperparameters: `flat` = scales of the kinds, then deviations by group and edge.

    scales: log of groups, pairs, interactions, ranges, noise, trend. deviations: groups, edges, groups (ranges).
    """

    flat: Floats
    groups: int
    edges: int

    def linear(self) -> Floats:
        return np.asarray(np.exp(self.flat[0] + self.flat[_SCALES : _SCALES + self.groups]))

    def pairs(self) -> Floats:
        return np.asarray(np.exp(self.flat[1] + self.flat[_SCALES + self.groups : _SCALES + self.groups + self.edges]))

    def ranges(self) -> Floats:
        return np.asarray(np.exp(self.flat[3] + self.flat[_SCALES + self.groups + self.edges :]))

    @property
    def interactions(self) -> float:
        return float(np.exp(self.flat[2]))

    @property
    def noise(self) -> float:
        return float(np.exp(self.flat[4]))

    @property
    def trend(self) -> float:
        return float(np.exp(self.flat[5]))


@dataclass(frozen=True)
class GaussianProcess:
    """Fitted to rows; predicts the mean.

    Attributes:
        edges: (edges, 2) by place of group.
        precisions: (n, groups) of the rows it was fitted to.
        centre, scale: of the values.
        dual: (n,) K⁻¹ (values − centre) / scale.
    """

    weights: Weights
    edges: NDArray[np.int64]
    trend: Trend
    precisions: Precisions
    centre: float
    scale: float
    dual: Floats

    def predict(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,) means; in pieces, so that memory stays small."""
        weights, edges, trend = self.weights, self.edges, self.trend
        pieces = [_kernel(weights, edges, trend, part, self.precisions) @ self.dual for part in _parts(precisions)]
        return np.asarray(self.centre + self.scale * np.concatenate([np.empty(0), *pieces]))


def fit(
    precisions: Precisions,
    values: Floats,
    sds: Floats,
    edges: NDArray[np.int64],
    trend: Trend,
    weights: Weights,
) -> GaussianProcess:
    """Condition on the rows.

    Args:
        values: (n,); `sds`: (n,) known standard deviations, beyond the noise of the weights.
    """
    centre, scale = float(values.mean()), float(values.std()) or 1.0
    y, known = (values - centre) / scale, (sds / scale) ** 2
    covariance = _kernel(weights, edges, trend, precisions, precisions) + np.diag(known + weights.noise)
    dual = cho_solve(cho_factor(covariance), y)
    return GaussianProcess(weights, edges, trend, precisions, centre, scale, dual)


def _kernel(weights: Weights, edges: NDArray[np.int64], trend: Trend, left: Precisions, right: Precisions) -> Floats:
    """(left, right) covariances."""
    a, b = _one_hot(left, PRECISIONS), _one_hot(right, PRECISIONS)
    linear, ranges = np.repeat(weights.linear(), PRECISIONS), np.repeat(weights.ranges(), PRECISIONS)
    covariances = (a * linear) @ b.T + weights.interactions * np.exp((a * ranges) @ b.T - weights.ranges().sum())
    if len(edges):
        ends = [PRECISIONS * p[:, edges[:, 0]] + p[:, edges[:, 1]] for p in (left, right)]
        c, d = (_one_hot(end, PRECISIONS**2) for end in ends)
        covariances += (c * np.repeat(weights.pairs(), PRECISIONS**2)) @ d.T
    return np.asarray(covariances + weights.trend * trend(left) @ trend(right).T)


def _one_hot(codes: NDArray[np.int8], width: int) -> Floats:
    return np.asarray(np.eye(width)[codes].reshape(len(codes), -1))


def _parts(precisions: Precisions, size: int = 2048) -> list[Precisions]:
    return [precisions[i : i + size] for i in range(0, len(precisions), size)]
