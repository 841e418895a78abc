"""What trying a candidate is worth: hypervolume or loss that it is expected to gain, under uncertain predictions.

Latency counts on a log scale and both objectives are minimised. The expected hypervolume improvement is that of
Emmerich et al., "Single- and multiobjective evolutionary optimization assisted by Gaussian random field metamodels"
(2006), here averaged over draws of the predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SLOWER, _WORSE = 1.02, 1.05
_DRAWS = 64


@dataclass(frozen=True)
class Reference:
    """The corner that hypervolume is measured from: log milliseconds, and loss in the metric's unit."""

    log_ms: float
    loss: float


def reference(uniform_ms: Floats, uniform_loss: Floats, resolution: float) -> Reference:
    """1.02 × the slowest and 1.05 × the worst loss of the uniform assignments.

    Args:
        resolution: loss that cannot be told from none; the corner is at least that far from zero.
    """
    worst = max(_WORSE * float(np.max(uniform_loss)), resolution)
    return Reference(float(np.log(_SLOWER * np.max(uniform_ms))), worst)


def front(log_ms: Floats, loss: Floats) -> NDArray[np.int64]:
    """Places of the points that no other dominates, by rising latency; of equal points the first."""
    order = np.lexsort((loss, log_ms))
    best = np.minimum.accumulate(np.concatenate([[np.inf], loss[order][:-1]]))
    return np.asarray(order[loss[order] < best])


def gains(log_ms: Floats, loss: Floats, front_log_ms: Floats, front_loss: Floats, corner: Reference) -> Floats:
    """Hypervolume that each of many single points adds to a front.

    Args:
        log_ms, loss: of the points, any one shape.
        front_log_ms, front_loss: (k,) of a front, by rising latency.

    Returns:
        An array of that shape, 0 for what the front or the corner dominates.
    """
    starts = np.concatenate([[-np.inf], front_log_ms])
    ends = np.minimum(np.concatenate([front_log_ms, [corner.log_ms]]), corner.log_ms)
    heights = np.minimum(np.concatenate([[corner.loss], front_loss]), corner.loss)
    total = np.zeros(np.broadcast(log_ms, loss).shape)
    for start, end, height in zip(starts, ends, heights, strict=True):
        total += np.maximum(end - np.maximum(start, log_ms), 0) * np.maximum(height - loss, 0)
    return total


@dataclass(frozen=True)
class Forecast:
    """Predictions of n candidates: mean and standard deviation of latency in ms and of loss, (n,) each."""

    ms: Floats
    ms_std: Floats
    loss: Floats
    loss_std: Floats

    def draws(self, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """(n, count) log milliseconds and losses, the same random numbers for every candidate."""
        z = rng.standard_normal((2, 1, count))
        relative = self.ms_std / np.maximum(self.ms, 1e-12)
        log_ms = np.log(np.maximum(self.ms, 1e-12))[:, None] + relative[:, None] * z[0]
        return log_ms, self.loss[:, None] + self.loss_std[:, None] * z[1]


def expected_gains(
    forecast: Forecast, front_log_ms: Floats, front_loss: Floats, corner: Reference, rng: np.random.Generator
) -> Floats:
    """(n,) expected hypervolume improvement of each candidate."""
    log_ms, loss = forecast.draws(_DRAWS, rng)
    return np.asarray(gains(log_ms, np.maximum(loss, 0), front_log_ms, front_loss, corner).mean(axis=1))


def expected_improvements(
    forecast: Forecast, budget_ms: float, best_loss: float, rng: np.random.Generator, least: float = 0.0
) -> Floats:
    """(n,) expected reduction of the least loss within a latency budget, chance of keeping the budget included.

    Args:
        best_loss: the least loss so far within the budget; a large number where there is none.
        least: reduction that cannot be told from none.
    """
    log_ms, loss = forecast.draws(_DRAWS, rng)
    gained = np.maximum(best_loss - np.maximum(loss, 0) - least, 0)
    return np.asarray((gained * (log_ms <= np.log(budget_ms))).mean(axis=1))


def expected_speedups(forecast: Forecast, max_loss: float, best_log_ms: float, rng: np.random.Generator) -> Floats:
    """(n,) expected reduction of the least log latency within an allowed loss, chance of keeping it included."""
    log_ms, loss = forecast.draws(_DRAWS, rng)
    return np.asarray((np.maximum(best_log_ms - log_ms, 0) * (loss <= max_loss)).mean(axis=1))
