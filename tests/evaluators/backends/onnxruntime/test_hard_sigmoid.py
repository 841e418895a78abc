"""HardSigmoid between INT8 layers runs in INT8, as a sum of codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, ONNXRUNTIME_CPU_SYMMETRIC, Placement
from search.graph.model import Model, load
from search.values import Precision, TensorRange
from tests.support.assignments import uniform
from tests.support.networks import Net, feeds, observed, plain_session, save, sqnr_db

HARD = {"HardSigmoid"}


def gated(gate: dict[str, float]) -> onnx.ModelProto:
    """Convolution, Relu, squeeze-and-excite with a HardSigmoid, convolution."""
    net = Net(5)
    x = net.op("Relu", [net.conv("image", "first", 3, 8)], "relu")
    pooled = net.op("GlobalAveragePool", [x], "pool")
    scale = net.op("HardSigmoid", [net.conv(pooled, "expand", 8, 8, 1)], "gate", **gate)
    net.conv(net.op("Mul", [x, scale], "scaled"), "last", 8, 8)
    return net.model([2, 3, 12, 12], "y", [2, 8, 12, 12])


def run(model: Model, placement: Placement, folder: Path) -> tuple[set[str], float, float]:
    """Kinds of the kernels of all INT8, and its SQNR in dB to what the file says and to the float model."""
    backend = OnnxRuntimeBackend()
    lowered = ir.to_proto(lower(model, uniform(model, Precision.INT8), observed(model), placement))
    onnx.checker.check_model(lowered)
    options, batch = backend.device.session_options(), feeds(model, seed=5)
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    session = backend.device.ort.InferenceSession(
        lowered.SerializeToString(), options, providers=backend.device.providers()
    )
    found = session.run(None, batch)[0]
    kinds = {node.op_type for node in onnx.load(str(folder / "optimized.onnx")).graph.node}
    said, exact = (plain_session(proto).run(None, batch)[0] for proto in (lowered, ir.to_proto(model.graph)))
    return kinds, sqnr_db(said, found), sqnr_db(exact, found)


def test_it_is_an_int8_kernel_that_computes_what_the_file_says(tmp_path: Path) -> None:
    model = load(save(gated({"alpha": 0.2, "beta": 0.5}), tmp_path / "m.onnx"))
    kinds, to_file, to_float = run(model, ONNXRUNTIME_CPU, tmp_path)
    assert {"QLinearAdd", "QLinearMul", "QLinearGlobalAveragePool"} <= kinds
    assert not {*HARD, "Mul"} & kinds
    assert to_file > 25
    in_floats = replace(ONNXRUNTIME_CPU, followers=ONNXRUNTIME_CPU.followers - HARD)
    kinds, _, expected = run(model, in_floats, tmp_path)
    assert "HardSigmoid" in kinds
    assert to_float > expected - 1


@pytest.mark.parametrize("gate", [TensorRange(0.0, 0.0), TensorRange(-6.0, 6.0)])
def test_it_opens_to_one_and_no_further_whatever_range_it_was_given(gate: TensorRange, tmp_path: Path) -> None:
    model = load(save(gated({"alpha": 4.0, "beta": 8.0}), tmp_path / "m.onnx"))
    ranges = observed(model)
    found = replace(ranges, tensors={**ranges.tensors, "gate_out": gate})
    said, exact = (
        plain_session(ir.to_proto(lower(model, uniform(model, Precision.INT8), found, placement))).run(
            None, feeds(model, seed=5)
        )[0]
        for placement in (ONNXRUNTIME_CPU, replace(ONNXRUNTIME_CPU, followers=ONNXRUNTIME_CPU.followers - HARD))
    )
    assert sqnr_db(exact, said) > 20


@pytest.mark.parametrize("gate", [{"alpha": -0.2, "beta": 0.5}, {"alpha": 0.2, "beta": -0.1}])
def test_a_gate_that_is_no_such_sum_stays_in_floats(gate: dict[str, float], tmp_path: Path) -> None:
    kinds, _, _ = run(load(save(gated(gate), tmp_path / "m.onnx")), ONNXRUNTIME_CPU, tmp_path)
    assert "HardSigmoid" in kinds


def test_symmetric_activations_do_not_clip_and_keep_them_in_floats(tmp_path: Path) -> None:
    model = load(save(gated({"alpha": 0.2, "beta": 0.5}), tmp_path / "m.onnx"))
    kinds, _, _ = run(model, ONNXRUNTIME_CPU_SYMMETRIC, tmp_path)
    assert "HardSigmoid" in kinds
