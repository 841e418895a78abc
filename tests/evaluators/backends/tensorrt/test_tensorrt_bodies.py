"""Nodes of one name in the main graph and in a body of If: TensorRT has one list of layers for both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from evaluators.backends.tensorrt import api as tensorrt_api
from evaluators.backends.tensorrt.builder import TensorRTBuilder, model_bytes
from evaluators.backends.tensorrt.options import TensorRTOptions
from evaluators.engine import RefusedError
from search.graph.model import load
from search.values import Assignment, Precision
from tests.support.networks import Net, finish, observed, save
from tests.support.tensorrt.stand_in import V8, V10, standing_in


def branching(then: str, other: str, main: str = "same") -> onnx.ModelProto:
    """An If with a convolution in either body, in front of one in the main graph; their names are given."""
    n = Net(31)
    weights = [n.random(f"w{i}", 3, 3, 3, 3, fan_in=27) for i in range(3)]
    made = helper.make_tensor_value_info
    bodies = {
        branch: helper.make_graph(
            [helper.make_node("Conv", ["image", weight], [out], name=name, pads=[1] * 4)],
            branch,
            [],
            [made(out, TensorProto.FLOAT, [2, 3, 8, 8])],
        )
        for branch, name, weight, out in (
            ("then_branch", then, weights[0], "t"),
            ("else_branch", other, weights[1], "e"),
        )
    }
    total = n.op("ReduceSum", ["image"], "total", keepdims=0)
    positive = n.op("Greater", [total, n.const("zero", np.float32(0))], "positive")
    x = n.op("If", [positive], "either", **bodies)
    n.op("Conv", [x, weights[2]], main, pads=[1] * 4)
    n.nodes[-1].output[0] = "z"
    return finish(n, {"image": [2, 3, 8, 8]}, {"z": [2, 3, 8, 8]})


def names_of(model: ir.Model) -> dict[str, str]:
    """Tensor → name of the node that makes it."""
    return {str(node.outputs[0].name): str(node.name) for node in model.graph.all_nodes()}


def test_the_main_graph_keeps_the_name_and_bodies_take_others(tmp_path: Path) -> None:
    names = names_of(load(save(branching("same", "same"), tmp_path / "net.onnx")).graph)
    assert names["z"] == "same"
    assert {names["t"], names["e"]} == {"same_1", "same_2"}


def test_a_name_that_is_free_is_found(tmp_path: Path) -> None:
    names = names_of(load(save(branching("same", "same_1"), tmp_path / "net.onnx")).graph)
    assert (names["z"], names["e"], names["t"]) == ("same", "same_1", "same_2")


def test_names_that_differ_stay(tmp_path: Path) -> None:
    names = names_of(load(save(branching("first", "second"), tmp_path / "net.onnx")).graph)
    assert (names["z"], names["t"], names["e"]) == ("same", "first", "second")


@pytest.mark.parametrize("version", [V8, V10])
def test_the_precision_is_set_on_the_layer_of_the_main_graph(version: str, tmp_path: Path) -> None:
    model = load(save(branching("same", "other"), tmp_path / "net.onnx"))
    (group,) = model.groups
    with standing_in(version) as engines:
        builder = TensorRTBuilder(engines.trt, model, observed(model), TensorRTOptions(typing="weak"))
        network, _ = builder._parse(model_bytes(model.graph))
        builder._constrain(network, builder._config(), Assignment({group.id: Precision.INT8}))
        layers = {layer.get_output(0).name: layer for layer in tensorrt_api.layers_of(network)}
        assert layers["z"]._state["precision"] == engines.trt.int8
        assert "precision" not in layers["t"]._state
        assert "precision" not in layers["e"]._state


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ("t", "named 'same' in its main graph .*; the layer of that name makes 't' inside an If or Loop"),
        ("either_out", "named 'same' in its main graph .*; the layer of that name is a ELEMENTWISE"),
        ("", r"named 'same' in its main graph \(of 1 missing\)$"),
    ],
)
def test_a_layer_that_has_the_name_for_another_reason_is_refused(renamed: str, message: str, tmp_path: Path) -> None:
    """A parser that gives the name away before the main graph's node comes."""
    model = load(save(branching("first", "second"), tmp_path / "net.onnx"))
    (group,) = model.groups
    parsed = model.graph.clone()
    for node in parsed.graph.all_nodes():
        if node.outputs[0].name in (renamed, "z"):
            node.name = "same" if node.outputs[0].name == renamed else "moved"
    with standing_in(V10) as engines:
        builder = TensorRTBuilder(engines.trt, model, observed(model), TensorRTOptions(typing="weak"))
        network, _ = builder._parse(model_bytes(parsed))
        with pytest.raises(RefusedError, match=message):
            builder._constrain(network, builder._config(), Assignment({group.id: Precision.INT8}))
