"""Half a Gaussian process, half boosted trees: two models that err in different ways, fitted to the same rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay import gaussian, trees
from benchmarks.replay.gaussian import GaussianProcess, Weights
from benchmarks.replay.trees import Boosted
from benchmarks.replay.trend import Totals
from search.space.layout import Precisions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Blend:
    """The mean of both."""

    process: GaussianProcess
    boosted: Boosted

    @property
    def parts(self) -> tuple[Blend, GaussianProcess, Boosted]:
        """Itself, and either half."""
        return self, self.process, self.boosted

    def predict(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,)."""
        return np.asarray((self.process.predict(precisions) + self.boosted.predict(precisions)) / 2)


def fit(precisions: Precisions, values: Floats, sds: Floats, trend: Totals, weights: Floats | None = None) -> Blend:
    """Fit both to (n,) values.

    Args:
        sds: (n,) known standard deviations.
        weights: of the process, flat, to spare the time of learning them.
    """
    edges, groups = trend.layout.edges, len(trend.layout.groups)
    start = None if weights is None else Weights(weights, groups, len(edges))
    steps = gaussian.STEPS if weights is None else 0
    process = gaussian.fit(precisions, values, sds, edges, trend, start, steps)
    return Blend(process, trees.fit(precisions, values, sds, trend))
