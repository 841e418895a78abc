"""Nodes of the clean graph are found again in the user's file, whatever cleaning did to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from search.graph.model import Model, load
from search.graph.user_nodes import UserNodes, read_user_nodes
from tests.support.networks import NETWORKS, Net, residual_cnn, save


def read(proto: onnx.ModelProto, folder: Path) -> tuple[Model, UserNodes]:
    path = save(proto, folder / "model.onnx")
    model = load(path)
    return model, read_user_nodes(path, model.graph.graph)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_node_of_a_plain_network_is_found_under_its_own_name(name: str, tmp_path: Path) -> None:
    proto = NETWORKS[name]()
    model, found = read(proto, tmp_path)
    first = {clean: nodes[0].name for clean, nodes in found.of.items()}
    assert first == {node.name: node.name for node in model.graph.graph}
    assert [node.name for node in found.every] == [node.name for node in proto.graph.node]
    assert found.new_names == {}


def test_nodes_are_found_where_the_file_had_to_be_converted_to_a_newer_opset(tmp_path: Path) -> None:
    model, found = read(residual_cnn(opset=11), tmp_path)
    assert all(found.of[name] for group in model.groups for name in group.nodes)
    assert [node.name for node in found.of["block.0/conv2"]] == ["block.0/conv2", "block.0/bn2"]


def test_a_batch_norm_belongs_to_the_convolution_that_it_was_folded_into(tmp_path: Path) -> None:
    _, found = read(residual_cnn(), tmp_path)
    assert [node.name for node in found.of["stem"]] == ["stem", "stem/bn"]
    assert [node.name for node in found.of["stem/relu"]] == ["stem/relu"]
    assert found.of["stem"][0].constants == ("", "stem.w", "stem.b")


def test_nodes_without_a_name_of_their_own_are_given_one(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", [net.conv("image", "same", 3, 4)], "relu")
    x = net.op("Relu", [net.conv(x, "second", 4, 4)], "other")
    net.head(x, 4)
    proto = net.model([2, 3, 8, 8], "logits", [2, 10])
    proto.graph.node[0].name = ""
    proto.graph.node[2].name = "relu"
    model, found = read(proto, tmp_path)
    assert found.new_names == {"same_out": "Conv_same_out", "second_out": "Conv_second_out"}
    assert {nodes[0].output for nodes in found.of.values()} == {node.outputs[0].name for node in model.graph.graph}


def test_identities_and_folded_constants_are_no_layers(tmp_path: Path) -> None:
    net = Net()
    weight = net.op("Transpose", [net.random("w", 8, 4, fan_in=8)], "turned", perm=[1, 0])
    x = net.op("Flatten", ["image"], "flat")
    x = net.op("Identity", [net.op("MatMul", [x, net.op("Identity", ["v"], "kept")], "first")], "handed_on")
    net.const("v", np.ones((12, 4), np.float32))
    net.op("MatMul", [x, weight], "second")
    _, found = read(net.model([2, 3, 2, 2], "logits", [2, 8]), tmp_path)
    assert [node.name for node in found.of["first"]] == ["first"]
    assert [node.name for node in found.of["second"]] == ["handed_on", "second"]
    assert [node.constants for node in found.of["first"] + found.of["second"][1:]] == [("", "v"), ("", "w")]


def test_what_is_inside_a_function_has_no_counterpart(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "w")
    body = [
        helper.make_node("Conv", ["x", "k"], ["y"], name="inner"),
        helper.make_node("Relu", ["y"], ["z"], name="act"),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Block", ["x", "k"], ["z"], body, opsets[:1])
    nodes = [
        helper.make_node("Block", ["image", "w"], ["made"], name="block", domain="own"),
        helper.make_node("Conv", ["made", "w2"], ["logits"], name="outer"),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [2, 3, 4, 4])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [2, 4, 4, 4])
    second = numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w2")
    graph = helper.make_graph(nodes, "net", [image], [logits], [weight, second])
    proto = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
    model, found = read(proto, tmp_path)
    convolutions = [node.name for node in model.graph.graph if node.op_type == "Conv"]
    assert [[node.name for node in found.of[name]] for name in convolutions] == [[], ["outer"]]
