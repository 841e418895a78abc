"""Latency = base + groups + edges where the precision changes, by Bayesian linear regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search.errors import SurrogateError
from search.forecast.priors import LatencyPrior
from search.forecast.regression import Posterior, Prior, log_evidence
from search.space.layout import Costs, Layout, Precisions

Floats = NDArray[np.float64]

_EDGE_STD = 0.35  # of one edge, relative to what its pair of precisions and size say
_LEAST_TUNED = 8  # the prior was made from the baselines, which therefore agree with it too well
_TUNED_ROWS = 120
_NOISES = (0.4, 0.55, 0.75, 1.0, 1.4, 2.0, 3.0, 5.0, 8.0)  # of the usual one
_SCALES = (0.6, 1.0, 1.6, 2.5)
_RANGE_OF_THREE = 1.693  # expected, in standard deviations of a Gaussian


@dataclass(frozen=True)
class Tuning:
    """What the evidence of the rows decides: relative noise, and factors on prior standard deviations."""

    noise: float = 0.01
    nodes: float = 1.0
    edges: float = 1.0


class LatencyModel:
    """A posterior over the costs of a layout, in milliseconds.

    Attributes:
        repeat_std: what measurements of one assignment differ by, relative.
        noise_std: milliseconds that a measurement of a typical row differs from any additive model of it.
        rows: how many evaluations it was fitted to.
    """

    def __init__(
        self, design: Design, posterior: Posterior, tuning: Tuning, repeat_std: float, typical_ms: float, rows: int
    ) -> None:
        self._design = design
        self._posterior = posterior
        self.tuning = tuning
        self.repeat_std = repeat_std
        self.noise_std = tuning.noise * typical_ms
        self.rows = rows

    def mean(self) -> Costs:
        """Expected costs; `Layout.values` of them are the predicted means."""
        return self._design.costs(self._posterior.mean)

    def draw(self, rng: np.random.Generator) -> Costs:
        """Costs from the posterior, for Thompson sampling.

        A change of precision is not drawn below zero, nor below its mean where that is negative: a solver would change
        everywhere to collect what no engine gives. The mean itself may be negative, here and in what is predicted:
        rows have said so then, as where one end alone falls out of a slow fused region.
        """
        drawn, mean = self._design.costs(self._posterior.draw(rng)), self.mean()
        return Costs(drawn.base, drawn.nodes, np.maximum(drawn.edges, np.minimum(mean.edges, 0.0)))

    def predict(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """(n, groups) int8 to (n,) milliseconds and the (n,) standard deviations of what would be measured."""
        return self._predicted(precisions, self.tuning.noise)

    def latent(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """(n, groups) int8 to (n,) milliseconds and the (n,) standard deviations of what they really are.

        What costs do not explain is noise of measuring only up to `repeat_std`; the rest is each assignment's own.
        """
        return self._predicted(precisions, float(np.sqrt(max(self.tuning.noise**2 - self.repeat_std**2, 0.0))))

    def _predicted(self, precisions: Precisions, noise: float) -> tuple[Floats, Floats]:
        features = self._design.features(precisions)
        mean = np.asarray(features @ self._posterior.mean)
        return mean, np.hypot(self._posterior.std(features), noise * mean)


def repeat_std(band: float | None, spread: Floats) -> float:
    """Relative standard deviation of measurements of one assignment.

    Args:
        band: the study's tie band: the range of about three such measurements. None until it is measured; then what the
            samples of the typical one spread by stands in.
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
) -> LatencyModel:
    """Fit to all finished evaluations of one target.

    The noise, and how far groups and edges may be from their priors, are those under which the rows are likeliest.

    Args:
        precisions: (n, groups) int8; n may be 0, then the prior stands.
        latency_ms: (n,) float64 > 0.
        spread: (n,) float64 relative spread of each row's samples: rows that spread more than the typical one count
            less.
        repeat: relative standard deviation of measurements of one assignment: the noise is not less.

    Raises:
        SurrogateError: arrays of other shapes, latencies that are no positive numbers.
    """
    check_rows(layout, precisions, latency_ms, "latency")
    if not (latency_ms > 0).all():
        raise SurrogateError("fitting latency: expected latencies above 0 ms; hand in finished evaluations only.")
    design = Design(layout, prior)
    features = design.features(precisions)
    doubt = latency_ms * _weights(spread, len(latency_ms))
    tuning = _tuned(design, features, latency_ms, doubt, repeat)
    posterior = Posterior(design.prior(tuning), features, latency_ms, tuning.noise * doubt)
    typical = float(np.median(latency_ms)) if len(latency_ms) else float(prior.nodes.sum(axis=0).min())
    return LatencyModel(design, posterior, tuning, repeat, typical, len(latency_ms))


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
    """Coefficients of the linear model, all in milliseconds or factors of them.

    In this order: base; groups × precisions; for every ordered pair of precisions a factor on what changes cost by
    count, then one on what they cost by size; for every edge a factor on what its changes cost.
    """

    def __init__(self, layout: Layout, prior: LatencyPrior) -> None:
        self.layout = layout
        self._prior = prior
        self._changes = prior.changes()
        self._count = prior.nodes.shape[1]
        pairs = self._count**2
        sizes = np.cumsum([1, prior.nodes.size, pairs, pairs, len(layout.edges)])
        self.base, self.nodes, self.counts, self.moves, self.edges = (
            slice(start, end) for start, end in zip([0, *sizes[:-1]], sizes, strict=True)
        )
        self.size = int(sizes[-1])

    def prior(self, tuning: Tuning) -> Prior:
        """Beliefs about the coefficients."""
        mean, std = np.zeros((2, self.size))
        mean[self.nodes] = self._prior.nodes.ravel()
        mean[self.counts] = mean[self.moves] = 1.0
        std[self.base] = self._prior.base_std
        std[self.nodes] = tuning.nodes * self._prior.nodes_std.ravel()
        std[self.counts] = std[self.moves] = self._prior.change_std
        std[self.edges] = tuning.edges * _EDGE_STD
        return Prior(mean, std)

    def features(self, precisions: Precisions) -> Floats:
        """(n, groups) int8 to (n, coefficients) float64."""
        rows, groups = precisions.shape
        found = np.zeros((rows, self.size))
        found[:, self.base] = 1.0
        row, place = np.arange(rows)[:, None], np.arange(groups)[None]
        found[row, self.nodes.start + place * self._count + precisions] = 1.0
        if not len(self.layout.edges):
            return found
        source, target = (precisions[:, ends] for ends in self.layout.edges.T)
        edge = np.arange(len(self.layout.edges))[None]
        found[:, self.edges] = self._changes[edge, source, target]
        pairs = self._count**2
        pair = row * pairs + source.astype(np.int64) * self._count + target
        changed = source != target
        for part, cost in (
            (self.counts, np.broadcast_to(self._prior.constant, pair.shape)),
            (self.moves, self._prior.moved[edge, source, target]),
        ):
            sums = np.bincount(pair[changed], cost[changed], rows * pairs)
            found[:, part] = sums.reshape(rows, pairs)
        return found

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
    """(n,) noise of each row over that of a typical one."""
    if spread is None or not rows:
        return np.ones(rows)
    known = np.where(np.isfinite(spread), spread, np.nan)
    typical = np.nanmedian(known) if np.isfinite(known).any() else 0.0
    if not typical > 0:
        return np.ones(rows)
    relative = np.nan_to_num(known / typical, nan=1.0)
    return np.asarray(np.sqrt((1 + np.clip(relative, 0.0, 20.0) ** 2) / 2))


