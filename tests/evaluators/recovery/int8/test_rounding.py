"""Weights rounded by second moments: what it wins, what it keeps, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from evaluators.lowering.corrections import find_constants
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from evaluators.lowering.weights import channel_axis, nearest_codes
from evaluators.recovery.int8.rounding import RoundStep
from evaluators.recovery.int8.second_moments import moments, product_error, round_by_moments, rows_read
from search.values import Correction, Recovery
from tests.support.networks import loaded, observed
from tests.support.recovery_context import context_of, output_error

# With codes of five bits rounding loses as much as it does in hard networks with eight.
COARSE = replace(ONNXRUNTIME_CPU, weight_bits=5)
COARSE_TENSORRT = replace(TENSORRT, weight_bits=5)


@pytest.mark.parametrize("placement", [COARSE, COARSE_TENSORRT], ids=lambda placement: placement.name)
@pytest.mark.parametrize("name", ["mobile", "transformer", "convolutions"])
def test_rounding_by_outputs_lowers_the_error(name: str, placement: Placement) -> None:
    model = loaded(name)
    ranges = observed(model)
    context = context_of(model, placement=placement)
    found = RoundStep().propose(context, ranges)
    assert found is not None
    assert output_error(context, found.ranges) < 0.9 * output_error(context, ranges)
    assert found.ranges == RoundStep().propose(context, ranges).ranges, "equal arguments give equal proposals"  # type: ignore[union-attr]
    for anchor, correction in found.ranges.recovery.corrections.items():
        _check_codes(model.graph.graph.node(anchor), correction, placement)


def _check_codes(node: ir.Node, correction: Correction, placement: Placement) -> None:
    constants = find_constants(node, ())
    assert constants is not None
    assert correction.rounding is not None
    codes, _ = nearest_codes(node, constants.weight, placement)
    assert correction.rounding.shape == codes.shape
    assert correction.rounding.dtype == np.int8
    assert np.abs(correction.rounding).max() == 1
    axis = channel_axis(node, constants.weight)
    others = tuple(i for i in range(codes.ndim) if i != axis)
    largest = np.abs(codes) == np.abs(codes).max(axis=others, keepdims=True)
    assert not correction.rounding[largest].any(), "the largest weights keep their codes"


def test_scales_stay_and_means_are_corrected_anew() -> None:
    model = loaded("residual")
    anchor = model.groups[1].anchors[0]
    known = {anchor: Correction(np.full(16, 1.1, np.float32), np.full(16, 50, np.float32))}
    ranges = replace(observed(model), recovery=Recovery({}, known))
    found = RoundStep().propose(context_of(model, placement=COARSE), ranges)
    assert found is not None
    correction = found.ranges.recovery.corrections[anchor]
    assert correction.rounding is not None
    assert correction.offset is None or np.abs(correction.offset).max() < 5


def test_without_time_nothing_is_rounded() -> None:
    model = loaded("residual")
    found = RoundStep().propose(context_of(model, placement=COARSE, seconds=0.0), observed(model))
    assert found.ranges == observed(model)
    assert found.cut.startswith("it ran out of time after 0 of ")


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 1], "pads": [1, 0, 2, 1]},
        {"dilations": [2, 1], "group": 2},
        {"group": 4},
    ],
)
def test_rows_of_a_convolution_give_its_output(attributes: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    group = attributes.get("group", 1)
    image = random.standard_normal((2, 4, 7, 6)).astype(np.float32)
    weight = random.standard_normal((8, 4 // group, 3, 2)).astype(np.float32)
    made = _convolved(image, weight, attributes)
    node = ir.node("Conv", [ir.Value(name="x"), ir.Value(name="w")], attributes)
    rows = rows_read(node, [image], weight.shape)
    assert rows is not None
    products = rows @ np.moveaxis(weight.reshape(group, 8 // group, -1), 1, 2)
    found = np.moveaxis(products, 0, 1).reshape(2, -1, 8)
    np.testing.assert_allclose(found, np.moveaxis(made.reshape(2, 8, -1), 1, 2), atol=1e-4)


def _convolved(image: NDArray[np.float32], weight: NDArray[np.float32], attributes: dict[str, Any]) -> Any:
    from onnx import TensorProto, helper

    from tests.support.networks import plain_session

    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in (("x", image), ("w", weight))]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], **attributes)], "g", infos, [out])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return plain_session(proto).run(None, {"x": image, "w": weight})[0]


def test_codes_of_correlated_and_dead_inputs_lose_less_than_the_nearest() -> None:
    random = np.random.default_rng(0)
    rows = (random.standard_normal((2, 400, 4)) @ random.standard_normal((2, 4, 150))).astype(np.float32)
    rows[:, :, 7] = 0
    weights = 10 * random.standard_normal((2, 5, 150))
    second = moments(rows, np.zeros((2, 150), np.float32))
    nearest = np.rint(weights)
    codes = round_by_moments(weights, nearest, second)
    assert np.abs(codes - nearest).max() <= 1
    assert product_error(codes - weights, second) < 0.5 * product_error(nearest - weights, second)
    assert np.isfinite(round_by_moments(weights, nearest, np.zeros_like(second))).all()
