"""Weakly typed TensorRT rounds before an activation that is computed in a kernel of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from evaluators.lowering.int8.plan import quantized_tensors
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT, TENSORRT_WEAK
from search.graph.model import Model, load
from search.values import Precision
from tests.support.assignments import uniform, uniform_and_mixed
from tests.support.networks import feeds, loaded, observed, save, session_of, sqnr_db
from tests.support.silu_networks import gated_network, silu_network

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32


@pytest.fixture
def residual(tmp_path: Path) -> Model:
    return load(save(silu_network(residual=True), tmp_path / "net.onnx"))


BEFORE_ALONE = replace(TENSORRT_WEAK, between_groups=False)


def added(model: Model) -> set[str]:
    """Tensors that are INT8 because of what is rounded before activations."""
    weak, strong = (quantized_tensors(model, uniform(model, INT8), which) for which in (BEFORE_ALONE, TENSORRT))
    assert strong <= weak
    return set(weak - strong)


def outputs_of(model: Model, *nodes: str) -> set[str]:
    made = {node.name: node.outputs[0].name or "" for node in model.graph.graph}
    return {made[name] for name in nodes}


def test_the_input_of_a_silu_before_an_add_is_rounded(residual: Model) -> None:
    assert added(residual) == outputs_of(residual, "silu.1", "silu.2", "silu.3", "silu.4")


@pytest.mark.parametrize("name", ["residual", "mobile", "transformer"])
def test_nothing_is_added_where_kernels_compute_the_activation(name: str) -> None:
    assert not added(loaded(name))


def test_the_input_of_a_prelu_and_of_a_gate_with_few_channels_is_rounded() -> None:
    assert added(loaded("activations")) == {"prelu_out", "se/expand_out"}


def test_nothing_is_added_before_a_silu_alone(tmp_path: Path) -> None:
    assert not added(load(save(silu_network(residual=False), tmp_path / "net.onnx")))


@pytest.mark.parametrize("network", [silu_network(residual=True), gated_network()], ids=["residual", "gated"])
def test_mixes_with_the_further_rounding_are_valid_and_run(network: onnx.ModelProto, tmp_path: Path) -> None:
    model = load(save(network, tmp_path / "net.onnx"))
    inputs, ranges = feeds(model), observed(model)
    wanted = session_of(ir.to_proto(model.graph)).run(None, inputs)[0]
    for assignment in uniform_and_mixed(model):
        proto = ir.to_proto(lower(model, assignment, ranges, TENSORRT_WEAK))
        onnx.checker.check_model(proto, full_check=True)
        assert sqnr_db(wanted, session_of(proto).run(None, inputs)[0]) > 15


def test_only_groups_in_int8_round_there(residual: Model) -> None:
    group = next(group for group in residual.groups if group.name == "silu.2")
    others = uniform(residual, INT8).replace({group.id: FP16})
    [tensor] = outputs_of(residual, "silu.2")
    assert tensor not in quantized_tensors(residual, others, TENSORRT_WEAK)
    only = uniform(residual, FP32).replace({group.id: INT8})
    assert tensor in quantized_tensors(residual, only, TENSORRT_WEAK)
