"""Half a Gaussian process, half boosted trees: two models that err in different ways, fitted to the same rows.

Both begin with totals of an assignment, so that what no row has is still judged by its like.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator import MEASURED, PRECISIONS, gaussian, trees
from benchmarks.samplers.simulator.engine_rows import Rows
from benchmarks.samplers.simulator.gaussian import GaussianProcess, Weights
from benchmarks.samplers.simulator.trees import Boosted
from search.space.layout import Layout, Precisions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Totals:
    """Totals of an assignment, each divided by its largest.

    Groups in each precision but the first; edges between each pair of precisions, by number and by size of the tensor;
    and the time that the uniform engines' profiles say, where there are some.

    Attributes:
        times: (groups, `PRECISIONS`) ms; zeros where there are no profiles.
    """

    layout: Layout
    times: Floats

    def __call__(self, precisions: Precisions) -> Floats:
        groups, (sources, targets) = len(self.layout.groups), self.layout.edges.T
        features = [(precisions == precision).mean(axis=1) for precision in range(1, PRECISIONS)]
        weights = self.layout.elements / max(self.layout.elements.sum(), 1.0)
        for one, other in combinations(range(PRECISIONS), 2):
            ends = precisions[:, sources], precisions[:, targets]
            changed = ((ends[0] == one) & (ends[1] == other)) | ((ends[0] == other) & (ends[1] == one))
            features += [changed.mean(axis=1), changed @ weights]
        ms = self.times[np.arange(groups), precisions].sum(axis=1)
        return np.stack([*features, ms / (np.max(self.times.sum(axis=0)) or 1.0)], axis=1)


def totals(rows: Rows) -> Totals:
    times = np.zeros((len(rows.layout.groups), PRECISIONS))
    place = {group: i for i, group in enumerate(rows.layout.groups)}
    for precision, layers in rows.profiles.items():
        for layer in layers:
            if layer.group is not None and not layer.moves:
                times[place[layer.group], MEASURED.index(precision)] += layer.ms
    return Totals(rows.layout, times)


@dataclass(frozen=True)
class Blend:
    """The mean of both."""

    process: GaussianProcess
    boosted: Boosted

    def predict(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,)."""
        return np.asarray((self.process.predict(precisions) + self.boosted.predict(precisions)) / 2)


def fit(precisions: Precisions, values: Floats, sds: Floats, trend: Totals, weights: Floats) -> Blend:
    """Fit both to (n,) values.

    Args:
        sds: (n,) known standard deviations.
        weights: of the process, flat.
    """
    edges, groups = trend.layout.edges, len(trend.layout.groups)
    process = gaussian.fit(precisions, values, sds, edges, trend, Weights(weights, groups, len(edges)))
    return Blend(process, trees.fit(precisions, values, sds, trend))
