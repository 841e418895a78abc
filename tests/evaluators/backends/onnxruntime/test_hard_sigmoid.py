"""HardSigmoid and HardSwish between INT8 layers run in INT8, as sums and products of codes, and numbers beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.lowering.lower import Lowered, expose_groups, lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, ONNXRUNTIME_CPU_SYMMETRIC, PAIR_LIMIT, Placement
from search.graph.model import Model, load
from search.values import Precision, Ranges, TensorRange
from tests.support.assignments import uniform
from tests.support.networks import Net, feeds, observed, plain_session, save, sqnr_db

HARD = {"HardSigmoid", "HardSwish"}
FLOATS = {*HARD, "Add", "Mul", "Sub", "Div"}


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
    placement = replace(placement, pair_limit=PAIR_LIMIT)  # else kernels saturate on processors without VNNI
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


def swished(factor: float, offset: float) -> onnx.ModelProto:
    """A scaled image, a convolution that pads, HardSwish times a number plus another, squeeze-and-excite, another."""
    net = Net(7)
    x = net.op("Div", ["image", net.const("deviation", np.float32(2))], "scaled")
    x = net.op("Sub", [x, net.const("mean", np.float32(0.4))], "centred")
    x = net.op("HardSwish", [net.conv(x, "first", 3, 8)], "swish")
    x = net.op("Mul", [net.const("factor", np.full((1, 1, 1, 1), factor, np.float32)), x], "times")
    x = net.op("Add", [x, net.const("offset", np.float32(offset))], "plus")
    side = net.conv(net.op("GlobalAveragePool", [x], "pool"), "side", 8, 8, 1)
    net.conv(net.op("Mul", [x, side], "weighed"), "last", 8, 8)
    return net.model([2, 3, 12, 12], "y", [2, 8, 12, 12])


def test_a_hard_swish_and_numbers_behind_it_are_a_sum_and_a_product(tmp_path: Path) -> None:
    model = load(save(swished(0.7, -0.3), tmp_path / "m.onnx"))
    kinds, to_file, to_float = run(model, ONNXRUNTIME_CPU, tmp_path)
    assert {"QLinearAdd", "QLinearMul", "QLinearConv"} <= kinds
    assert not FLOATS & kinds
    assert to_file > 25
    _, _, expected = run(model, replace(ONNXRUNTIME_CPU, followers=ONNXRUNTIME_CPU.followers - HARD), tmp_path)
    assert to_float > expected - 2


def test_a_number_that_would_mirror_codes_stays_in_floats(tmp_path: Path) -> None:
    kinds, to_file, _ = run(load(save(swished(-0.7, 0.3), tmp_path / "m.onnx")), ONNXRUNTIME_CPU, tmp_path)
    assert "Mul" in kinds
    assert to_file > 25


def test_what_a_group_makes_can_still_be_looked_at(tmp_path: Path) -> None:
    model = load(save(swished(0.7, -0.3), tmp_path / "m.onnx"))
    lowered = lower(model, uniform(model, Precision.INT8), observed(model), ONNXRUNTIME_CPU)
    batch = feeds(model, seed=5)
    for group in model.groups:
        exposed = (expose_groups(each, model) for each in (model.graph, lowered))
        exact, rough = (plain_session(ir.to_proto(each)).run([group.id], batch)[0] for each in exposed)
        assert sqnr_db(exact, rough) > (30 if group.name == "first" else 8), group.name


def test_other_ranges_give_what_lowering_anew_gives_also_where_no_zero_point_is_high_enough(tmp_path: Path) -> None:
    model = load(save(swished(0.7, -0.3), tmp_path / "m.onnx"))
    known, assignment = observed(model), uniform(model, Precision.INT8)
    lowered = Lowered(model, assignment, known, ONNXRUNTIME_CPU)
    shifted = next(group.output for group in model.groups if group.name == "first")

    def with_range(low: float, high: float) -> Ranges:
        return replace(known, tensors={**known.tensors, shifted: TensorRange(low, high)})

    narrower = with_range(-0.4, 1.1)
    assert lowered.rescale(narrower)
    anew = lower(model, assignment, narrower, ONNXRUNTIME_CPU)
    batch = feeds(model, seed=5)
    one, other = (plain_session(ir.to_proto(each)).run(None, batch)[0] for each in (lowered.model, anew))
    assert np.array_equal(one, other)
    positive = with_range(0.0, 1.1)  # minus 0.3, which the HardSwish of 0 becomes, has no code
    assert not lowered.rescale(positive)
    operators = {node.op_type for node in lower(model, assignment, positive, ONNXRUNTIME_CPU).graph}
    assert "Add" in operators


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
