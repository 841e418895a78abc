"""How much measurements of one assignment differ: estimated from rows where they say enough, else as chosen here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

REBUILD_SD = 0.006
"""Relative standard deviation of the latency between two builds of one assignment. Chosen, not fitted: on the H200
three builds of a uniform engine stayed within 1 %, two once differed by 2.1 %."""
SAMPLES = 1000
_CHURN, _ALWAYS = 0.5, 0.001
_ENOUGH = 10
_Z95 = 1.96

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """The noise of one network's measurements.

    Attributes:
        latency_sd: relative standard deviation of the latency between builds.
        samples: that a loss is the mean of.
        churn, always: answers gained are always + churn · loss, and answers lost are as many and the loss.
        own: share of the samples whose answers are each assignment's own luck. The others' luck is that of the samples,
            which are the same for all assignments of a study.
        repeated: builds beyond the first of an assignment that `latency_sd` is estimated from; 0 where it is chosen.
    """

    latency_sd: float = REBUILD_SD
    samples: int = SAMPLES
    churn: float = _CHURN
    always: float = _ALWAYS
    own: float = 1.0
    repeated: int = 0

    def differences(self, loss: float, rng: np.random.Generator, shared: np.random.Generator) -> Floats:
        """(samples,) lost (1), gained (−1) and unchanged (0) answers whose expected mean is the loss; none of FP32.

        Args:
            rng: of the assignment; `shared`: of the study, and in the same state for all its assignments.
        """
        gained = self.churn * loss + self.always if loss > 0 else 0.0
        gained = min(gained, (1.0 - loss) / 2)
        luck, kept = shared.random((2, self.samples))
        luck = np.where(kept < self.own, rng.random(self.samples), luck)
        return np.asarray(np.where(luck < loss + gained, 1.0, np.where(luck > 1.0 - gained, -1.0, 0.0)))


def estimated(rows: Sequence[Mapping[str, Any]], latency_ms: Floats) -> Noise:
    """From rows of measured engines.

    Args:
        latency_ms: (n,) of the rows, as they would be on one GPU.
    """
    sd, repeated = _between_builds([row["a"] for row in rows], latency_ms)
    whole = [row for row in rows if row.get("samples", 0) and row["samples"] == row.get("total")]
    samples = int(np.median([row["samples"] for row in whole])) if whole else SAMPLES
    churn, always = _churn(whole, samples)
    return Noise(sd, samples, churn, always, repeated=repeated)


def _between_builds(names: Sequence[str], latency_ms: Floats) -> tuple[float, int]:
    """Pooled standard deviation of the logarithm among rows of one assignment."""
    squares, freedom = 0.0, 0
    for name in {name for name in names if names.count(name) > 1}:
        logs = np.log(latency_ms[[other == name for other in names]])
        squares += float(((logs - logs.mean()) ** 2).sum())
        freedom += len(logs) - 1
    return ((squares / freedom) ** 0.5, freedom) if freedom >= _ENOUGH else (REBUILD_SD, 0)


def _churn(rows: Sequence[Mapping[str, Any]], samples: int) -> tuple[float, float]:
    """Answers that change either way follow from a paired interval: n · sd² = lost + gained + 1 / n − loss²."""
    loss = np.array([row["loss"] for row in rows])
    sd = np.array([(row["loss_high"] - row["loss_low"]) / 2 / _Z95 for row in rows])
    some = loss > 0
    if some.sum() < _ENOUGH:
        return _CHURN, _ALWAYS
    from scipy.optimize import nnls

    gained = np.maximum((samples * sd[some] ** 2 - 1 / samples + loss[some] ** 2 - loss[some]) / 2, 0.0)
    (churn, always), _ = nnls(np.stack([loss[some], np.ones(some.sum())], axis=1), gained)
    return float(churn), float(always)
