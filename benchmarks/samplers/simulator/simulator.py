"""A network that answers like the measured one, made another way than the models of the guided sampler.

Latency and loss are each half a Gaussian process and half boosted trees, times the exponential of a random function of
pairs and triples of groups. That is as large as the error on held-out rows, and small at the measured ones: what the
rows leave open is filled with what no model expects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator import blend, misfit
from benchmarks.samplers.simulator.blend import Blend, totals
from benchmarks.samplers.simulator.engine_rows import Rows
from benchmarks.samplers.simulator.misfit import Misfit
from benchmarks.samplers.simulator.noise import Noise
from search.space.layout import Precisions
from search.values import digest_of

VERSION = 2  # raise when rows of equal content would give another simulator
MOST_LOSS_MISFIT = 0.5
_LEAST_DOUBT = 0.005
_TO_SD = 1.4826  # from the median of absolute values of a Gaussian to its standard deviation

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HeldOut:
    """Errors on rows left out in ten-fold cross-validation, as they were found once; uniform rows are not counted.

    Those of the loss are on rows that were scored on all images: of the others sampling leaves too little.

    Attributes:
        latency: median of |predicted − measured| / measured; `latency_process` and `latency_trees` of either half.
        latency_rank, loss_rank: Spearman's correlation of predicted and measured.
        loss: median of |predicted − measured|, as a share of one; `loss_process` and `loss_trees` of either half.
        noise: of trained networks, the median error that sampling alone makes in `loss`.
        typical_loss: median of what was measured.
    """

    rows: int
    latency: float
    latency_process: float
    latency_trees: float
    latency_rank: float
    loss: float
    loss_process: float
    loss_trees: float
    loss_rank: float
    noise: float
    typical_loss: float


@dataclass(frozen=True)
class Simulator:
    """Latency in ms and loss as a share of one, without noise, of any assignments.

    Attributes:
        held_out: of latency and error, before the misfit is added.
        misfits: of the logarithms of latency and of loss.
        misfit_sds: how large they are far from every row.
        noise: of measurements.
    """

    rows: Rows
    latency: Blend
    error: Blend
    held_out: HeldOut
    misfits: tuple[Misfit, Misfit]
    misfit_sds: tuple[float, float]
    noise: Noise

    @property
    def digest(self) -> str:
        return digest_of_rows(self.rows)

    def predict(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """(n, groups) precisions to (n,) ms and (n,) loss; never below half the fastest row, and no loss below 0."""
        ms = self.latency.predict(precisions) * np.exp(self.misfits[0](precisions))
        loss = _loss_of(self.rows, self.error, precisions) * np.exp(self.misfits[1](precisions))
        return np.maximum(ms, 0.5 * self.rows.latency_ms.min()), np.minimum(loss, 1.0)

    def output_error(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,) loss above FP32's, before the misfit."""
        return _loss_of(self.rows, self.error, precisions)


def digest_of_rows(rows: Rows, seed: int = 0) -> str:
    """Names the simulator that is made of these rows."""
    judged = {} if rows.whole.all() else {"scored": int(rows.whole.sum())}
    return digest_of({"version": VERSION, "rows": rows.digest, "seed": seed, **judged})


def make(rows: Rows, saved: dict[str, Any], seed: int = 0) -> Simulator:
    """Condition on rows what was learned of them once.

    Args:
        saved: weights of the two Gaussian processes, and the held-out errors, from benchmarks/results.
        seed: of the misfits.
    """
    weights = [np.array(saved[key]) for key in ("latency", "error")]
    trend, nothing = totals(rows), np.zeros(len(rows))
    latency = blend.fit(rows.precisions, rows.latency_ms, nothing, trend, weights[0])
    error = blend.fit(rows.precisions, rows.loss, rows.loss_sd, trend, weights[1])
    held_out = HeldOut(**saved["held_out"])
    sds = sizes(held_out)
    misfits = _of_latency(rows, latency, sds[0], 2 * seed), _of_loss(rows, error, sds[1], 2 * seed + 1)
    return Simulator(rows, latency, error, held_out, misfits, sds, replace(rows.noise, own=own_luck(held_out)))


def sizes(held_out: HeldOut) -> tuple[float, float]:
    """Standard deviations of the misfits of latency and loss: the held-out errors.

    Of the loss less what sampling errs by, which `Noise.own` adds again.
    """
    loss = _TO_SD * max(held_out.loss**2 - held_out.noise**2, 0.0) ** 0.5
    return _TO_SD * held_out.latency, min(loss / max(held_out.typical_loss, 1e-9), MOST_LOSS_MISFIT)


def own_luck(held_out: HeldOut) -> float:
    """What of the sampling error can differ between assignments: no more than is missed of rows that were left out."""
    return min(1.0, (held_out.loss / held_out.noise) ** 2) if held_out.noise > 0 else 1.0


def _of_latency(rows: Rows, fitted: Blend, sd: float, seed: int) -> Misfit:
    missed = np.log(rows.latency_ms / fitted.predict(rows.precisions))
    return misfit.draw(sd, rows.precisions, missed, np.full(len(rows), rows.noise.latency_sd), seed)


def _of_loss(rows: Rows, fitted: Blend, sd: float, seed: int) -> Misfit:
    """Known are the rows whose loss is told from none."""
    expected = _loss_of(rows, fitted, rows.precisions)
    sure = (rows.loss > 2 * rows.loss_sd) & (expected > 0) & (rows.loss > 0)
    relative = rows.loss_sd[sure] / rows.loss[sure]
    missed = np.log(rows.loss[sure] / expected[sure])
    return misfit.draw(sd, rows.precisions[sure], missed, np.maximum(relative, _LEAST_DOUBT), seed)


def _loss_of(rows: Rows, fitted: Blend, precisions: Precisions) -> Floats:
    """(n,) losses, above FP32's."""
    fp32 = rows.precisions[[rows.baselines["fp32"]]]
    return np.maximum(fitted.predict(precisions) - fitted.predict(fp32), 0.0)
