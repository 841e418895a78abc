"""Shapes that ONNX's inference does not tell come from one run of the float model; what that does not tell is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from search.graph.model import Model, load
from studies.options.config import SearchConfig
from studies.run.session.data_shapes import shape_text
from studies.run.session.setup import load_model
from tests.support.networks import Net, save

pytestmark = pytest.mark.slow


def residual_behind(activation: str, domain: str) -> onnx.ModelProto:
    n = Net()
    n.op(activation, [n.conv("x", "first", 3, 8)], "act", domain=domain)
    y = n.op("Relu", [n.conv("act_out", "second", 8, 8)], "relu")
    n.op("Add", [n.conv(y, "third", 8, 8), "act_out"], "add")
    n.nodes[-1].output[0] = "y"
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", c, 6, 6]) for name, c in (("x", 3), ("y", 8))]
    graph = helper.make_graph(n.nodes, "net", info[:1], info[1:], n.weights)
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def by_hand(proto: onnx.ModelProto, folder: Path) -> Model:
    return load_model(SearchConfig(str(save(proto, folder / "net.onnx")), "", batch=2))


def test_a_run_tells_the_shapes_behind_an_op_that_inference_does_not_know(tmp_path: Path) -> None:
    known = by_hand(residual_behind("Relu", ""), tmp_path)
    found = by_hand(residual_behind("Trilu", "com.microsoft"), tmp_path)
    assert load(tmp_path / "net.onnx", batch=2).unknown_shapes(), "or this test shows nothing"
    assert [(g.name, g.shape, g.multiply_adds) for g in found.groups] == [
        (g.name, g.shape, g.multiply_adds) for g in known.groups
    ]
    assert found.groups[2].nodes == ("third", "add")
    assert found.measured["act_out"] == (2, 8, 6, 6)
    assert shape_text(found) == ""


def test_what_the_user_has_decided_is_of_the_groups_that_the_run_has_told(tmp_path: Path) -> None:
    n = Net()
    n.op("Trilu", [n.conv("x", "first", 3, 8)], "act", domain="com.microsoft")
    n.op("MatMul", ["act_out", "act_out"], "product")
    n.nodes[-1].output[0] = "y"
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", c, 6, 6]) for name, c in (("x", 3), ("y", 8))]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(n.nodes, "net", info[:1], info[1:], n.weights)
    path = save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "net.onnx")
    found = load_model(SearchConfig(str(path), "", batch=2, decide=("attention",)))
    assert found.measured
    assert [(group.name, group.pinned) for group in found.groups] == [("first", ""), ("product", "")]


def test_what_no_run_tells_is_said(tmp_path: Path) -> None:
    found = by_hand(residual_behind("Unheard", "com.example"), tmp_path)
    assert "'act_out' for example" in shape_text(found)
    assert found.groups[1].shape == ()


def test_pads_that_are_computed_from_constants_are_constants(tmp_path: Path) -> None:
    n = Net()
    zeros = n.op("ConstantOfShape", [n.const("four", np.array([4]))], "zeros")
    n.nodes[-1].attribute.append(
        helper.make_attribute("value", helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
    )
    rows = n.op("Reshape", [n.op("Concat", [n.const("ones", np.array([1] * 4)), zeros], "all", axis=0),
                            n.const("two", np.array([-1, 2]))], "rows")  # fmt: skip
    pads = n.op("Reshape", [n.op("Transpose", [rows], "turned", perm=[1, 0]), n.const("flat", np.array([-1]))], "pads")
    n.conv(n.op("Pad", ["x", pads], "pad"), "conv", 3, 4)
    n.nodes[-1].output[0] = "y"
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", None, None, None]) for name in ("x", "y")]
    info[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 6, 6])
    graph = helper.make_graph(n.nodes, "net", info[:1], info[1:], n.weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = by_hand(proto, tmp_path)
    assert not found.measured
    assert [node.op_type for node in found.graph.graph] == ["Pad", "Conv"]
    assert len(found.groups[0].shape) == 4
