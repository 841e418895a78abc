"""Latency = base + groups + edges where the precision changes, by Bayesian linear regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.errors import SurrogateError
from search.forecast.priors import LatencyPrior
from search.forecast.region_costs import RegionCosts
from search.regression.posterior import Posterior, Prior, SharedErrors, log_evidence, log_held_out
from search.regression.similarity import KINDS, MOST_SHARING, Kind, KnownMixes, Similarity
from search.space.layout import Costs, Layout, Precisions

Floats = NDArray[np.float64]

# Of one edge, relative to what its pair of precisions and size say. Wide, because a compiler may fuse a change or not.
_EDGE_STD = 0.35
_LEAST_TUNED = 8  # rows: the prior was made from the baselines, which therefore agree with it too well
# Mixes from which on forecasts count as no more certain than they proved to be. They are too few to tune the fit by: in
# a made-up world of 22 groups that took 5 points of the share after 8 trials.
_LEAST_JUDGED = 2
_TUNED_ROWS = 120  # that noise and scales are chosen by, spread over all: the choice takes a fit for each
_NOISES = (0.4, 0.55, 0.75, 1.0, 1.4, 2.0, 3.0, 5.0, 8.0)  # of the usual one; held-out forecasts choose
_SCALES = (0.6, 1.0, 1.6, 2.5)  # of the standard deviations of the prior; held-out forecasts choose
_SHARED = (1.0, 2.0, 4.0)  # size of errors that mixes share, over the noise; held-out forecasts choose
_OWN_SHARES = (1.0, 0.5)  # of the noise that is left where mixes share errors; held-out forecasts choose
# Nats that shared errors must add to the held-out forecasts of all rows. Chance alone adds some half a nat for each
# parameter that is fitted, so the model without them stays unless it is clearly worse.
_EARNED = 2.0
_RANGE_OF_THREE = 1.693  # expected, in standard deviations of a Gaussian


@dataclass(frozen=True)
class LatencyTuning:
    """Hyperparameters fitted to the rows: relative noise, factors on prior standard deviations, and shared errors.

    Attributes:
        shared: the relative size of the errors that similar mixes share, for a `kind` of similarity; 0 if none.
    """

    noise: float = 0.01
    nodes: float = 1.0
    edges: float = 1.0
    shared: float = 0.0
    kind: Kind = KINDS[0]


class LatencyModel:
    """A posterior over the costs of a layout, in milliseconds.

    Attributes:
        repeat_std: the relative standard deviation of repeated measurements of one assignment.
        noise_std: the standard deviation, in milliseconds, of a typical measurement around an additive model.
        rows: the number of evaluations that it was fitted to.
    """

    def __init__(
        self,
        design: Design,
        posterior: Posterior,
        tuning: LatencyTuning,
        repeat_std: float,
        rows: Precisions,
        ms: Floats,
    ) -> None:
        self._design = design
        self._posterior = posterior
        self._known = rows
        self._shared_ms = tuning.shared * design.typical(ms)
        self.tuning = tuning
        self.repeat_std = repeat_std
        self.noise_std = tuning.noise * design.typical(ms)
        self.rows = len(rows)

    @property
    def regions(self) -> RegionCosts:
        """The extra time that mixed regions are expected to take."""
        return self._design.regions

    def predict_mean(self, precisions: Precisions) -> Floats:
        """Predict (n,) milliseconds of (n, groups) int8: the sum of costs, mixed regions and shared errors."""
        total = self._design.layout.values(self.mean(), precisions)
        total = total + self._design.regions.features(precisions) @ self._posterior.mean[self._design.mixed]
        if self.tuning.shared > 0 and self.rows:
            weights = self._shared_ms**2 * self._posterior.error_weights
            total = total + self._known_mixes.weigh(precisions, weights)
        return np.asarray(total)

    @cached_property
    def _known_mixes(self) -> KnownMixes:
        return KnownMixes(self._design.similarity(self.tuning.kind), self._known)

    def mean(self) -> Costs:
        """Expected costs; `Layout.values` of them are the predicted means."""
        return self._design.costs(self._posterior.mean)

    def draw(self, rng: np.random.Generator) -> Costs:
        """Costs from the posterior, for Thompson sampling.

        The cost of mixed regions is not part of these costs; it is kept at its mean.
        The cost of a change of precision is not drawn below zero, nor below its mean if that is negative. Otherwise a
        solver would change precisions everywhere to collect savings that no engine gives. The mean may be negative,
        for example if one group alone leaves a slow fused region.
        """
        drawn, mean = self._design.costs(self._within_regions.draw(rng)), self.mean()
        return Costs(drawn.base, drawn.nodes, np.maximum(drawn.edges, np.minimum(mean.edges, 0.0)))

    @cached_property
    def _within_regions(self) -> Posterior:
        """The posterior given the factors of mixed regions."""
        prior, held = self._posterior.prior, self._design.mixed
        mean, std = prior.mean.copy(), prior.std.copy()
        mean[held], std[held] = self._posterior.mean[held], 0.0
        return self._posterior.under(Prior(mean, std))

    def predict(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """Predict measurements: (n, groups) int8 to (n,) milliseconds and their (n,) standard deviations."""
        return self._predict(precisions, self.tuning.noise)

    def predict_latent(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """Predict true latencies: (n, groups) int8 to (n,) milliseconds and their (n,) standard deviations.

        Of the deviation from the costs, `repeat_std` is noise of the measurement; the rest belongs to the assignment.
        """
        return self._predict(precisions, float(np.sqrt(max(self.tuning.noise**2 - self.repeat_std**2, 0.0))))

    def _predict(self, precisions: Precisions, noise: float) -> tuple[Floats, Floats]:
        features = self._design.features(precisions)
        mean = np.asarray(features @ self._posterior.mean)
        if not self.tuning.shared > 0 or not self.rows:
            return mean, np.hypot(self._posterior.std(features), noise * mean)
        across = self._shared_ms**2 * self._known_mixes.between(precisions)
        std = self._posterior.std(features, across, np.full(len(precisions), self._shared_ms**2))
        mean = mean + across @ self._posterior.error_weights
        return mean, np.hypot(std, noise * mean)


def repeat_std(band: float | None, spread: Floats) -> float:
    """Estimate the relative standard deviation of repeated measurements of one assignment.

    Args:
        band: the study's tie band, which is the range of about three such measurements. While it is None, the spread
            of the samples of a typical measurement is used instead.
        spread: (n,) relative spread of each row's samples.
    """
    if band is not None:
        return band / _RANGE_OF_THREE
    known = spread[np.isfinite(spread)]
    return float(np.median(known)) if len(known) else 0.0


def fit_latency(
    layout: Layout,
    prior: LatencyPrior,
    precisions: Precisions,
    latency_ms: Floats,
    spread: Floats | None = None,
    repeat: float = 0.0,
    sums_alone: bool = False,
) -> LatencyModel:
    """Fit to all finished evaluations of one target.

    The hyperparameters, which are the noise and the widths of the priors, are those of maximum likelihood.

    Args:
        precisions: (n, groups) int8. With n = 0 the model is the prior.
        latency_ms: (n,) float64 > 0.
        spread: (n,) float64 relative spread of each row's samples. Rows with a larger spread than usual count less.
        repeat: relative standard deviation of repeated measurements of one assignment, a lower bound of the noise.
        sums_alone: whether only costs of groups and edges are used, without regions and shared errors.

    Raises:
        SurrogateError: an array has a wrong shape, or a latency is not a positive number.
    """
    check_rows(layout, precisions, latency_ms, "latency")
    if not (latency_ms > 0).all():
        raise SurrogateError("fitting latency: expected latencies above 0 ms; hand in finished evaluations only.")
    design = Design(layout, prior, sums_alone)
    features = design.features(precisions)
    doubt = latency_ms * _weights(spread, len(latency_ms))
    usual = LatencyTuning(noise=max(LatencyTuning.noise, repeat))
    tuning = judged = _tune(design, features, latency_ms, doubt, usual, repeat)
    if len(latency_ms) < _LEAST_TUNED:
        tuning, judged = usual, replace(usual, noise=max(usual.noise, judged.noise))
    if _LEAST_TUNED <= len(latency_ms) <= MOST_SHARING and not sums_alone:
        tuning = judged = _tune_shared(design, precisions, features, latency_ms, doubt, tuning, repeat)
    posterior = Posterior(
        design.prior(tuning),
        features,
        latency_ms,
        tuning.noise * doubt,
        SharedErrors(_errors(design, tuning, precisions, latency_ms)) if tuning.shared > 0 else None,
    )
    return LatencyModel(design, posterior, judged, repeat, precisions, latency_ms)


def check_rows(layout: Layout, precisions: Precisions, values: Floats, what: str) -> None:
    """Raise SurrogateError unless there is one row of precisions per finite value."""
    expected = (len(values), len(layout.groups))
    if precisions.shape != expected:
        raise SurrogateError(f"fitting {what}: expected precisions of shape {expected}, got {precisions.shape}.")
    if not np.isfinite(values).all():
        bad = int(np.flatnonzero(~np.isfinite(values))[0])
        raise SurrogateError(
            f"fitting {what}: row {bad} is {values[bad]}. Failed evaluations have no {what}; leave them out."
        )
    if precisions.size and (precisions.min() < 0 or precisions.max() >= len(layout.palette)):
        raise SurrogateError(f"fitting {what}: expected precisions from 0 to {len(layout.palette) - 1}.")


class Design:
    """The coefficients of the linear model, in milliseconds or as factors of milliseconds.

    Their order is: the base; groups × precisions; for every ordered pair of precisions a factor for the constant cost
    of a change, then one for its cost by size; for every edge a factor for its changes; factors for mixed regions.
    """

    def __init__(self, layout: Layout, prior: LatencyPrior, sums_alone: bool = False) -> None:
        self.layout = layout
        self._sums_alone = sums_alone
        self._prior = prior
        self._changes = prior.changes()
        self._count = prior.nodes.shape[1]
        pairs = self._count**2
        self.regions = RegionCosts(layout, prior.nodes, prior.opaque, prior.broken)
        sizes = np.cumsum([1, prior.nodes.size, pairs, pairs, len(layout.edges), self.regions.size])
        self.base, self.nodes, self.counts, self.moves, self.edges, self.mixed = (
            slice(start, end) for start, end in zip([0, *sizes[:-1]], sizes, strict=True)
        )
        self.size = int(sizes[-1])

    def prior(self, tuning: LatencyTuning) -> Prior:
        """The prior of the coefficients."""
        mean, std = np.zeros((2, self.size))
        mean[self.nodes] = self._prior.nodes.ravel()
        mean[self.counts] = mean[self.moves] = 1.0
        std[self.base] = self._prior.base_std
        std[self.nodes] = tuning.nodes * self._prior.nodes_std.ravel()
        std[self.counts] = std[self.moves] = self._prior.change_std
        std[self.edges] = tuning.edges * _EDGE_STD
        if not self._sums_alone:
            mean[self.mixed], std[self.mixed] = self.regions.beliefs
        return Prior(mean, std)

    def similarity(self, kind: Kind) -> Similarity:
        """How alike mixes are, by the time that groups can change."""
        return Similarity.of(self.layout, self._prior.nodes, kind)

    def typical(self, latency_ms: Floats) -> float:
        """Milliseconds of a typical row; without rows, of the fastest uniform engine."""
        return float(np.median(latency_ms)) if len(latency_ms) else float(self._prior.nodes.sum(axis=0).min())

    def features(self, precisions: Precisions) -> Floats:
        """(n, groups) int8 to (n, coefficients) float64."""
        rows, groups = precisions.shape
        features = np.zeros((rows, self.size))
        features[:, self.base] = 1.0
        row, place = np.arange(rows)[:, None], np.arange(groups)[None]
        features[row, self.nodes.start + place * self._count + precisions] = 1.0
        features[:, self.mixed] = self.regions.features(precisions)
        if not len(self.layout.edges):
            return features
        source, target = (precisions[:, ends] for ends in self.layout.edges.T)
        edge = np.arange(len(self.layout.edges))[None]
        features[:, self.edges] = self._changes[edge, source, target]
        pairs = self._count**2
        pair = row * pairs + source.astype(np.int64) * self._count + target
        changed = source != target
        for part, cost in (
            (self.counts, np.broadcast_to(self._prior.constant, pair.shape)),
            (self.moves, self._prior.moved[edge, source, target]),
        ):
            sums = np.bincount(pair[changed], cost[changed], rows * pairs)
            features[:, part] = sums.reshape(rows, pairs)
        return features

    def costs(self, coefficients: Floats) -> Costs:
        """Coefficients as costs of the layout."""
        square = (self._count, self._count)
        counts, moves = coefficients[self.counts].reshape(square), coefficients[self.moves].reshape(square)
        edges = self._prior.constant[:, None, None] * counts + self._prior.moved * moves
        edges = edges + coefficients[self.edges][:, None, None] * self._changes
        edges[:, np.arange(self._count), np.arange(self._count)] = 0.0
        nodes = coefficients[self.nodes].reshape(self._prior.nodes.shape)
        return Costs(float(coefficients[0]), nodes.copy(), edges)


def _weights(spread: Floats | None, rows: int) -> Floats:
    """(n,) noise of each row relative to that of a typical row."""
    if spread is None or not rows:
        return np.ones(rows)
    known = np.where(np.isfinite(spread), spread, np.nan)
    typical = np.nanmedian(known) if np.isfinite(known).any() else 0.0
    if not typical > 0:
        return np.ones(rows)
    relative = np.nan_to_num(known / typical, nan=1.0)
    return np.asarray(np.sqrt((1 + np.clip(relative, 0.0, 20.0) ** 2) / 2))


def _tune(
    design: Design, features: Floats, latency_ms: Floats, doubt: Floats, usual: LatencyTuning, repeat: float
) -> LatencyTuning:
    """Maximize the likelihood over one hyperparameter at a time, with a penalty for unusual values."""
    if len(latency_ms) < len(design.layout.palette) + _LEAST_JUDGED:
        return usual
    chosen = np.unique(np.linspace(0, len(latency_ms) - 1, _TUNED_ROWS).astype(int))
    prior = design.prior(LatencyTuning())
    residual = latency_ms[chosen] - features[chosen] @ prior.mean
    scaled = features[chosen] * prior.std
    nodes, edges = (scaled[:, part] @ scaled[:, part].T for part in (design.nodes, design.edges))
    rest = scaled @ scaled.T - nodes - edges

    def score(t: LatencyTuning) -> float:
        gram = rest + t.nodes**2 * nodes + t.edges**2 * edges + np.diag((t.noise * doubt[chosen]) ** 2)
        factors = (t.noise / usual.noise, t.nodes, t.edges)
        return log_evidence(gram, residual) - 0.5 * float(np.sum(np.log(factors) ** 2))

    return _climb(score, usual, np.unique(np.maximum(usual.noise * np.array(_NOISES), repeat)))


def _climb(score: Callable[[LatencyTuning], float], best: LatencyTuning, noises: Floats) -> LatencyTuning:
    best = max((replace(best, noise=float(noise)) for noise in noises), key=score)
    best = max((replace(best, nodes=scale) for scale in _SCALES), key=score)
    best = max((replace(best, edges=scale) for scale in _SCALES), key=score)
    # Few rows say little about noise, and the likeliest is too sure of itself: the mean over all that are likely.
    scores = np.array([score(replace(best, noise=float(noise))) for noise in noises])
    likely = np.exp(scores - scores.max())
    return replace(best, noise=float(np.sqrt(likely @ np.square(noises) / likely.sum())))


def _errors(design: Design, tuning: LatencyTuning, precisions: Precisions, latency_ms: Floats) -> Floats:
    """(n, n) covariance of the errors that rows share."""
    alike = design.similarity(tuning.kind).between(precisions, precisions)
    return np.asarray((tuning.shared * design.typical(latency_ms)) ** 2 * alike)


def _tune_shared(
    design: Design,
    precisions: Precisions,
    features: Floats,
    latency_ms: Floats,
    doubt: Floats,
    tuning: LatencyTuning,
    repeat: float,
) -> LatencyTuning:
    """Add shared errors to the hyperparameters if that predicts held-out rows better."""
    chosen = np.unique(np.linspace(0, len(latency_ms) - 1, _TUNED_ROWS).astype(int))
    prior = design.prior(tuning)
    scaled = features[chosen] * prior.std
    among, residual = scaled @ scaled.T, latency_ms[chosen] - features[chosen] @ prior.mean

    def score(t: LatencyTuning, errors: Floats) -> float:
        return len(chosen) * log_held_out(among + errors + np.diag((t.noise * doubt[chosen]) ** 2), residual)

    best, most = tuning, score(tuning, np.zeros_like(among)) + _EARNED
    for kind in KINDS:
        alike = _errors(design, replace(tuning, shared=1.0, kind=kind), precisions[chosen], latency_ms[chosen])
        for size in _SHARED:
            for share in _OWN_SHARES:
                noise = max(share * tuning.noise, repeat, 1e-3)
                tried = replace(tuning, noise=noise, shared=size * tuning.noise, kind=kind)
                log_density = score(tried, tried.shared**2 * alike)
                best, most = (tried, log_density) if log_density > most else (best, most)
    return best
