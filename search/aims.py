"""What a search is for, and what a candidate is worth to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search import acquisition
from search.acquisition import Forecast, Reference

_NOTHING = 0.01  # of the resolution: an expected gain that is none


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
        resolution: loss that cannot be told from none.
        log_resolution: the same of log milliseconds.
    """

    log_ms: NDArray[np.float64]
    loss: NDArray[np.float64]
    corner: Reference
    resolution: float
    log_resolution: float

    def front(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        kept = acquisition.front(self.log_ms, self.loss)
        return self.log_ms[kept], self.loss[kept]


def worth(aim: Aim, forecast: Forecast, known: Known) -> NDArray[np.float64] | None:
    """(n,) what each candidate is expected to gain at the limits; None where nothing is left to gain there.

    While nothing keeps a limit, what is likeliest to keep it is worth most.
    """
    if aim.budget_ms is not None:
        kept = known.log_ms <= np.log(aim.budget_ms)
        best = float(known.loss[kept].min()) - known.resolution / 8 if kept.any() else None
        found, least = (
            acquisition.expected_improvements(forecast, aim.budget_ms, best, known.corner.loss),
            known.resolution,
        )
    else:
        assert aim.max_loss is not None
        kept = known.loss <= aim.max_loss
        best = float(known.log_ms[kept].min()) if kept.any() else None
        found, least = (
            acquisition.expected_speedups(forecast, aim.max_loss, best, known.corner.log_ms),
            known.log_resolution,
        )
    return found if best is None or found.max(initial=0.0) > _NOTHING * least else None
