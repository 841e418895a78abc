"""The goal of a search, and the gain that a candidate is expected to bring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.forecast import acquisition
from search.forecast.acquisition import Forecast, Reference

_NOTHING = 0.01  # of the resolution: an expected gain that is none
_DRAWS = 64

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Aim:
    """Limits that a recommended mix must keep; None for no limit.

    Attributes:
        budget_ms: the largest allowed latency.
        max_loss: the largest allowed loss.
    """

    budget_ms: float | None = None
    max_loss: float | None = None

    @property
    def limited(self) -> bool:
        return self.budget_ms is not None or self.max_loss is not None


@dataclass(frozen=True)
class Known:
    """Log milliseconds and loss of every trial that counts, (n,) each, and the reference of gains.

    Attributes:
        log_ms_std, loss_std: (n,) standard deviations of their true values.
        resolution: the smallest difference of loss that can be measured.
        log_resolution: the same for log milliseconds.
    """

    log_ms: Floats
    loss: Floats
    log_ms_std: Floats
    loss_std: Floats
    corner: Reference
    resolution: float
    log_resolution: float

    def front(self) -> tuple[Floats, Floats]:
        kept = acquisition.front(self.log_ms, self.loss)
        return self.log_ms[kept], self.loss[kept]

    def within(self, aim: Aim) -> Reference:
        """The reference point, moved to the limits plus the smallest measurable difference.

        Nothing beyond them is worth a trial. The point is not moved if no measured mix lies within.
        """
        log_ms, loss = self.corner.log_ms, self.corner.loss
        if aim.budget_ms is not None:
            log_ms = min(log_ms, float(np.log(aim.budget_ms)) + self.log_resolution)
        if aim.max_loss is not None:
            loss = min(loss, aim.max_loss + self.resolution)
        reached = bool(np.any((self.log_ms <= log_ms) & (self.loss <= loss)))
        return Reference(log_ms, loss) if reached else self.corner


def worth(aim: Aim, forecast: Forecast, known: Known, rng: np.random.Generator) -> Floats | None:
    """(n,) expected gain of each candidate at the limits; None if nothing can be gained there.

    Because measurements are noisy, it is uncertain which trials keep a limit. The gain is averaged over draws of that.
    This is the noisy expected improvement of Letham et al., "Constrained Bayesian Optimization with Noisy Experiments",
    Bayesian Analysis 14 (2019), with draws only for the limited quantity. If no trial keeps the limit in any draw, the
    candidate that is most likely to keep it gains most.
    """
    if aim.budget_ms is not None:
        kept = _kept(known.log_ms, known.log_ms_std, float(np.log(aim.budget_ms)), rng)
        bests, shares = _bests(known.loss, kept, known.corner.loss)
        bests, least = bests - known.resolution / 8, known.resolution
    else:
        assert aim.max_loss is not None
        kept = _kept(known.loss, known.loss_std, aim.max_loss, rng)
        bests, shares = _bests(known.log_ms, kept, known.corner.log_ms)
        least = known.log_resolution
    if not len(bests):
        return _gains(aim, forecast, None, known.corner)
    found = np.asarray(shares @ np.array([_gains(aim, forecast, float(best), known.corner) for best in bests]))
    return found if found.max(initial=0.0) > _NOTHING * least else None


def _gains(aim: Aim, forecast: Forecast, best: float | None, corner: Reference) -> Floats:
    """(n,) expected gains over the best trial that keeps the limit; None if none does."""
    if aim.budget_ms is not None:
        return acquisition.expected_improvements(forecast, aim.budget_ms, best, corner.loss)
    assert aim.max_loss is not None
    return acquisition.expected_speedups(forecast, aim.max_loss, best, corner.log_ms)


def _kept(mean: Floats, std: Floats, limit: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(draws, n) whether each trial keeps a limit."""
    return np.asarray(mean + std * rng.standard_normal((_DRAWS, len(mean))) <= limit)


def _bests(values: Floats, kept: NDArray[np.bool_], most: float) -> tuple[Floats, Floats]:
    """The distinct least values over draws with their shares; none if no draw keeps the limit.

    Args:
        most: the value for a draw in which no trial keeps the limit.
    """
    if not kept.any():
        return np.zeros(0), np.zeros(0)
    found, counts = np.unique(np.where(kept, values, most).min(axis=1), return_counts=True)
    return found, counts / len(kept)
