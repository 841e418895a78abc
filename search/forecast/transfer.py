"""Transfer of evaluations of the same network from another target to this one.

Losses are transferred nearly unchanged, because noise is a property of the network and the rounding. Latencies are
transferred as weak priors of groups and of changes of precision, scaled by the uniform engines of both targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from search.forecast.acquisition import front
from search.forecast.history import MeasuredMixes
from search.forecast.latency_model import fit_latency
from search.forecast.priors import Baseline, LatencyPrior
from search.space.layout import Costs, Layout, Precisions

Floats = NDArray[np.float64]

MOST_ROWS = 80  # of another target, half of them its front: each is a row more for the models to fit
_LEAST_ROWS = 8  # below, the other target says nothing of changes that its own prior did not say
_TIME_STD = 0.4  # relative, of a group's time that was scaled from another target; between timed and not timed
_CHANGE_STD = 0.5  # the same of the factor on what changes cost, as if a profile had timed them
# Relative to a loss: where INT8 is rounded alike, so that only samples and kernels differ, and where not.
_LOSS_STD, _OTHER_LOSS_STD = 0.1, 0.5
_MOST_FACTOR = 4.0  # on what changes cost: a larger one more likely comes from few measurements than from the device


@dataclass(frozen=True)
class Losses:
    """Losses from another target: (n, groups) int8, (n,) losses and their (n,) standard deviations on this target."""

    precisions: Precisions
    loss: Floats
    std: Floats

    @classmethod
    def none(cls, groups: int) -> Losses:
        return cls(np.empty((0, groups), np.int8), np.empty(0), np.empty(0))


@dataclass(frozen=True)
class Elsewhere(MeasuredMixes):
    """Evaluations on another target that were scored on all samples, in the order of this target's groups.

    Attributes:
        prior: the prior of latency from the baselines of that target.
        alike: whether precisions round in the same way on both targets.
    """

    prior: LatencyPrior
    alike: bool

    def losses(self) -> Losses:
        """Further rows for the loss model."""
        doubt = (_LOSS_STD if self.alike else _OTHER_LOSS_STD) * np.maximum(self.loss, 0.0)
        return Losses(self.precisions, self.loss, np.sqrt(self.loss_std**2 + doubt**2))

    def worth(self) -> Elsewhere:
        """The front and the last rows, as many as models can be fitted to quickly."""
        best = front(np.log(self.ms), self.loss)[-MOST_ROWS // 2 :]
        rest = [row for row in range(len(self.ms) - 1, -1, -1) if row not in set(best)]
        kept = np.sort(np.array([*best, *rest[: MOST_ROWS - len(best)]], dtype=np.int64))
        return replace(self, **{each.name: getattr(self, each.name)[kept] for each in fields(MeasuredMixes)})


def transfer_prior(
    layout: Layout, own: LatencyPrior, baselines: Sequence[Baseline], elsewhere: Elsewhere
) -> LatencyPrior:
    """The prior of latency on this target, improved by another target.

    Args:
        own: the prior from the baselines of this target.
        baselines: the engines measured on this target, at least one.
    """
    model = fit_latency(layout, elsewhere.prior, elsewhere.precisions, elsewhere.ms, elsewhere.spread, sums_alone=True)
    costs = model.mean()
    scale = _scale(layout, costs, baselines)
    nodes, std = _nodes(own, costs.nodes * scale, elsewhere.precisions)
    heard = replace(own, nodes=nodes, nodes_std=std)
    if not len(own.constant) or len(elsewhere.ms) < _LEAST_ROWS:
        return heard
    factor, change_std = _changes(own, costs, scale)
    return replace(
        heard, constant=own.constant * factor, moved=own.moved * factor[:, None, None], change_std=change_std
    )


def _scale(layout: Layout, costs: Costs, baselines: Sequence[Baseline]) -> Floats:
    """(precisions,) ratio of times of this target to the other, from the engine that is mostly in each precision."""
    ratios = np.array(
        [b.latency_ms / max(float(layout.values(costs, b.precisions[None])[0]), 1e-12) for b in baselines]
    )
    ratios = np.maximum(ratios, 1e-12)
    usual = float(np.exp(np.log(ratios).mean()))
    places = range(len(layout.palette))
    shares = np.array([[float(np.mean(b.precisions == p)) for p in places] for b in baselines])
    best = shares.argmax(axis=0)
    return np.array([ratios[best[p]] if shares[best[p], p] >= 0.5 else usual for p in places])


def _nodes(own: LatencyPrior, scaled: Floats, precisions: Precisions) -> tuple[Floats, Floats]:
    """Times of groups and their standard deviations: the mean of both priors, weighted by their precision."""
    scaled = np.maximum(scaled, 0.0)
    typical = own.nodes.mean(axis=0)
    theirs = _TIME_STD * np.sqrt(scaled**2 + (0.5 * typical) ** 2)
    # What no engine there ran says nothing.
    ran = np.stack([(precisions == p).any(axis=0) for p in range(scaled.shape[1])], axis=1)
    trust = np.where(ran, 1 / theirs**2, 0.0)
    mine = 1 / np.maximum(own.nodes_std, 1e-12) ** 2
    return (mine * own.nodes + trust * scaled) / (mine + trust), np.sqrt(1 / (mine + trust))


def _changes(own: LatencyPrior, costs: Costs, scale: Floats) -> tuple[Floats, float]:
    """(edges,) factors on the cost of changes, and their standard deviations."""
    pair = np.sqrt(scale[:, None] * scale[None])
    theirs = np.maximum(costs.edges * pair, 0.0).sum(axis=(1, 2))
    mine = own.changes().sum(axis=(1, 2))
    ratio = np.clip(theirs / np.maximum(mine, 1e-12), 1 / _MOST_FACTOR, _MOST_FACTOR)
    weight = own.change_std**2 / (own.change_std**2 + _CHANGE_STD**2)
    return ratio**weight, float(np.sqrt(1 / (own.change_std**-2 + _CHANGE_STD**-2)))
