"""Acquisition functions: the improvement that a candidate is expected to bring, under uncertain predictions.

Latency counts on a log scale and both objectives are minimised. The expected hypervolume improvement is that of
Emmerich et al., "Single- and multiobjective evolutionary optimization assisted by Gaussian random field metamodels"
(2006), here averaged over draws of the predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SLOWER, _WORSE = 1.02, 1.05  # beyond the worst uniform assignments, so that these have a volume too
_DRAWS = 64  # of latency and loss, over which a gain of hypervolume is averaged; all candidates have the same


@dataclass(frozen=True)
class Reference:
    """The reference point of the hypervolume: log milliseconds, and loss in the metric's unit."""

    log_ms: float
    loss: float


def reference(uniform_ms: Floats, uniform_loss: Floats, resolution: float) -> Reference:
    """Choose the reference point: 1.02 × the slowest latency and 1.05 × the worst loss of the uniform assignments.

    Args:
        resolution: the smallest loss that can be distinguished from none. The point is at least that far from zero.
    """
    worst = max(_WORSE * float(np.max(uniform_loss)), resolution)
    return Reference(float(np.log(_SLOWER * np.max(uniform_ms))), worst)


def front(log_ms: Floats, loss: Floats) -> NDArray[np.int64]:
    """Indices of the points that no other dominates, by rising latency; of equal points the first."""
    order = np.lexsort((loss, log_ms))
    best = np.minimum.accumulate(np.concatenate([[np.inf], loss[order][:-1]]))
    return np.asarray(order[loss[order] < best])


def volume(log_ms: Floats, loss: Floats, corner: Reference) -> float:
    """The hypervolume of (n,) points up to the corner."""
    kept = front(log_ms, loss)
    starts, ends = log_ms[kept], np.append(log_ms[kept][1:], corner.log_ms)
    widths = np.maximum(np.minimum(ends, corner.log_ms) - starts, 0)
    return float(np.sum(widths * np.maximum(corner.loss - loss[kept], 0)))


def gains(log_ms: Floats, loss: Floats, front_log_ms: Floats, front_loss: Floats, corner: Reference) -> Floats:
    """The hypervolume that each of many single points adds to a front.

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


def expected_improvements(forecast: Forecast, budget_ms: float, best_loss: float | None, most: float) -> Floats:
    """(n,) expected reduction of the least loss within a latency budget, weighted by the chance to keep the budget.

    Args:
        best_loss: the least loss so far within the budget, minus the smallest difference that can be measured. None
            if nothing keeps the budget: then candidates are ordered by their chance to keep it, times the amount by
            which they stay below `most`.
    """
    from scipy.special import log_ndtr

    relative = _deviation(forecast.ms_std / np.maximum(forecast.ms, 1e-12))
    kept = (np.log(budget_ms) - np.log(np.maximum(forecast.ms, 1e-12))) / relative
    gained = _below(most if best_loss is None else best_loss, forecast.loss, _deviation(forecast.loss_std))
    return _weigh_gains(gained, log_ndtr(kept), best_loss is not None)


def expected_speedups(forecast: Forecast, log_kept: Floats, best_log_ms: float | None, most: float) -> Floats:
    """(n,) expected reduction of the least log latency within an allowed loss, weighted by the chance to keep it.

    Args:
        log_kept: (n,) logarithms of these chances.
        best_log_ms: the least so far within the allowed loss; None if nothing keeps it, as above.
    """
    relative = _deviation(forecast.ms_std / np.maximum(forecast.ms, 1e-12))
    log_ms, best = np.log(np.maximum(forecast.ms, 1e-12)), most if best_log_ms is None else best_log_ms
    return _weigh_gains(expected_improvement(best - log_ms, relative), log_kept, best_log_ms is not None)


def _weigh_gains(gained: Floats, log_kept: Floats, absolute: bool) -> Floats:
    """Gains times the chance that a limit is kept; if all chances are tiny, relative to the largest of them."""
    logs = np.log(np.maximum(gained, 1e-300)) + log_kept
    return np.asarray(np.exp(logs if absolute else logs - logs.max(initial=-np.inf)))


def _below(best: float, mean: Floats, std: Floats) -> Floats:
    """(n,) expected max(best − max(X, 0), 0) of Gaussian X."""
    return (
        np.maximum(expected_improvement(best - mean, std) - expected_improvement(-mean, std), 0.0)
        if best > 0
        else 0.0 * mean
    )


def expected_improvement(ahead: Floats, std: Floats) -> Floats:
    """(n,) expected max(Z, 0) of Gaussians around `ahead`."""
    from scipy.special import ndtr

    z = ahead / std
    return np.asarray(np.maximum(ahead * ndtr(z) + std * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi), 0.0))


def _deviation(std: Floats) -> Floats:
    return np.maximum(std, 1e-12)
