"""Correcting the biases of one mix: fitted to that mix as it runs, on samples that all recovery steps fit to."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration import activations
from evaluators.data.opening import open_data
from evaluators.metrics.registry import get_metric
from evaluators.recovery.recover import Budget, CalibrationSamples, Subject, correct_mix
from search.graph.model import load
from search.values import Assignment, Correction, Precision, Ranges, StepRecord
from tests.support.command_line import three_layers
from tests.support.networks import images, save

SAMPLES = 72
WRONG = {"second": Correction(offset=np.full(8, 5, np.float32))}


class NoFinal:
    """A final split that correcting a mix must not look at."""

    @property
    def count(self) -> int:
        raise AssertionError("the final split was looked at")

    def open(self, count: int) -> AbstractContextManager[Any]:
        raise AssertionError("the final split was looked at")

    def clusters(self, count: int) -> NDArray[np.int64] | None:
        return None


class Case:
    """Three layers, of whose second all INT8 has an offset that is wrong for every mix."""

    def __init__(self, folder: Path) -> None:
        model = load(save(three_layers(), folder / "model.onnx"))
        np.savez(folder / "data.npz", image=images(SAMPLES, shape=model.inputs[0].shape[1:]))
        self.backend = OnnxRuntimeBackend("cpu")
        dataset, indices = open_data(str(folder / "data.npz"), model.inputs), np.arange(SAMPLES)
        plain = activations.collect(model, dataset, indices, "minmax")
        self.ranges = Ranges.from_json({**plain.to_json(), "recovery": plain.recovery.with_means(WRONG).to_json()})
        parts = CalibrationSamples(dataset, indices), NoFinal()
        setting = self.backend.capability(), self.backend.placement, get_metric("mse")
        self.subject = Subject(model, *setting, *parts, "minmax")

    def mix(self, *precisions: Precision) -> Assignment:
        return Assignment({g.id: p for g, p in zip(self.subject.model.groups, precisions, strict=True)})

    def correct(self, mix: Assignment, ranges: Ranges) -> tuple[Ranges, StepRecord]:
        with nullcontext(Emulator(self.backend, self.backend.placement)) as emulator:
            found, record = correct_mix(
                self.subject,
                emulator,
                mix,
                ranges,
                budget=Budget(600),
                done=lambda done, total: None,
                alive=lambda: None,
            )
        [step] = record.steps
        return found, step


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"))


@pytest.mark.parametrize("float_one", [Precision.FP32, Precision.FP16], ids=lambda precision: precision.label)
def test_what_is_wrong_for_a_mix_is_fitted_anew(case: Case, float_one: Precision) -> None:
    mix = case.mix(float_one, Precision.INT8, Precision.INT8)
    found, step = case.correct(mix, case.ranges)
    assert (step.name, step.kept) == ("bias", True)
    assert (step.error_after or 0) < 0.01 * (step.error_before or 0)
    means = found.recovery.means
    assert "first" not in means, "it is in float"
    offset = means["second"].offset if "second" in means else None
    assert offset is None or np.abs(offset).max() < 0.5
    assert found.tensors == case.ranges.tensors


def test_what_the_mix_has_of_its_own_already_does_not_count(case: Case) -> None:
    mix = case.mix(Precision.FP32, Precision.INT8, Precision.INT8)
    found, step = case.correct(mix, case.ranges)
    again, repeated = case.correct(mix, case.ranges.with_mixes({mix.digest: found.recovery.means}))
    assert (again, repeated.error_before) == (found, step.error_before)


def test_a_layer_in_half_precision_is_emulated_in_it(case: Case) -> None:
    _, exact = case.correct(case.mix(*[Precision.FP32] * 3), case.ranges)
    _, half = case.correct(case.mix(*[Precision.FP16] * 3), case.ranges)
    assert exact.error_before is not None
    assert exact.error_before < 1e-11
    assert (half.error_before or 0) > 1e-9
    assert not exact.kept
    assert not half.kept
