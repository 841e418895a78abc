"""The candidates of the picks, and the meaning of the pick `best` under given limits.

Row numbers index the columns of one target's evaluations. A loss is an estimate, and the best of many estimates is
partly the luckiest. So candidates are ranked by how surely each loss keeps the limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from search.values import Score
from studies.judging.rules.quantiles import quantile
from studies.options.limits import LATENCY_MS, Limits

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Aim(Enum):
    """What `best` is, by the limits that are given."""

    FASTEST = "the fastest that keeps the limits"
    LEAST_LOSS = "the least loss within the budget"
    KNEE = "the knee of the front"


def aim_of(limits: Limits, *, relative: bool) -> Aim:
    """What `best` is under these limits; `relative` says whether the metric compares with FP32's outputs.

    A budget alone asks for the least loss within it. Metrics relative to FP32 give that to whatever changes least,
    which is slow, so there a budget alone asks for the knee within it.
    """
    accuracy = limits.bound_accuracy
    if limits.most(LATENCY_MS) is None:
        return Aim.FASTEST if accuracy else Aim.KNEE
    return Aim.KNEE if relative and not accuracy else Aim.LEAST_LOSS


@dataclass(frozen=True)
class Candidates:
    """Columns of one target's evaluations, as far as picks are chosen by them.

    Attributes:
        latency_ms: (n,) the latest word on each latency.
        loss: (n,) on the search split.
        loss_error: (n,) standard error of the loss.
        loss_band: (n,) half of its 95 % interval.
        margin: (n,) standard errors from the estimate to the nearest accuracy limit; infinite if there is none.
        latency_band: relative tie band of latency.
        eligible: (n,) bool: keep all limits by what the search measured.
        fails: (n,) bool: do not keep them on the final split.
        holds: (n,) bool: keep them there.
        final_margin: (n,) as `margin`, of the final split; NaN if nothing was scored there.
        on_front: (n,) bool: of the eligible ones.
        fp32: row of the uniform FP32 baseline; None if it was not measured.
        loss_unit: the loss that counts 1 in a score, see `search.values.score`.
    """

    latency_ms: Floats
    loss: Floats
    loss_error: Floats
    loss_band: Floats
    margin: Floats
    latency_band: float
    eligible: Bools
    fails: Bools
    holds: Bools
    final_margin: Floats
    on_front: Bools
    fp32: int | None
    loss_unit: float = 1.0

    def scores(self, score: Score) -> Floats | None:
        """(n,) weighted sum of accuracy and latency; None where uniform FP32 was not measured."""
        if self.fp32 is None or not np.isfinite(self.latency_ms[self.fp32]):
            return None
        return score.of(self.latency_ms, self.loss, float(self.latency_ms[self.fp32]), self.loss_unit)

    def score_noise(self, score: Score, row: int) -> Floats:
        """(n,) how far each may be from this row in score by noise alone, where `scores` gives any."""
        assert self.fp32 is not None
        loss = np.maximum(self.loss_band, self.loss_band[row]) / self.loss_unit
        latency = self.latency_band * self.latency_ms[row] / self.latency_ms[self.fp32]
        return np.asarray(score.accuracy * loss + score.latency * latency)

    @property
    def bound(self) -> float:
        """Standard errors that a loss must keep from a limit to keep it surely: all eligible ones were tried."""
        return quantile(int(self.eligible.sum()))

    @property
    def upper(self) -> Floats:
        """(n,) upper bounds of the losses, which hold together with 95 %."""
        return self.loss + self.bound * self.loss_error

    @property
    def sure(self) -> Bools:
        """(n,) bool: eligible, and the bound keeps the accuracy limits too."""
        result: Bools = self.eligible & (self.margin >= self.bound)
        return result

    def latency_ties(self, row: int) -> Bools:
        """(n,) bool: rows that are slower than this one, or as fast, by no more than the tie band."""
        result: Bools = self.latency_ms <= self.latency_ms[row] * (1 + self.latency_band)
        return result

    def loss_ties(self, row: int) -> Bools:
        """(n,) bool: rows that lose no more than this one by more than the wider of the two bands."""
        result: Bools = self.loss <= self.loss[row] + np.maximum(self.loss_band, self.loss_band[row])
        return result
