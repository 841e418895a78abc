"""The costs of single changes of an assignment, for many changes at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.space.layout import Costs, Layout, Precisions

_STEPS = 30


class Changes:
    """Single changes of decisions under a latency and a noise.

    Args:
        latency, noise: costs; lower is better.
    """

    def __init__(self, layout: Layout, latency: Costs, noise: Costs) -> None:
        self._layout = layout
        self._latency = latency
        self._noise = noise
        sizes = layout.entries.sizes
        self._decision = np.repeat(np.arange(len(sizes)), sizes)
        self._code = np.arange(len(self._decision)) - layout.entries.starts[self._decision]

    def given_back(self, codes: NDArray[np.int64], slack: float) -> NDArray[np.int64]:
        """(decisions,) codes after the changes that reduce noise most and keep the latency within `slack`."""
        codes = codes.copy()
        left = slack
        for _ in range(_STEPS):
            precisions = self._layout.precisions(codes[None])[0]
            slower = self.by_change(self._latency, precisions)
            quieter = -self.by_change(self._noise, precisions)
            allowed = (slower <= left) & (quieter > 0) & (self._code != codes[self._decision])
            if not allowed.any():
                break
            best = int(np.argmax(np.where(allowed, quieter, -np.inf)))
            left -= float(slower[best])
            codes[self._decision[best]] = self._code[best]
        return codes

    def gains(self, weights: tuple[float, float], precisions: Precisions) -> NDArray[np.float64]:
        """(decisions,) gain of the best change of each decision alone, in a weighted sum of latency and noise."""
        changed = weights[0] * self.by_change(self._latency, precisions)
        changed = changed + weights[1] * self.by_change(self._noise, precisions)
        starts = self._layout.entries.starts
        return np.maximum(-np.minimum.reduceat(changed, starts), 0.0) if len(starts) else np.zeros(0)

    def by_change(self, costs: Costs, precisions: Precisions) -> NDArray[np.float64]:
        """The change of a cost by every change of one decision to one code.

        It is exact for decisions about one group. For a block, edges inside it count as if only one end changed.
        """
        return self._layout.entries.sum_groups(self.by_group(costs, precisions))

    def by_group(self, costs: Costs, precisions: Precisions) -> NDArray[np.float64]:
        """(groups, precisions) change of a cost by changing one group alone."""
        groups = np.arange(len(precisions))
        total = costs.nodes - costs.nodes[groups, precisions][:, None]
        if costs.edges.any():
            edges, (sources, targets) = np.arange(len(self._layout.edges)), self._layout.edges.T
            now = costs.edges[edges, precisions[sources], precisions[targets]][:, None]
            added = [costs.edges[edges, :, precisions[targets]] - now, costs.edges[edges, precisions[sources], :] - now]
            size = total.shape[1]
            places = self._layout.edges.T.ravel()[:, None] * size + np.arange(size)
            total = total + np.bincount(places.ravel(), np.concatenate(added).ravel(), total.size).reshape(total.shape)
        return np.asarray(total)
