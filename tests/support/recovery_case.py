"""One network with its samples, on which recovery is run as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration import activations
from evaluators.data import Dataset, batches
from evaluators.data.opening import open_data
from evaluators.lowering.placement import Placement
from evaluators.metrics.registry import get_metric
from evaluators.recovery.recover import Budget, CalibrationSamples, Subject, recover
from evaluators.recovery.step import RecoveryStep
from search.graph.model import Model, load
from search.space.rules import KeepRule
from search.values import Ranges, RecoveryRecord
from tests.support.command_line import three_layers
from tests.support.evaluator_jobs import float_labels
from tests.support.networks import images, save, with_uneven_channels

SAMPLES = 72


@dataclass
class Final:
    """Samples as final split."""

    dataset: Dataset
    batch: int
    opened: int = 0

    @property
    def count(self) -> int:
        return len(self.dataset)

    def open(self, count: int) -> Any:
        self.opened = max(self.opened, count)
        return nullcontext(batches(self.dataset, np.arange(count), self.batch))

    def clusters(self, count: int) -> NDArray[np.int64] | None:
        return None


class Case:
    """One network, whose samples for calibration are also the final split unless that has its own.

    Args:
        garbage: samples for calibration that are noise of a hundred times the amplitude.
        uneven: whether channels are, so that INT8 is poor.
        method: of calibration.
        placement: None for the backend's own.
        final: samples of a final split of its own, without garbage; with labels, which are what FP32 says.
    """

    def __init__(
        self,
        folder: Path,
        garbage: int = 0,
        uneven: bool = True,
        metric: str = "mse",
        method: str = "minmax",
        placement: Placement | None = None,
        final: int = 0,
    ) -> None:
        network = three_layers()
        if uneven:
            network = with_uneven_channels(network, "first", "second")
        model = load(save(network, folder / "model.onnx"))
        shown = images(SAMPLES, shape=model.inputs[0].shape[1:])
        if garbage:
            places = np.random.default_rng(2).permutation(SAMPLES)[:garbage]
            shown[places] = 100 * np.random.default_rng(1).standard_normal(shown[places].shape)
        _write(folder / "data.npz", network, model, shown, labelled=bool(final))
        if final:
            own = images(final, seed=1, shape=model.inputs[0].shape[1:])
            _write(folder / "final.npz", network, model, own, labelled=True)
        self.backend = OnnxRuntimeBackend("cpu")
        dataset = open_data(str(folder / "data.npz"), model.inputs)
        scored = open_data(str(folder / "final.npz"), model.inputs) if final else dataset
        indices = np.arange(SAMPLES)
        self.ranges = activations.collect(model, dataset, indices, method)
        self.subject = Subject(
            model=model,
            capability=self.backend.capability(),
            placement=placement or self.backend.placement,
            metric=get_metric(metric),
            samples=CalibrationSamples(dataset, indices),
            final=Final(scored, model.batch),
            method=method,
        )

    def recover(
        self,
        steps: Sequence[RecoveryStep],
        option: str = "auto",
        seconds: float = 3600.0,
        keep: Sequence[KeepRule] = (),
    ) -> tuple[Ranges, RecoveryRecord]:
        emulator = Emulator(self.backend, self.subject.placement)
        return recover(
            replace(self.subject, keep=keep),
            emulator,
            option,
            steps,
            self.ranges,
            budget=Budget(seconds),
            done=lambda done, total: None,
            alive=lambda: None,
        )


def _write(path: Path, network: onnx.ModelProto, model: Model, shown: NDArray[np.float32], *, labelled: bool) -> None:
    labels = {"labels": float_labels(network, model, shown)} if labelled else {}
    np.savez(path, image=shown, **labels)
