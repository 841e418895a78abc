"""All evaluations of one target as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.store.records.detail_columns import DetailColumn, Details


@dataclass(frozen=True)
class EvaluationTable:
    """Every evaluation of one target as columns of equal length, in order of id.

    Floats are float64 with NaN for what was not reached; integers int64 with -1 for it; texts empty for it.
    A `DetailColumn` is read when it is asked for, and then is as it is stored at that moment; `details` reads those of
    several rows at once. `trial` is the lowest Optuna number that the evaluation answers; `moves` are those of the
    engine's summary.
    `latency_ms` is derived from `raw_ms` and `baseline_ms`, see `evaluators.measure.latency_scale`; `doubts` counts
    what is doubtful in that measurement by itself. `loss_upper` is the first of the loss's bounds, see `Accuracy`.
    Not columns are `reference_ms`, what the baseline usually takes,
    None on targets without one; `again`, all that was measured again; and `revision`, how often results of the target
    had been stored when this was read.
    """

    id: NDArray[np.int64]
    trial: DetailColumn
    digest: DetailColumn
    status: NDArray[np.str_]
    stage: DetailColumn
    kind: DetailColumn
    role: NDArray[np.str_]
    artifact: DetailColumn
    latency_ms: NDArray[np.float64]
    raw_ms: NDArray[np.float64]
    baseline_ms: NDArray[np.float64]
    spread: DetailColumn
    doubts: NDArray[np.int64]
    metric_value: NDArray[np.float64]
    loss: NDArray[np.float64]
    loss_low: NDArray[np.float64]
    loss_high: NDArray[np.float64]
    loss_upper: NDArray[np.float64]
    samples: NDArray[np.int64]
    total_samples: NDArray[np.int64]
    resemblance: NDArray[np.float64]
    size_bytes: DetailColumn
    memory_bytes: NDArray[np.int64]
    build_s: DetailColumn
    total_s: DetailColumn
    attempts: DetailColumn
    not_obeyed: NDArray[np.int64]
    opaque: DetailColumn
    moves: DetailColumn
    details: Details
    again: RoundTable
    reference_ms: float | None = None
    revision: int = 0

    def __len__(self) -> int:
        return len(self.id)

    def only(self, rows: NDArray[np.bool_]) -> EvaluationTable:
        """Some of the rows."""
        if rows.all():
            return self
        columns = {n: value[rows] for n, value in vars(self).items() if isinstance(value, np.ndarray)}
        details = {n: value.only(rows) for n, value in vars(self).items() if isinstance(value, DetailColumn)}
        changed: dict[str, Any] = {**columns, **details}
        return replace(self, **changed)


@dataclass(frozen=True)
class RoundTable:
    """What was measured again on one target, as columns in order of evaluation and round, which counts from 1.

    `clean`: nothing is doubtful in the measurement by itself.
    """

    evaluation_id: NDArray[np.int64]
    number: NDArray[np.int64]
    raw_ms: NDArray[np.float64]
    baseline_ms: NDArray[np.float64]
    clean: NDArray[np.bool_]


@dataclass(frozen=True)
class FinalTable:
    """Scores on the final split, as columns in order of evaluation id; bounds as in `Accuracy`, one tuple per row.

    What could not be scored there has no samples, no numbers (NaN), and says why in `failure`, else empty.
    """

    evaluation_id: NDArray[np.int64]
    value: NDArray[np.float64]
    loss: NDArray[np.float64]
    loss_low: NDArray[np.float64]
    loss_high: NDArray[np.float64]
    samples: NDArray[np.int64]
    total: NDArray[np.int64]
    resemblance: NDArray[np.float64]
    failure: NDArray[np.str_]
    loss_bounds: tuple[tuple[float, ...], ...]
    value_bounds: tuple[tuple[float, ...], ...]

    def __len__(self) -> int:
        return len(self.evaluation_id)
