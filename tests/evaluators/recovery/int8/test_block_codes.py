"""Other precisions than INT8: weights in blocks rounded by second moments, biases of all, and what stays apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration import activations
from evaluators.data.opening import open_data
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from evaluators.metrics.registry import get_metric
from evaluators.recovery.int8.bias import BiasStep
from evaluators.recovery.int8.rounding import RoundStep
from evaluators.recovery.recover import Budget, CalibrationSamples, Subject, recover
from evaluators.recovery.registry import steps_of
from search.graph.model import Model, load
from search.values import REFERENCE, Assignment, Capability, Correction, Precision, Ranges, RecoveryRecord
from tests.support.networks import loaded, observed, row_products, save
from tests.support.recovery_case import Final
from tests.support.recovery_context import context_of, output_error

W4, W8, FP8, INT8 = Precision.W4, Precision.W8, Precision.FP8, Precision.INT8
IN_FP32 = replace(TENSORRT, float_side=REFERENCE)


def in_all(model: Model, precision: Precision) -> Assignment:
    return Assignment({group.id: precision for group in model.groups})


@pytest.mark.parametrize("placement", [ONNXRUNTIME_CPU, TENSORRT], ids=lambda placement: placement.name)
@pytest.mark.parametrize(("precision", "most"), [(W4, 0.8), (W8, 0.9)], ids=["w4", "w8"])
def test_weights_in_blocks_are_rounded_by_the_outputs(precision: Precision, most: float, placement: Placement) -> None:
    model = loaded("row_products")
    ranges = observed(model)
    context = replace(
        context_of(model, placement=placement, batches=300), assignment=in_all(model, precision), precision=precision
    )
    found = RoundStep().propose(context, ranges)
    assert found is not None
    numbers = range(1000, 1040)
    assert output_error(context, found.ranges, numbers) < most * output_error(context, ranges, numbers)
    corrections = found.ranges.recovery.of(precision)
    assert corrections
    assert not found.ranges.recovery.corrections, "those of INT8"
    for each in corrections.values():
        assert each.rounding is None or np.abs(each.rounding).max() == 1
        assert (each.clip is None) is (precision is W8), "of eight bits nothing is cut off"


@pytest.mark.parametrize(
    ("name", "precision", "placement"),
    [("residual", FP8, IN_FP32), ("row_products", W4, ONNXRUNTIME_CPU)],
    ids=["fp8", "w4"],
)
def test_means_are_corrected_in_every_precision(name: str, precision: Precision, placement: Placement) -> None:
    model = loaded(name)
    ranges = observed(model)
    batches = 60 if model.batch == 1 else 6
    context = replace(
        context_of(model, placement=placement, batches=batches),
        assignment=in_all(model, precision),
        precision=precision,
    )
    found = BiasStep().propose(context, ranges)
    assert found is not None
    assert output_error(context, found.ranges) < 0.95 * output_error(context, ranges)


def test_what_one_precision_has_changes_no_other() -> None:
    model = loaded("row_products")
    ranges = observed(model)
    own = {model.groups[0].anchors[0]: Correction(offset=np.ones(128, np.float32))}
    changed = replace(ranges, recovery=ranges.recovery.with_corrections(W4, own))

    def written(precision: Precision, ranges: Ranges) -> bytes:
        return ir.to_proto(lower(model, in_all(model, precision), ranges, ONNXRUNTIME_CPU)).SerializeToString()

    for precision in (INT8, W8, REFERENCE):
        assert written(precision, changed) == written(precision, ranges)
    assert written(W4, changed) != written(W4, ranges)


@pytest.mark.parametrize("with_int8", [True, False])
def test_recovery_tries_each_precision_that_is_offered(tmp_path: Path, with_int8: bool) -> None:
    model = load(save(row_products(), tmp_path / "model.onnx"))
    given = np.random.default_rng(0).standard_normal((600, *model.inputs[0].shape[1:])).astype(np.float32)
    np.savez(tmp_path / "data.npz", image=given)
    data, indices = open_data(str(tmp_path / "data.npz"), model.inputs), np.arange(600)
    backend = OnnxRuntimeBackend("cpu")
    offered = (INT8, W8, W4) if with_int8 else (W8, W4)
    subject = Subject(
        model,
        Capability(dict.fromkeys(offered, frozenset({"Gemm", "MatMul"}))),
        backend.placement,
        get_metric("mse"),
        CalibrationSamples(data, indices),
        Final(data, model.batch),
        "minmax",
    )
    ranges = activations.collect(model, data, indices, "minmax")
    found, record = recover(
        subject,
        Emulator(backend, backend.placement),
        "auto",
        steps_of("auto"),
        ranges,
        budget=Budget(600),
        done=lambda done, total: None,
        alive=lambda: None,
    )
    assert [step.name for step in record.formats] == ["bias of W8", "round of W8", "bias of W4", "round of W4"]
    assert bool(record.steps) is with_int8
    assert (record.plain is None) is not with_int8
    kept = {step.name for step in record.formats if step.kept}
    assert "round of W4" in kept
    assert bool(found.recovery.of(W8)) is any(name.endswith("W8") for name in kept)
    assert RecoveryRecord.from_json(record.to_json()) == record
