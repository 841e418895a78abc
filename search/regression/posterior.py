"""Bayesian linear regression with a Gaussian prior: the posterior, predictions and draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_EXACT = 400  # rows up to which products are in double precision; single precision takes half of the time
_INDUCING = 200  # rows that the uncertainty of predictions is computed with; means use every row


@dataclass(frozen=True)
class Prior:
    """Independent Gaussian beliefs about coefficients: `mean` and `std`, (d,) float64 each."""

    mean: Floats
    std: Floats


@dataclass(frozen=True)
class SharedErrors:
    """Errors that similar rows have in common, as the covariance of a Gaussian process.

    Attributes:
        among: (n, n) covariance of the rows' errors, without their own noise.
    """

    among: Floats


class Posterior:
    """Coefficients given y = features · coefficients + shared errors + noise.

    It works with matrices of coefficients if there are more rows than coefficients, otherwise with matrices of rows.

    Args:
        features: (n, d) float64.
        observed: (n,) float64.
        noise: (n,) float64 > 0, standard deviation of each row.
        shared: errors that rows have in common; None if the errors of rows are independent.

    Attributes:
        mean: (d,) of the coefficients.
    """

    def __init__(
        self, prior: Prior, features: Floats, observed: Floats, noise: Floats, shared: SharedErrors | None = None
    ) -> None:
        self.prior = prior
        self._given = features, observed, noise, shared
        self._noise = noise
        residual = (observed - features @ prior.mean) / noise
        # In units of prior and noise, both are the identity.
        self._rows = features * prior.std / noise[:, None]
        self._errors = None if shared is None or not len(features) else shared.among / np.outer(noise, noise)
        self._by_rows = 0 < len(features) <= len(prior.mean) or self._errors is not None
        if self._by_rows:
            self._gram = gram(self._rows) if self._errors is None else gram(self._rows) + self._errors
            self._factor = _cholesky(self._gram + np.eye(len(features)))
            self._solved = _solve(self._factor, residual)
            shift = self._rows.T @ self._solved
            self._chosen = np.unique(np.linspace(0, len(features) - 1, _INDUCING).astype(int))
            self._reduced = self._through_chosen() if len(features) > _INDUCING else None
        else:
            self._factor = _cholesky(np.eye(len(prior.mean)) + self._rows.T @ self._rows)
            shift = _solve(self._factor, self._rows.T @ residual)
        self.mean: Floats = prior.mean + prior.std * shift

    def under(self, prior: Prior) -> Posterior:
        """The posterior of the same rows under another prior."""
        return Posterior(prior, *self._given)

    def _through_chosen(self) -> tuple[Floats, Floats]:
        """Factors of the variance that some rows explain, before and after every row was seen.

        With all rows chosen it would be exact. With fewer it overestimates the variance.
        """
        some = self._gram[self._chosen]
        before = some[:, self._chosen]
        jitter = 1e-9 * (np.trace(before) / len(before) + 1e-300)
        before = before + jitter * np.eye(len(before))
        return _cholesky(before), _cholesky(before + some @ some.T)

    @property
    def error_weights(self) -> Floats:
        """(n,) weights of the rows: an expected shared error is the sum of its covariances with theirs times these."""
        return np.asarray(self._solved / self._noise)

    @cached_property
    def _chosen_rows(self) -> Floats:
        return self._rows if len(self._chosen) == len(self._rows) else self._rows[self._chosen]

    def std(self, features: Floats, across: Floats | None = None, own: Floats | None = None) -> Floats:
        """(m,) standard deviations of (m, d) features times the coefficients, without noise.

        Args:
            across: (m, n) covariances of their shared errors with those of the rows; None if there are none.
            own: (m,) variances of their shared errors.
        """
        scaled = features * self.prior.std
        if not self._by_rows:
            return np.asarray(np.sqrt((_half(self._factor, scaled.T) ** 2).sum(axis=0)))
        shared = self._chosen_rows @ scaled.T
        total = (scaled**2).sum(axis=1)
        if across is not None and own is not None:
            shared = shared + (across[:, self._chosen] / self._noise[self._chosen]).T
            total = total + own
        if self._reduced is None:
            explained = (_half(self._factor, shared) ** 2).sum(axis=0)
        else:
            before, after = self._reduced
            explained = (_half(before, shared) ** 2).sum(axis=0) - (_half(after, shared) ** 2).sum(axis=0)
        return np.asarray(np.sqrt(np.maximum(total - explained, 0.0)))

    def draw(self, rng: np.random.Generator) -> Floats:
        """(d,) coefficients from the posterior."""
        free = rng.standard_normal(len(self.prior.mean))
        if self._by_rows:  # a draw from the prior, corrected by what the rows say against it
            missed = self._rows @ free + rng.standard_normal(len(self._rows))
            if self._errors is not None:
                jitter = 1e-9 * np.trace(self._errors) / len(self._errors) + 1e-300
                missed = missed + _cholesky(self._errors + jitter * np.eye(len(missed))) @ rng.standard_normal(
                    len(missed)
                )
            moved = free - self._rows.T @ _solve(self._factor, missed)
        else:
            moved = _half(self._factor, free, transposed=True)
        return np.asarray(self.mean + self.prior.std * moved)


def gram(rows: Floats) -> Floats:
    """rows · rowsᵀ, in single precision for many rows, which is faster and still more exact than their noise."""
    if len(rows) <= _EXACT:
        return np.asarray(rows @ rows.T)
    single = rows.astype(np.float32)
    return np.asarray(single @ single.T, dtype=np.float64)


def log_evidence(gram: Floats, residual: Floats) -> float:
    """Log density, up to a constant, of (n,) residuals under a Gaussian with an (n, n) covariance."""
    factor = _cholesky(gram)
    return float(-0.5 * (_half(factor, residual) ** 2).sum() - np.log(np.diagonal(factor)).sum())


def log_held_out(covariance: Floats, residual: Floats) -> float:
    """Mean log density, up to a constant, of each of (n,) residuals under a Gaussian given all others.

    The leave-one-out forecasts of Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), 5.4.2.
    """
    factor = _cholesky(covariance)
    inverse = _solve(factor, np.eye(len(covariance)))
    precision = np.maximum(np.diagonal(inverse), 1e-300)
    missed = (inverse @ residual) / precision
    return float(np.mean(0.5 * np.log(precision) - 0.5 * missed**2 * precision))


def solve_covariance(covariance: Floats, right: Floats) -> Floats:
    """(n,) x with covariance · x = right."""
    return _solve(_cholesky(covariance), right)


def _cholesky(matrix: Floats) -> Floats:
    from scipy.linalg import cholesky

    return np.asarray(cholesky(matrix, lower=True, check_finite=False))


def _half(factor: Floats, right: Floats, transposed: bool = False) -> Floats:
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(factor, right, lower=True, trans=int(transposed), check_finite=False))


def _solve(factor: Floats, right: Floats) -> Floats:
    return _half(factor, _half(factor, right), transposed=True)
