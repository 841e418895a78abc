"""Weakly typed TensorRT rounds the output of an INT8 convolution before an activation that is another kernel."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT, TENSORRT_WEAK, quantized_tensors
from search.values import Precision
from tests.support.assignments import uniform, uniform_and_mixed
from tests.support.networks import feeds, loaded, ranged, session_of, sqnr_db

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32


def added(name: str) -> set[str]:
    """Tensors that are INT8 with precisions set on layers, and not where Q/DQ are written."""
    model = loaded(name)
    weak, strong = (quantized_tensors(model, uniform(model, INT8), which) for which in (TENSORRT_WEAK, TENSORRT))
    assert strong <= weak
    return set(weak - strong)


def test_the_input_of_a_silu_is_rounded_and_that_of_a_relu_is_not() -> None:
    model = loaded("activations")
    made = {node.name: node.outputs[0].name for node in model.graph.graph}
    found = added("activations")
    assert {made[name] for name in ("silu", "hardswish", "sigmoid", "elu", "tanh", "prelu", "se/expand")} <= found
    assert not {made[name] for name in ("dw", "se/reduce", "leakyrelu")} & found


@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_nothing_is_added_where_kernels_compute_the_activation(name: str) -> None:
    assert not added(name)


def test_mixes_with_the_further_roundings_are_valid_and_run() -> None:
    model, ranges = loaded("activations"), ranged("activations")
    inputs = feeds(model)
    wanted = session_of(ir.to_proto(model.graph)).run(None, inputs)[0]
    for assignment in uniform_and_mixed(model):
        proto = ir.to_proto(lower(model, assignment, ranges, TENSORRT_WEAK))
        onnx.checker.check_model(proto, full_check=True)
        assert sqnr_db(wanted, session_of(proto).run(None, inputs)[0]) > 15


def test_only_groups_in_int8_round_before_their_activation() -> None:
    model = loaded("activations")
    silu = next(group for group in model.groups if group.name == "silu")
    others = uniform(model, INT8).replace({silu.id: FP16})
    made = {node.name: node.outputs[0].name for node in model.graph.graph}
    assert made["silu"] not in quantized_tensors(model, others, TENSORRT_WEAK)
    only = uniform(model, FP32).replace({silu.id: INT8})
    assert made["silu"] in quantized_tensors(model, only, TENSORRT_WEAK)
