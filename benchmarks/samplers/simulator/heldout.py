"""Errors of a simulator on rows that were left out of its fit, as they were found once in ten-fold cross-validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator.engine_rows import Rows

TO_SD = 1.4826  # from the median of absolute values of a Gaussian to its standard deviation

Floats = NDArray[np.float64]


class Model(Protocol):
    def predict(self, precisions: NDArray[np.int8]) -> Floats:
        """(n, groups) precisions to (n,)."""


@dataclass(frozen=True)
class HeldOut:
    """Errors on rows that were left out in ten-fold cross-validation, uniform rows not counted.

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


def loss_of(rows: Rows, model: Model, precisions: NDArray[np.int8]) -> Floats:
    """(n,) losses, above FP32's."""
    fp32 = rows.precisions[[rows.baselines["fp32"]]]
    return np.maximum(model.predict(precisions) - model.predict(fp32), 0.0)
