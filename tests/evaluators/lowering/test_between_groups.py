"""Weakly typed TensorRT runs what lies between INT8 convolutions in INT8: pools, gates, sums, and what moves values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluators import data
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration.activations import collect
from evaluators.data.opening import open_data
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.int8.plan import plan, quantized_tensors
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT, TENSORRT_WEAK, Placement
from search.graph.model import Model, load
from search.values import Precision
from tests.support.assignments import uniform
from tests.support.networks import Net, images, loaded, save, sqnr_db
from tests.support.paths import DATA
from tests.support.silu_networks import gated_network, silu

INT8, FP16 = Precision.INT8, Precision.FP16


@pytest.fixture
def gated(tmp_path: Path) -> Model:
    return load(save(gated_network(), tmp_path / "net.onnx"))


def added(model: Model, placement: Placement = TENSORRT_WEAK, *, half: str = "") -> set[str]:
    """Tensors that are INT8 with precisions set on layers, and not where Q/DQ are written.

    Args:
        half: names the group that runs in FP16.
    """
    assignment = uniform(model, INT8).replace({g.id: FP16 for g in model.groups if g.name == half})
    weak, strong = (quantized_tensors(model, assignment, which) for which in (placement, TENSORRT))
    assert strong <= weak
    return set(weak - strong)


def reads(model: Model) -> set[tuple[str, str]]:
    """(node, tensor) that nodes outside all groups read in INT8, in all INT8."""
    grouped = {name for group in model.groups for name in group.nodes}
    planned = plan(model.graph.graph, model, uniform(model, INT8), TENSORRT_WEAK)
    return {
        (node.name or "", (value.name or "") if (value := node.inputs[i]) is not None else "")
        for node, i in planned.reads
        if node.name not in grouped
    }


def test_pools_and_gates_read_int8(gated: Model) -> None:
    assert reads(gated) == {
        ("b1.pool", "b1.depthwise/act_out"),
        ("b1.scaled", "b1.depthwise/act_out"),
        ("b2.pool", "b2.depthwise/act_out"),
        ("b2.scaled", "b2.depthwise/act_out"),
        ("pool", "last/act_out"),
        ("flatten", "pool_out"),
    }


def test_a_gate_reads_what_its_convolution_makes_before_the_sigmoid(gated: Model) -> None:
    assert {"b1.excite_out", "b2.excite_out"} <= added(gated)
    assert not {"b1.excite/act_out", "b2.excite/act_out"} & added(gated)


def test_activations_of_depthwise_convolutions_are_kernels_of_their_own(gated: Model) -> None:
    found = added(gated, replace(TENSORRT_WEAK, between_groups=False))
    assert found == {"b1.depthwise_out"}  # and not the Relu's input


@pytest.mark.parametrize(
    ("kind", "separate"),
    [("Relu", False), ("SiLU", False), ("LeakyRelu", True), ("Elu", True), ("Tanh", True), ("HardSigmoid", True)],
)
def test_behind_a_depthwise_convolution_only_relu_and_silu_are_in_its_kernel(
    kind: str, separate: bool, tmp_path: Path
) -> None:
    n = Net(5)
    x = n.op("Relu", [n.conv("image", "stem", 3, 32)], "stem/act")
    x = n.conv(x, "depthwise", 32, 32, group=32)
    x = silu(n, x, "depthwise") if kind == "SiLU" else n.op(kind, [x], "depthwise/act")
    n.op("Identity", [n.conv(x, "last", 32, 16, 1)], "out")
    model = load(save(n.model([4, 3, 16, 16], "map", [4, 16, 16, 16]), tmp_path / "net.onnx"))
    assert added(model) == ({"depthwise_out"} if separate else set())


def test_what_a_float_group_needs_stays_in_float(gated: Model) -> None:
    found = added(gated, half="b1.project")
    assert "b1.excite_out" not in found
    assert "b1.depthwise/act_out" in found  # the pool before the squeeze reads it
    assert {"b2.excite_out", "b2.depthwise/act_out"} <= found


def test_what_a_float_group_makes_stays_in_float(gated: Model) -> None:
    found = added(gated, half="b1.depthwise")
    assert not {"b1.depthwise_out", "b1.depthwise/act_out", "b1.excite_out"} & found


def test_ops_that_work_element_by_element_are_one_kernel(tmp_path: Path) -> None:
    n = Net(6)
    left, right = (n.op("Relu", [n.conv("image", name, 3, 32)], f"{name}/act") for name in ("left", "right"))
    x = n.op("Tanh", [n.op("Mul", [left, right], "product")], "tanh")
    n.op("Identity", [n.conv(n.op("MaxPool", [x], "pool", kernel_shape=[2, 2]), "last", 32, 16, 1)], "out")
    model = load(save(n.model([4, 3, 16, 16], "map", [4, 16, 15, 15]), tmp_path / "net.onnx"))
    assert reads(model) == {("product", "left/act_out"), ("product", "right/act_out"), ("pool", "tanh_out")}


@pytest.mark.parametrize("name", ["transformer", "text_encoder", "products"])
def test_products_of_matrices_hand_on_floats(name: str) -> None:
    assert not reads(loaded(name))


def test_it_rounds_as_the_engine_did(gated: Model, tmp_path: Path) -> None:
    """Q/DQ around the groups alone, or with the depthwise convolution's activation, agree to 22 dB."""
    engine = np.array(json.loads((DATA / "outputs_of_gated_int8.json").read_text())["logits"], np.float32)
    np.savez(tmp_path / "data.npz", image=images(len(engine), shape=(3, 32, 32)))
    dataset = open_data(str(tmp_path / "data.npz"), gated.inputs)
    ranges = collect(gated, dataset, np.arange(len(engine)), "minmax")
    int8, backend = uniform(gated, INT8), OnnxRuntimeBackend("cpu")
    agreed = {}
    for placement in (TENSORRT, replace(TENSORRT_WEAK, between_groups=False), TENSORRT_WEAK):
        session = Emulator(backend, placement).open(spelled_out(lower(gated, int8, ranges, placement)))
        batches = data.batches(dataset, np.arange(len(engine)), gated.batch)
        outputs = np.concatenate([session.run(batch.inputs)["logits"] for batch in batches])
        agreed[placement.name, placement.between_groups] = sqnr_db(engine, outputs)
    assert agreed.pop((TENSORRT_WEAK.name, True)) > max(agreed.values()) + 3, agreed
