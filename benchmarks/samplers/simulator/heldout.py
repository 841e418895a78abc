"""Errors of a simulator on rows that were left out of its fit, and which rows make too poor a simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator import blend, engine_rows
from benchmarks.samplers.simulator.blend import totals
from benchmarks.samplers.simulator.engine_rows import Rows, RowsError

FOLDS = 10
MIN_ROWS = 25
MOST_LATENCY_ERROR = 0.06
LEAST_LATENCY_RANK = LEAST_LOSS_RANK = 0.7  # rows that searches made are much alike
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


def cross_validate(rows: Rows) -> HeldOut:
    """Ten-fold, everything learned anew in every fold."""
    # Rows of one assignment stay together, or one would give the other away.
    places: dict[bytes, int] = {}
    same = np.array([places.setdefault(row.tobytes(), len(places)) for row in rows.precisions])
    folds = (np.random.default_rng(0).permutation(len(places)) % FOLDS)[same]
    ms, error, loss = np.empty((3, 3, len(rows)))  # of the blend, the process, the trees
    for fold in range(FOLDS):
        kept, left = folds != fold, folds == fold
        data, trend, unseen = rows.precisions[kept], totals(rows), rows.precisions[left]
        latency = blend.fit(data, rows.latency_ms[kept], np.zeros(kept.sum()), trend)
        of_error = blend.fit(data, rows.error[kept], rows.error_sd[kept], trend)
        for i, (of_latency, of_loss) in enumerate(zip(latency.parts, of_error.parts, strict=True)):
            ms[i, left], error[i, left] = of_latency.predict(unseen), of_loss.predict(unseen)
            loss[i, left] = loss_of(rows, of_loss, unseen)
    mixed = np.setdiff1d(np.arange(len(rows)), list(rows.baselines.values()))
    scored, true = mixed[rows.whole[mixed]], losses(rows)
    from scipy.stats import spearmanr  # a second to import, and only this function needs it

    missed_ms, missed = np.abs(ms / rows.latency_ms - 1)[:, mixed], np.abs(loss - true)[:, scored]
    by_latency, by_loss = np.median(missed_ms, axis=1), np.median(missed, axis=1)
    return HeldOut(
        rows=len(rows),
        **dict(zip(("latency", "latency_process", "latency_trees"), by_latency.tolist(), strict=True)),
        latency_rank=float(spearmanr(ms[0, mixed], rows.latency_ms[mixed])[0]),
        **dict(zip(("loss", "loss_process", "loss_trees"), by_loss.tolist(), strict=True)),
        loss_rank=float(spearmanr(error[0, scored], rows.error[scored])[0]),
        noise=float(np.median(rows.error_sd[scored]) / TO_SD),
        typical_loss=float(np.median(true[scored])),
    )


def check_rows(rows: Rows) -> None:
    """Raise RowsError when there is too little to simulate."""
    if len(rows) < MIN_ROWS:
        raise RowsError(f"simulating {rows.name}: needs at least {MIN_ROWS} rows, got {len(rows)}. Measure more.")
    worst = max(rows.baselines.values(), key=lambda place: rows.error[place])
    if rows.error[worst] <= rows.error_sd[worst]:
        raise RowsError(
            f"simulating {rows.name}: no uniform assignment loses anything ({100 * rows.error[worst]:.2f} ± "
            f"{196 * rows.error_sd[worst]:.2f} points at most), so there is no front to find. "
            "Measure a network that loses accuracy in INT8."
        )


def check_errors(name: str, found: HeldOut) -> None:
    """Raise RowsError when held-out errors are too large."""
    poor = []
    if not found.latency <= MOST_LATENCY_ERROR:
        poor.append(f"latency is wrong by {found.latency:.1%} (at most {MOST_LATENCY_ERROR:.0%})")
    if not found.latency_rank >= LEAST_LATENCY_RANK:
        poor.append(f"latencies correlate by {found.latency_rank:.2f} (at least {LEAST_LATENCY_RANK})")
    if not found.loss_rank >= LEAST_LOSS_RANK:
        poor.append(f"losses correlate by {found.loss_rank:.2f} (at least {LEAST_LOSS_RANK})")
    if poor:
        what = "; ".join(poor)
        raise RowsError(f"simulating {name}: too poor on held-out rows of {found.rows}: {what}. Measure more rows.")


def losses(rows: Rows) -> Floats:
    """(n,) of the rows: measured, or made from the output error."""
    return rows.error if rows.trained else engine_rows.synthetic_loss(rows.error, int8_error(rows))


def int8_error(rows: Rows) -> float:
    return float(rows.error[rows.baselines["int8"]])


def excess(rows: Rows, model: Model, precisions: NDArray[np.int8]) -> Floats:
    """(n,) what the loss is made from, above FP32's."""
    fp32 = rows.precisions[[rows.baselines["fp32"]]]
    return np.maximum(model.predict(precisions) - model.predict(fp32), 0.0)


def loss_of(rows: Rows, model: Model, precisions: NDArray[np.int8]) -> Floats:
    """(n,) losses."""
    found = excess(rows, model, precisions)
    return found if rows.trained else engine_rows.synthetic_loss(found, int8_error(rows))
