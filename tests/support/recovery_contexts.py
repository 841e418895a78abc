"""What recovery steps work with, for a model and arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulated, Emulator
from evaluators.calibration.activations import collect, collect_clipped
from evaluators.data import Batch, batches
from evaluators.lowering.placement import ONNXRUNTIME_CPU, Placement
from evaluators.recovery.context import RecoveryContext
from search.graph.model import Model
from search.values import Assignment, Precision

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ArrayDataset:
    """Samples in memory, without labels."""

    arrays: Arrays
    digest: str = "0" * 64
    has_labels: bool = False
    clusters: None = None
    forms: None = None

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batch(self, indices: NDArray[np.int64]) -> tuple[dict[str, NDArray[Any]], None]:
        return {name: array[indices] for name, array in self.arrays.items()}, None

    def labels(self, indices: NDArray[np.int64]) -> None:
        return None


def context_for(
    model: Model,
    fitting: Arrays,
    held_out: Arrays | None = None,
    *,
    placement: Placement = ONNXRUNTIME_CPU,
    seconds: float = 600,
) -> RecoveryContext:
    """All INT8 where groups are free, on ONNX Runtime's CPU provider, calibrated by minmax.

    Args:
        held_out: None for the fitting samples.
        seconds: that are left, at any time.
    """
    fit, other = ArrayDataset(fitting), ArrayDataset(fitting if held_out is None else held_out)

    def read(dataset: ArrayDataset) -> Iterator[Batch]:
        return batches(dataset, np.arange(len(dataset)), model.batch)

    everything = np.arange(len(fit))

    return RecoveryContext(
        given=model,
        placement=placement,
        assignment=Assignment({g.id: Precision.FP32 if g.pinned else Precision.INT8 for g in model.groups}),
        emulator=Emulator(OnnxRuntimeBackend("cpu"), placement),
        fitting=lambda: read(fit),
        held_out=lambda: read(other),
        calibrate_model=lambda scaled, method=None: collect(scaled, fit, everything, method or "minmax"),
        clip_model=lambda scaled, *wanted: collect_clipped(scaled, fit, everything, *wanted),
        seconds_left=lambda: seconds,
        alive=lambda: None,
    )


def run_over(emulated: Emulated, context: RecoveryContext) -> dict[str, NDArray[Any]]:
    """All outputs on the held-out samples."""
    runs = [(emulated.run(batch.inputs), batch.count) for batch in context.held_out()]
    return {name: np.concatenate([arrays[name][:count] for arrays, count in runs]) for name in emulated.outputs}
