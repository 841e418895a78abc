"""The candidates of the picks, and the meaning of the pick `best` under given limits.

Row numbers index the columns of one target's evaluations. A loss is an estimate, and the best of many estimates is
partly luck. So candidates are ranked by how surely each loss keeps the limits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from search.values import Score
from studies.judging.rules.verdicts import quantile
from studies.options.limits import LATENCY_MS, Limits

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Aim(Enum):
    """The meaning of `best`, which depends on the given limits."""

    FASTEST = "the fastest that keeps the limits"
    LEAST_LOSS = "the least loss within the budget"
    KNEE = "the knee of the front"


def aim_of(limits: Limits, *, relative: bool) -> Aim:
    """The meaning of `best` under these limits; `relative` says whether the metric compares with FP32's outputs.

    With only a latency budget, `best` has the least loss within it. A metric relative to FP32 would then prefer the mix
    that changes least, which is slow, so for such metrics `best` is the knee within the budget.
    """
    accuracy = limits.bound_accuracy
    if limits.most(LATENCY_MS) is None:
        return Aim.FASTEST if accuracy else Aim.KNEE
    return Aim.KNEE if relative and not accuracy else Aim.LEAST_LOSS


@dataclass(frozen=True)
class Candidates:
    """The columns of one target's evaluations that picks are chosen by.

    Attributes:
        latency_ms: (n,) the latest latencies.
        loss: (n,) the losses on the search split.
        loss_error: (n,) standard error of the loss.
        loss_band: (n,) half of its 95 % interval.
        margin: (n,) standard errors from the estimate to the nearest accuracy limit; infinite if there is none.
        latency_band: relative tie band of latency.
        eligible: (n,) bool, whether a row keeps all limits by the measurements of the search.
        fails: (n,) bool, whether it misses them on the final split.
        holds: (n,) bool, whether it keeps them there.
        final_margin: (n,) the same as `margin` on the final split; NaN if a row was not scored there.
        on_front: (n,) bool, whether an eligible row is on the front.
        fp32: the row of the uniform FP32 baseline; None if it was not measured.
        floats: the rows of the other uniform baselines that round no weights to codes, the finest first; None for none.
        doubtful: (n,) bool, whether the latency is doubtful; None if none is.
        loss_unit: the loss that counts as 1 in a score, see `search.values.score`.
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
    floats: tuple[int | None, ...] = ()
    doubtful: Bools | None = None
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

    @property
    def contenders(self) -> NDArray[np.intp]:
        """Eligible rows that are faster than uniform FP32 beyond the tie band; where none is, FP32 if it is eligible.

        Where FP32 is not eligible, all that are faster at all, or else all. Another uniform assignment of floats stands
        for what ties with it: it is simpler, and rounds less.
        """
        rows, latency = np.flatnonzero(self.eligible), self.latency_ms
        base = self.fp32
        if base is None or not np.isfinite(latency[base]):
            return rows
        kept = bool(self.eligible[base])
        faster: NDArray[np.intp] = rows[latency[rows] * (1 + self.latency_band * kept) < latency[base]]
        if not len(faster):
            return np.array([base]) if kept else rows
        for row in self.floats:
            if row is not None and row in faster:
                ahead = (latency < latency[row]) & (latency[row] <= latency * (1 + self.latency_band))
                ahead &= self.loss[row] <= self.loss + np.maximum(self.loss_band, self.loss_band[row])
                faster = faster[~(ahead & (np.minimum(self.margin, self.bound) <= self.margin[row]))[faster]]
        return faster

    def latency_ties(self, row: int) -> Bools:
        """(n,) bool: rows that are slower than this one, or as fast, by no more than the tie band."""
        result: Bools = self.latency_ms <= self.latency_ms[row] * (1 + self.latency_band)
        return result

    def favour_row(self, row: int) -> Candidates:
        """These columns if chance in the doubtful latencies was against this row: all it may be as fast as are slower.

        Of two latencies one of which is doubtful the ratio may be off by the tie band.
        """
        assert self.doubtful is not None
        slower = self.doubtful | self.doubtful[row]
        slower[row] = False
        return replace(self, latency_ms=np.where(slower, self.latency_ms * (1 + self.latency_band), self.latency_ms))

    def loss_ties(self, row: int) -> Bools:
        """(n,) bool: rows that lose no more than this one by more than the wider of the two bands."""
        result: Bools = self.loss <= self.loss[row] + np.maximum(self.loss_band, self.loss_band[row])
        return result