def _tuned(design: Design, features: Floats, latency_ms: Floats, doubt: Floats, repeat: float) -> Tuning:
    """The likeliest tuning, one number at a time; numbers far from the usual must earn it."""
    usual = Tuning(noise=max(Tuning.noise, repeat))
    if len(latency_ms) < _LEAST_TUNED:
        return usual
    chosen = np.unique(np.linspace(0, len(latency_ms) - 1, _TUNED_ROWS).astype(int))
    prior = design.prior(Tuning())
    residual = latency_ms[chosen] - features[chosen] @ prior.mean
    scaled = features[chosen] * prior.std
    nodes, edges = (scaled[:, part] @ scaled[:, part].T for part in (design.nodes, design.edges))
    rest = scaled @ scaled.T - nodes - edges

    def score(t: Tuning) -> float:
        gram = rest + t.nodes**2 * nodes + t.edges**2 * edges + np.diag((t.noise * doubt[chosen]) ** 2)
        factors = (t.noise / usual.noise, t.nodes, t.edges)
        return log_evidence(gram, residual) - 0.5 * float(np.sum(np.log(factors) ** 2))

    return _climbed(score, usual, np.unique(np.maximum(usual.noise * np.array(_NOISES), repeat)))


def _climbed(score: Callable[[Tuning], float], best: Tuning, noises: Floats) -> Tuning:
    best = max((replace(best, noise=float(noise)) for noise in noises), key=score)
    best = max((replace(best, nodes=scale) for scale in _SCALES), key=score)
    best = max((replace(best, edges=scale) for scale in _SCALES), key=score)
    # Few rows say little about noise, and the likeliest is too sure of itself: the mean over all that are likely.
    scores = np.array([score(replace(best, noise=float(noise))) for noise in noises])
    likely = np.exp(scores - scores.max())
    return replace(best, noise=float(np.sqrt(likely @ np.square(noises) / likely.sum())))
