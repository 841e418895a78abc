"""Smoothing helps where channels before matrix products are outliers, and only there."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.equalize import Equalize
from evaluators.recovery.smooth import Smooth
from search.graph.model import Model
from search.values import Ranges, Recovery
from tests.support.networks import images, loaded, sqnr_db, transformer
from tests.support.recovery_contexts import context_for, run_over
from tests.support.stream_graphs import loaded_from

IMAGES = {"image": images(16)}


def spread_gains(proto: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """Let two channels of every LayerNormalization be outliers."""
    for tensor in proto.graph.initializer:
        if tensor.name.endswith("/norm.g"):
            array = numpy_helper.to_array(tensor).copy()
            array[[3, 17]] *= factor
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return proto


def spelled_norms(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Write every LayerNormalization as the ops that older exporters make of it."""
    nodes = []
    for node in proto.graph.node:
        if node.op_type != "LayerNormalization":
            nodes.append(node)
            continue
        x, gain, bias = node.input
        steps = [
            ("ReduceMean", [x], {"axes": [-1]}),
            ("Sub", [x, "0"], {}),
            ("Mul", ["1", "1"], {}),
            ("ReduceMean", ["2"], {"axes": [-1]}),
            ("Add", ["3", "small"], {}),
            ("Sqrt", ["4"], {}),
            ("Div", ["1", "5"], {}),
            ("Mul", ["6", gain], {}),
        ]
        made = {str(i): f"{node.name}/{i}" for i in range(len(steps))}
        for i, (kind, inputs, attributes) in enumerate(steps):
            inputs = [made.get(name, name) for name in inputs]
            nodes.append(onnx.helper.make_node(kind, inputs, [made[str(i)]], name=made[str(i)], **attributes))
        nodes.append(onnx.helper.make_node("Add", [made["7"], bias], list(node.output), name=f"{node.name}/add"))
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(1e-5), "small"))
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    return proto


@functools.cache
def outliers(*, spelled: bool) -> Model:
    proto = spread_gains(transformer(blocks=1), 40)
    return loaded_from(spelled_norms(proto) if spelled else proto)


def sqnr(context: RecoveryContext, ranges: Ranges) -> float:
    exact = run_over(context.open_float(Recovery()), context)["logits"]
    return sqnr_db(exact, run_over(context.open_quantized(ranges), context)["logits"])


@pytest.mark.parametrize("placement", [ONNXRUNTIME_CPU, TENSORRT])
@pytest.mark.parametrize("spelled", [False, True])
def test_outliers_lose_less_then(placement: Placement, spelled: bool) -> None:
    context = context_for(outliers(spelled=spelled), IMAGES, {"image": images(16, 1)}, placement=placement)
    plain = context.calibrate(Recovery())
    proposal = Smooth().propose(context, plain)
    assert proposal is not None
    assert sqnr(context, proposal.ranges) > sqnr(context, plain) + 1.5
    exact = run_over(context.open_float(Recovery()), context)["logits"]
    np.testing.assert_array_equal(run_over(context.open_float(proposal.ranges.recovery), context)["logits"], exact)


def test_equalization_leaves_normalized_streams_to_it() -> None:
    context = context_for(outliers(spelled=False), IMAGES)
    plain = context.calibrate(Recovery())
    first = Equalize().propose(context, plain)
    ranges = plain if first is None else first.ranges
    second = Smooth().propose(context, ranges)
    assert not any(name.endswith("norm.g") for name in ranges.recovery.factors)
    assert second is not None
    assert any(name.endswith("norm.g") for name in second.ranges.recovery.factors)
    assert set(ranges.recovery.factors) <= set(second.ranges.recovery.factors)


def test_without_time_no_strength_is_tried() -> None:
    context = context_for(outliers(spelled=False), IMAGES, seconds=0)
    found = Smooth().propose(context, context.calibrate(Recovery()))
    assert found.ranges == context.calibrate(Recovery())
    assert found.cut == "it ran out of time after 0 of 4 streams"


def test_convolutions_alone_are_left_alone() -> None:
    context = context_for(loaded("convolutions"), {"image": images(4, shape=(3, 8, 8))})
    assert Smooth().propose(context, context.calibrate(Recovery())) is None
