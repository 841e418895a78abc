"""Loss as a monotone map of noise, where noise is the sum of what every group adds in its precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.errors import SurrogateError
from search.forecast.latency_model import check_rows
from search.forecast.loss_maps import Decibels, Map, Saturating
from search.forecast.priors import NoisePrior
from search.regression.posterior import Posterior, Prior, SharedErrors, log_evidence, log_held_out, solve_covariance
from search.regression.similarity import MOST_SHARING, Pairs
from search.space.layout import Costs, Layout, Precisions

Floats = NDArray[np.float64]

_SLOPE, _POWER, _CEILING, _SPREAD, _MAP, _NOISE, _GROUPS = 0, 1, 2, 3, slice(3), slice(3, None), slice(4, None)
# Of the logarithms of slope, power and ceiling. What an error costs is known beforehand to a factor of four, the power
# by which the loss grows with it to a quarter, and the ceiling to a factor of three.
_MAP_STD = (1.5, 0.25, 1.0)
# Of the exponent of sensitivities. They are squared errors, estimated with errors of their own: the loss may spread the
# groups less than they do, or more. 0.5 and 1 forecast held-out evaluations of made-up worlds no better than 0.25.
_SPREAD_STD = 0.25
_LEAST_TUNED, _TUNED_ROWS = 8, 120  # fewest rows from which, and most rows by which, misfit and scales are chosen
_MISFITS = (0.03, 0.08, 0.15, 0.3)  # relative errors of the model itself; held-out forecasts choose
_SCALES = (0.6, 1.0, 1.6, 2.5)  # of the standard deviations of the prior; held-out forecasts choose
_SHARED = (0.1, 0.2, 0.4, 0.8)  # relative sizes of what pairs add; held-out forecasts choose
# Nats that pairs must add to the held-out forecasts of all rows. Errors are vectors in every network, so pairs are
# expected and weak evidence suffices; with 2 nats they were hardly ever used.
_EARNED = 0.5
_LEAST_NOISE = 1e-12  # of a mix, whose logarithm is taken
# Of the Gauss-Newton fit: steps, shares of a step that are tried, and the relative change at which it ends.
_STEPS, _STEP_SIZES, _CONVERGED = 12, (1.0, 0.5, 0.2, 0.05), 1e-3
_FARTHEST = 4.0  # standard deviations of the prior that a parameter may be from it: more is a fit gone astray
_UNMEASURED = 0.01  # loss of the worst uniform assignment before anything was measured
_UNMEASURED_STD = 1e-9  # of losses that are all zero


@dataclass(frozen=True)
class LossTuning:
    """Hyperparameters fitted to the rows: misfit relative to the loss, and a factor on the priors.

    Attributes:
        shared: the relative size of what pairs of groups add, which mixes with the same pairs share; 0 if nothing.
    """

    misfit: float = 0.08
    groups: float = 1.0
    shared: float = 0.0


class LossModel:
    """A posterior over the noise of each group and the map from noise to loss.

    Noise has no unit. All groups in their worst precision make about 1.

    Attributes:
        observation_std: standard deviation of a typical measured loss, from its samples alone.
    """

    def __init__(self, problem: LossProblem, fitted: Fitted, observation_std: float) -> None:
        self._problem = problem
        self._fitted = fitted
        self.shape = problem.map(fitted.at)
        self.observation_std = observation_std

    @cached_property
    def _posterior(self) -> Posterior:
        return self._fitted.posterior(self._problem.prior)

    @cached_property
    def _within_map(self) -> Posterior:
        """The posterior given power and ceiling."""
        mean, std = self._problem.prior.mean.copy(), self._problem.prior.std.copy()
        for known in (_POWER, _CEILING):
            mean[known], std[known] = self._fitted.at[known], 0.0
        return self._fitted.posterior(Prior(mean, std))

    def mean(self) -> Costs:
        """The most probable noise of every group. Minimizing it minimizes the predicted loss."""
        return self._problem.costs(self._fitted.at)

    def draw(self, rng: np.random.Generator) -> Costs:
        """Draw noise from the posterior, in the units of the most probable map, so `limit_on_noise` applies to it.

        The noise of a group is log-normal, and the median of many draws is `mean`.
        """
        drawn = self._within_map.draw(rng)
        scale = np.exp((drawn[_SLOPE] - self._fitted.at[_SLOPE]) / self.shape.power)
        costs = self._problem.costs(drawn)
        return Costs(0.0, scale * costs.nodes, costs.edges)

    def predict(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """Predict measurements with a typical sample: (n, groups) int8 to (n,) losses and standard deviations."""
        loss, std = self.predict_latent(precisions)
        return loss, np.hypot(std, self.observation_std)

    def predict_latent(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """Predict true losses, on endless samples: (n, groups) int8 to (n,) losses and standard deviations."""
        loss, jacobian = self._problem.linear(self._fitted.at, precisions)
        misfit = self._problem.tuning.misfit * self.shape.per_noise(loss)
        if self._fitted.weights is None:
            return loss, np.hypot(self._posterior.std(jacobian), misfit)
        across = self._across(precisions, loss)
        own = (self._problem.tuning.shared * self.shape.per_noise(loss)) ** 2 * self._problem.pairs.own(precisions)
        std = self._posterior.std(jacobian, across, own)
        return np.maximum(loss + across @ self._fitted.weights, 0.0), np.hypot(std, misfit)

    def predict_mean(self, precisions: Precisions) -> Floats:
        """Predict only the (n,) losses of (n, groups) int8, which is fast."""
        loss = self._problem.loss(self._fitted.at, precisions)
        if self._fitted.weights is None:
            return loss
        return np.asarray(np.maximum(loss + self._across(precisions, loss) @ self._fitted.weights, 0.0))

    def _across(self, precisions: Precisions, loss: Floats) -> Floats:
        """(m, n) covariances of the errors of mixes with those of the rows."""
        problem, rows = self._problem, self._fitted.precisions
        alike = problem.pairs.between(precisions, rows)
        return np.asarray(alike * self._fitted.sizes * problem.tuning.shared * self.shape.per_noise(loss)[:, None])

    def limit_on_noise(self, max_loss: float) -> float:
        """The noise at which the predicted loss is `max_loss`; infinite if the loss never reaches it."""
        return self.shape.noise(max_loss)


def fit_loss(
    layout: Layout,
    prior: NoisePrior,
    precisions: Precisions,
    loss: Floats,
    std: Floats,
    whole: NDArray[np.bool_] | None = None,
    decibels: bool = False,
) -> LossModel:
    """Fit noise and map together, by finding the most probable parameters.

    Args:
        precisions: (n, groups) int8. With n = 0 the model is the prior.
        loss: (n,) float64 in the metric's unit, 0 for uniform FP32.
        std: (n,) float64 ≥ 0, standard deviation of each loss: its 95 % interval over 3.92.
        whole: (n,) whether a loss was measured on all samples; None if all were. Only these judge forecasts.
        decibels: whether the metric's unit is dB, so that the loss grows with the logarithm of the noise.

    Raises:
        SurrogateError: an array has a wrong shape, a loss is not a number, or a standard deviation is negative.
    """
    check_rows(layout, precisions, loss, "loss")
    if std.shape != loss.shape or not (std >= 0).all():
        raise SurrogateError(f"fitting loss: expected {len(loss)} standard deviations ≥ 0, got {std}.")
    judged = std if whole is None or not whole.any() else std[whole]
    typical = float(np.median(judged[judged > 0])) if (judged > 0).any() else 0.0
    std = np.maximum(std, max(0.1 * typical, 1e-3 * float(np.abs(loss).max(initial=0.0))) or _UNMEASURED_STD)
    worst = float(max(loss.max(), 2 * np.median(std))) if len(loss) else _UNMEASURED  # of uniform mixes, a first guess
    problem = LossProblem(layout, prior, LossTuning(), worst, Decibels if decibels else Saturating)
    at = problem.prior.mean
    if len(loss) >= _LEAST_TUNED:
        some = np.unique(np.linspace(0, len(loss) - 1, _TUNED_ROWS).astype(int))
        # With the map still straight: a bent one explains the first rows as well as groups that differ.
        rough = problem.straighten().fit(at, precisions[some], loss[some], std[some])
        problem, at = problem.tune(rough, loss[some], std[some]), rough.at
    fitted = problem.fit(at, precisions, loss, std)
    if _LEAST_TUNED <= len(loss) <= MOST_SHARING:
        problem = problem.share_errors(fitted, loss, std)
        fitted = problem.fit(fitted.at, precisions, loss, std) if problem.tuning.shared > 0 else fitted
    return LossModel(problem, fitted, typical)


@dataclass(frozen=True)
class Fitted:
    """The model linearized around the most probable parameters `at`, and the rows that it was fitted to.

    Attributes:
        jacobian: (n, parameters).
        target: (n,) losses as the linearized model sees them.
        doubt: (n,) standard deviations of the losses around the model.
        precisions: (n, groups) of the rows.
        expected: (n,) losses at `at`.
        errors: (n, n) covariance of the errors that rows share; None if they share none.
        sizes: (n,) standard deviations of the errors that rows share.
        weights: (n,) weights that turn covariances with the rows into an expected error; None if they share none.
    """

    at: Floats
    jacobian: Floats
    target: Floats
    doubt: Floats
    precisions: Precisions
    expected: Floats
    errors: Floats | None = None
    sizes: Floats | float = 0.0
    weights: Floats | None = None

    def posterior(self, prior: Prior) -> Posterior:
        shared = None if self.errors is None else SharedErrors(self.errors)
        posterior = Posterior(prior, self.jacobian, self.target, self.doubt, shared)
        posterior.mean = self.at
        return posterior


class LossProblem:
    """The parameters.

    They are the logarithms of slope, power and ceiling; what is added to 1 as the exponent of all priors of noise, by
    which groups differ more or less than their sensitivities; and the logarithm of every group's noise over that.
    """

    def __init__(
        self,
        layout: Layout,
        noise: NoisePrior,
        tuning: LossTuning,
        worst: float,
        kind: type[Map] = Saturating,
        map_std: tuple[float, ...] = _MAP_STD,
    ) -> None:
        self._layout, self._noise, self._worst, self._kind = layout, noise, worst, kind
        self.tuning = tuning
        self._lower = noise.nodes[:, 1:]
        logs = np.log(np.maximum(self._lower, _LEAST_NOISE))
        self._spread = (logs - logs.mean(axis=0)).ravel()
        mean = np.concatenate([kind.start(worst), [0.0], np.zeros(self._lower.size)])
        own = [_SPREAD_STD, *np.full(self._lower.size, noise.log_std)]
        self.prior = Prior(mean, np.concatenate([map_std, tuning.groups * np.array(own)]))

    @cached_property
    def _bounds(self) -> tuple[Floats, Floats]:
        """(parameters,) lower and upper bound of each."""
        reach = _FARTHEST * self.prior.std
        return self.prior.mean - reach, self.prior.mean + reach

    def straighten(self) -> LossProblem:
        """The same problem with power and ceiling fixed at their priors."""
        held = (_MAP_STD[_SLOPE], 1e-6, 1e-6)
        return LossProblem(self._layout, self._noise, self.tuning, self._worst, self._kind, held)

    def map(self, parameters: Floats) -> Map:
        """From noise to loss."""
        return self._kind(*(float(value) for value in np.exp(parameters[_MAP])))

    def costs(self, parameters: Floats) -> Costs:
        """Noise of every group and precision; nothing on edges."""
        nodes = self.nodes(parameters)
        return Costs(0.0, nodes, np.zeros((len(self._layout.edges), nodes.shape[1], nodes.shape[1])))

    def nodes(self, parameters: Floats) -> Floats:
        """(groups, precisions) noise."""
        nodes = np.zeros_like(self._noise.nodes)
        logs = parameters[_GROUPS] + parameters[_SPREAD] * self._spread
        nodes[:, 1:] = self._lower * np.exp(logs).reshape(self._lower.shape)
        return nodes

    def noise(self, parameters: Floats, precisions: Precisions) -> Floats:
        """(n, groups) noise of each group."""
        return self.nodes(parameters)[np.arange(len(self._layout.groups)), precisions]

    def loss(self, parameters: Floats, precisions: Precisions) -> Floats:
        """(n,) losses."""
        return self.map(parameters).loss(np.maximum(self.noise(parameters, precisions).sum(axis=1), _LEAST_NOISE))

    def linear(self, parameters: Floats, precisions: Precisions) -> tuple[Floats, Floats]:
        """(n,) losses and their (n, parameters) derivatives."""
        each = self.noise(parameters, precisions)
        noise = np.maximum(each.sum(axis=1), _LEAST_NOISE)
        shape = self.map(parameters)
        *by_map, by_noise = shape.slopes(noise)
        share = each * (by_noise / noise)[:, None]
        jacobian = np.zeros((len(precisions), len(parameters)))
        jacobian[:, _MAP] = np.stack(by_map, axis=1)
        by_group = jacobian[:, _GROUPS].reshape(len(precisions), *self._lower.shape)
        for precision in range(1, len(self._layout.palette)):
            by_group[:, :, precision - 1] = share * (precisions == precision)
        jacobian[:, _GROUPS] = by_group.reshape(len(precisions), self._lower.size)
        jacobian[:, _SPREAD] = jacobian[:, _GROUPS] @ self._spread
        return shape.loss(noise), jacobian

    @cached_property
    def pairs(self) -> Pairs:
        """Compares mixes by the pairs of groups that are believed to add noise."""
        return Pairs(self._noise.nodes)

    def fit(self, at: Floats, precisions: Precisions, loss: Floats, std: Floats) -> Fitted:
        """Find the most probable parameters by Gauss-Newton steps, of which none decreases the probability."""
        doubt = self._doubt(self.tuning, loss, std)
        sizes = self.tuning.shared * self._kind.per_noise(self.loss(at, precisions))
        errors = self._errors(sizes, precisions) if self.tuning.shared > 0 else None
        weighing = np.diag(doubt**2) if errors is None else errors + np.diag(doubt**2)
        shared = None if errors is None else SharedErrors(errors)

        def cost(at: Floats) -> float:
            missed = loss - self.loss(at, precisions)
            fits = (
                (missed / doubt) @ (missed / doubt) if errors is None else missed @ solve_covariance(weighing, missed)
            )
            return float(fits + (((at - self.prior.mean) / self.prior.std) ** 2).sum())

        now = cost(at)
        for _ in range(_STEPS):
            here = self._around(at, precisions, loss, doubt)
            # Losses that no map explains, as some below zero, would drive the map's parameters to infinity.
            aimed = np.clip(Posterior(self.prior, here.jacobian, here.target, doubt, shared).mean, *self._bounds)
            steps = (at + size * (aimed - at) for size in _STEP_SIZES)
            better = next(((tried, less) for tried in steps if (less := cost(tried)) < now), None)
            if better is None:
                break
            before, (at, now) = now, better
            if before - now < _CONVERGED * (1 + now):
                break
        optimum = self._around(at, precisions, loss, doubt)
        if errors is None:
            return optimum
        return replace(optimum, errors=errors, sizes=sizes, weights=solve_covariance(weighing, loss - optimum.expected))

    def _errors(self, sizes: Floats, precisions: Precisions) -> Floats:
        """(n, n) covariance of the errors that rows share, of (n,) standard deviations."""
        return np.asarray(self.pairs.between(precisions, precisions) * np.outer(sizes, sizes))

    def _around(self, at: Floats, precisions: Precisions, loss: Floats, doubt: Floats) -> Fitted:
        losses, jacobian = self.linear(at, precisions)
        return Fitted(at, jacobian, loss - losses + jacobian @ at, doubt, precisions, losses)

    def share_errors(self, fitted: Fitted, loss: Floats, std: Floats) -> LossProblem:
        """The problem with pairs of groups if they predict held-out rows better, otherwise unchanged."""
        chosen = np.unique(np.linspace(0, len(loss) - 1, _TUNED_ROWS).astype(int))
        residual = (fitted.target - fitted.jacobian @ self.prior.mean)[chosen]
        scaled = fitted.jacobian[chosen] * self.prior.std
        among, precisions = scaled @ scaled.T, fitted.precisions[chosen]

        def score(t: LossTuning, errors: Floats) -> float:
            doubt = self._doubt(t, loss, std)[chosen]
            return len(chosen) * log_held_out(among + errors + np.diag(doubt**2), residual)

        best, most = self.tuning, score(self.tuning, np.zeros_like(among)) + _EARNED
        sizes = self._kind.per_noise(fitted.expected[chosen])
        errors = self._errors(sizes, precisions)
        for shared in _SHARED:
            for misfit in {_MISFITS[0], self.tuning.misfit}:
                tried = replace(self.tuning, misfit=misfit, shared=shared)
                log_density = score(tried, shared**2 * errors)
                best, most = (tried, log_density) if log_density > most else (best, most)
        return LossProblem(self._layout, self._noise, best, self._worst, self._kind)

    def tune(self, rough: Fitted, loss: Floats, std: Floats) -> LossProblem:
        """The problem with the likeliest hyperparameters around a first fit, with a penalty for unusual ones."""
        residual = rough.target - rough.jacobian @ self.prior.mean
        scaled = rough.jacobian * self.prior.std
        groups = scaled[:, _NOISE] @ scaled[:, _NOISE].T
        rest = scaled @ scaled.T - groups

        def score(t: LossTuning) -> float:
            gram = rest + t.groups**2 * groups + np.diag(self._doubt(t, loss, std) ** 2)
            return log_evidence(gram, residual) - 0.5 * float(np.log(t.misfit / LossTuning.misfit) ** 2)

        best = max((replace(self.tuning, groups=scale) for scale in _SCALES), key=score)
        best = max((replace(best, misfit=misfit) for misfit in _MISFITS), key=score)
        return LossProblem(self._layout, self._noise, best, self._worst, self._kind)

    def _doubt(self, tuning: LossTuning, loss: Floats, std: Floats) -> Floats:
        """(n,) standard deviations of measured losses around the model.

        The model has no negative losses. A loss that is negative beyond chance counts as a deviation of its size.
        """
        beyond = np.maximum(-loss - 3 * std, 0.0)
        return np.asarray(np.sqrt(std**2 + (tuning.misfit * self._kind.per_noise(loss)) ** 2 + beyond**2))
