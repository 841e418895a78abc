"""A Gaussian process over assignments: a linear trend, terms of groups and of pairs, and interactions of any order.

k(a, b) = t · φ(a)·φ(b) + Σ_g v_g [a_g = b_g] + Σ_e w_e [a, b agree at both ends of e] + s · exp(−Σ_g r_g [a_g ≠ b_g])

φ are a few totals of a whole assignment (see `Trend`), so that what no row has is still judged by its like. Every
weight is learned (automatic relevance), by the posterior mode: a log-normal prior ties the weights of a kind to a
common scale that is learned too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from benchmarks.samplers.simulator import PRECISIONS

Floats = NDArray[np.float64]
Precisions = NDArray[np.int8]

_TIED = 1.0  # standard deviation of a log weight around its kind's scale
_LOOSE = 2.0  # standard deviation of a log scale around where it starts
_FAR = 2.0  # so many standard deviations away, the optimizer stops
_SCALES = 6
STEPS = 60


class Trend(Protocol):
    def __call__(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n, k) features between about −1 and 1."""


@dataclass(frozen=True)
class Weights:
    """Hyperparameters, as the optimizer sees them: `flat` = scales of the kinds, then deviations by group and edge.

    scales: log of groups, pairs, interactions, ranges, noise, trend. deviations: groups, edges, groups (ranges).
    """

    flat: Floats
    groups: int
    edges: int

    @staticmethod
    def start(groups: int, edges: int) -> Weights:
        scales = np.log([0.7 / groups, 0.3 / max(edges, 1), 0.1, 1.0 / groups, 0.01, 10.0])
        return Weights(np.concatenate([scales, np.zeros(2 * groups + edges)]), groups, edges)

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
    start: Weights | None = None,
    steps: int = STEPS,
) -> GaussianProcess:
    """Learn the weights and condition on the rows.

    Args:
        values: (n,); `sds`: (n,) known standard deviations, beyond the noise that is learned.
        start: weights to begin from.
        steps: of the optimizer; 0 keeps the weights of `start`.
    """
    centre, scale = float(values.mean()), float(values.std()) or 1.0
    y, known = (values - centre) / scale, (sds / scale) ** 2
    weights = start or Weights.start(precisions.shape[1], len(edges))
    if steps:
        posterior = _Posterior(precisions, y, known, edges, trend(precisions))
        options = {"maxiter": steps}
        found = minimize(posterior, weights.flat, jac=True, method="L-BFGS-B", bounds=posterior.bounds, options=options)
        weights = Weights(found.x, weights.groups, weights.edges)
    covariance = _kernel(weights, edges, trend, precisions, precisions) + np.diag(known + weights.noise)
    dual = cho_solve(cho_factor(covariance), y)
    return GaussianProcess(weights, edges, trend, precisions, centre, scale, dual)


class _Posterior:
    """Negative log posterior of the weights, with its gradient; on the upper triangle of all pairs of rows."""

    def __init__(
        self, precisions: Precisions, y: Floats, known: Floats, edges: NDArray[np.int64], features: Floats
    ) -> None:
        prior = Weights.start(precisions.shape[1], len(edges))
        self.pairs = np.triu_indices(len(y))
        agree = (precisions[self.pairs[0]] == precisions[self.pairs[1]]).T
        self.same = agree.astype(float)
        self.both = (agree[edges[:, 0]] & agree[edges[:, 1]]).astype(float)
        self.features = (features @ features.T)[self.pairs]
        self.y, self.known, self.prior = y, known, prior
        self.spread = np.where(np.arange(len(prior.flat)) < _SCALES, _LOOSE, _TIED)
        self.bounds = [(start - _FAR * s, start + _FAR * s) for start, s in zip(prior.flat, self.spread, strict=True)]

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        w = Weights(flat, self.prior.groups, self.prior.edges)
        plain = w.trend * self.features + w.linear() @ self.same + w.pairs() @ self.both
        ranges = w.ranges()
        decayed = w.interactions * np.exp(ranges @ self.same - ranges.sum())
        value, sense, trace = self._likelihood(plain + decayed, w.noise)
        by_group, by_edge = w.linear() * (self.same @ sense), w.pairs() * (self.both @ sense)
        all_decayed = float(sense @ decayed)
        by_range = ranges * (self.same @ (sense * decayed) - all_decayed)
        trend = w.trend * float(sense @ self.features)
        scales = [by_group.sum(), by_edge.sum(), all_decayed, by_range.sum(), w.noise * trace, trend]
        off = (flat - self.prior.flat) / self.spread
        gradient = np.concatenate([scales, by_group, by_edge, by_range])
        return value + 0.5 * float(off @ off), gradient + off / self.spread

    def _likelihood(self, upper: Floats, noise: float) -> tuple[float, Floats, float]:
        """Value, its derivative by every pair's covariance, and its derivative by the diagonal."""
        n = len(self.y)
        covariance = np.zeros((n, n))
        covariance[self.pairs] = upper
        covariance[np.diag_indices(n)] += self.known + noise + 1e-9 * covariance[0, 0]
        factor = cho_factor(covariance)
        inverse = cho_solve(factor, np.eye(n))
        dual = inverse @ self.y
        value = 0.5 * float(self.y @ dual) + float(np.log(np.diagonal(factor[0])).sum())
        sense = 0.5 * (inverse - np.outer(dual, dual))
        twice = np.where(self.pairs[0] == self.pairs[1], 1.0, 2.0)
        return value, twice * sense[self.pairs], float(sense.trace())


def _kernel(weights: Weights, edges: NDArray[np.int64], trend: Trend, left: Precisions, right: Precisions) -> Floats:
    """(left, right) covariances."""
    a, b = _one_hot(left, PRECISIONS), _one_hot(right, PRECISIONS)
    linear, ranges = np.repeat(weights.linear(), PRECISIONS), np.repeat(weights.ranges(), PRECISIONS)
    found = (a * linear) @ b.T + weights.interactions * np.exp((a * ranges) @ b.T - weights.ranges().sum())
    if len(edges):
        ends = [PRECISIONS * p[:, edges[:, 0]] + p[:, edges[:, 1]] for p in (left, right)]
        c, d = (_one_hot(end, PRECISIONS**2) for end in ends)
        found += (c * np.repeat(weights.pairs(), PRECISIONS**2)) @ d.T
    return np.asarray(found + weights.trend * trend(left) @ trend(right).T)


def _one_hot(codes: NDArray[np.int8], width: int) -> Floats:
    return np.asarray(np.eye(width)[codes].reshape(len(codes), -1))


def _parts(precisions: Precisions, size: int = 2048) -> list[Precisions]:
    return [precisions[i : i + size] for i in range(0, len(precisions), size)]
