"""What a search is for, and what a candidate is worth to it."""

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
    """Limits that a pick must keep; None where there is none.

    Attributes:
        budget_ms: most latency.
        max_loss: most loss.
    """

    budget_ms: float | None = None
    max_loss: float | None = None

    @property
    def limited(self) -> bool:
        return self.budget_ms is not None or self.max_loss is not None


@dataclass(frozen=True)
class Known:
    """Log milliseconds and loss of every trial that counts, (n,) each, and what gains are measured against.

    Attributes:
        log_ms_std, loss_std: (n,) standard deviations of what each really is.
        resolution: loss that cannot be told from none.
        log_resolution: the same of log milliseconds.
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
        """The corner, drawn in to the limits and what cannot be told from them: beyond these nothing is worth a trial.

        As it is where nothing measured lies within, for then nothing need be predicted there either.
        """
        log_ms, loss = self.corner.log_ms, self.corner.loss
        if aim.budget_ms is not None:
            log_ms = min(log_ms, float(np.log(aim.budget_ms)) + self.log_resolution)
        if aim.max_loss is not None:
            loss = min(loss, aim.max_loss + self.resolution)
        reached = bool(np.any((self.log_ms <= log_ms) & (self.loss <= loss)))
        return Reference(log_ms, loss) if reached else self.corner


def worth(aim: Aim, forecast: Forecast, known: Known, rng: np.random.Generator) -> Floats | None:
    """(n,) what each candidate is expected to gain at the limits; None where nothing is left to gain there.

    Which trials keep a limit is as uncertain as their measurements: the gain is averaged over draws of that, the noisy
    expected improvement of Letham et al., "Constrained Bayesian Optimization with Noisy Experiments", Bayesian Analysis
    14 (2019), drawn here for the limited quantity alone. Where nothing keeps the limit in any draw, what is likeliest
    to keep it is worth most.
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
    """(n,) expected gains over the best that keeps the limit; None where nothing does."""
    if aim.budget_ms is not None:
        return acquisition.expected_improvements(forecast, aim.budget_ms, best, corner.loss)
    assert aim.max_loss is not None
    return acquisition.expected_speedups(forecast, aim.max_loss, best, corner.log_ms)


def _kept(mean: Floats, std: Floats, limit: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(draws, n) whether each trial keeps a limit."""
    return np.asarray(mean + std * rng.standard_normal((_DRAWS, len(mean))) <= limit)


def _bests(values: Floats, kept: NDArray[np.bool_], most: float) -> tuple[Floats, Floats]:
    """Distinct least values over draws and their shares; none where no draw keeps anything.

    Args:
        most: stands for the least of a draw that keeps nothing.
    """
    if not kept.any():
        return np.zeros(0), np.zeros(0)
    found, counts = np.unique(np.where(kept, values, most).min(axis=1), return_counts=True)
    return found, counts / len(kept)
