"""Groups, edges and blocks on real patterns."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from search.graph.model import Group, Model, load
from tests.support.networks import NETWORKS, ODD, Net, loaded, mobile_cnn, residual_cnn, save, transformer

C = 16


def by_name(model: Model) -> dict[str, Group]:
    return {group.name: group for group in model.groups}


def load_proto(proto: onnx.ModelProto, folder: Path) -> Model:
    return load(save(proto, folder / "net.onnx"))


def block_sizes(model: Model) -> list[int]:
    blocks = [group.block for group in model.groups]
    return [blocks.count(block) for block in dict.fromkeys(blocks)]


@pytest.mark.parametrize("name", [*NETWORKS, *ODD])
def test_groups_and_edges_are_consistent(name: str) -> None:
    model = loaded(name)
    order = [node.name or "" for node in model.graph.graph]
    nodes = [node for group in model.groups for node in group.nodes]
    assert len(nodes) == len(set(nodes))
    assert set(nodes) <= set(order)
    assert [group.id for group in model.groups] == [f"g{i:03d}" for i in range(len(model.groups))]
    assert [order.index(g.name) for g in model.groups] == sorted(order.index(g.name) for g in model.groups)
    for group in model.groups:
        assert set(group.anchors) <= set(group.nodes)
        assert group.output in group.tensors
        assert group.shape == model.shapes[group.output]
        assert bool(group.weights) or group.pinned
    ids = {group.id for group in model.groups}
    inputs = {spec.name for spec in model.inputs}
    for edge in model.edges:
        assert edge.target in ids
        assert edge.source in ids if edge.source is not None else edge.tensor in inputs
        assert edge.source != edge.target
        assert edge.elements > 0


def test_residual_adds_belong_to_the_deeper_branch() -> None:
    groups = by_name(loaded("residual"))
    assert groups["stem"].nodes == ("stem", "stem/relu")
    assert groups["block.0/conv2"].nodes == ("block.0/conv2", "block.0/add", "block.0/relu2")
    assert groups["block.0/conv2"].skips == ("maxpool_out",)
    assert groups["block.1/conv2"].nodes == ("block.1/conv2", "block.1/add", "block.1/relu2")
    assert groups["block.1/conv2"].skips == ("block.1/down_out",)
    assert groups["block.1/down"].nodes == ("block.1/down",)


def test_edges_go_through_pooling_and_residual_adds() -> None:
    model = loaded("residual")
    name = {group.id: group.name for group in model.groups}
    edges = {(name.get(e.source or ""), name[e.target]): e for e in model.edges}
    assert (None, "stem") in edges
    assert ("stem", "block.0/conv1") in edges  # through MaxPool
    assert ("stem", "block.0/conv2") in edges  # the skip
    assert ("block.1/conv2", "fc") in edges  # through pooling and Flatten
    assert edges["stem", "block.0/conv1"].elements == 4 * 16 * 16 * 16


def test_mobile_blocks_hold_expand_depthwise_project() -> None:
    groups = by_name(loaded("mobile"))
    assert groups["mb.0/depthwise"].nodes == ("mb.0/depthwise", "mb.0/act2")
    assert groups["mb.0/project"].skips == ("stem/act_out",)
    assert groups["mb.0/expand"].block == groups["mb.0/project"].block != groups["mb.1/expand"].block


def test_concat_makes_no_residual_but_edges_from_both_sides() -> None:
    model = loaded("unet")
    groups = by_name(model)
    assert not any(group.skips for group in model.groups)
    sources = {e.source for e in model.edges if e.target == groups["dec2"].id}
    assert sources == {groups["up2"].id, groups["enc2"].id}


def test_attention_products_are_pinned_and_everything_else_is_free() -> None:
    model = loaded("transformer")
    pinned = {group.name for group in model.groups if group.pinned}
    assert pinned == {f"layer.{i}/attn/{part}" for i in range(2) for part in ("qk", "pv")}
    mlp = by_name(model)["layer.0/mlp/fc1"]
    assert mlp.nodes[-1] == "layer.0/mlp/gelu"  # GELU written as Erf is one region
    assert by_name(model)["layer.0/mlp/fc2"].skips == ("layer.0/attn/add_out",)


def test_activations_join_their_convolution() -> None:
    groups = by_name(loaded("activations"))
    for kind in ("leakyrelu", "hardswish", "sigmoid", "elu", "tanh", "hardsigmoid", "prelu"):
        assert groups[kind].nodes == (kind, f"{kind}/act")
    assert groups["silu"].nodes == ("silu", "silu/sigmoid", "silu/act")
    assert groups["dw"].nodes == ("dw", "dw/act")  # its tensor leaves to the gate
    assert groups["se/expand"].nodes == ("se/expand", "se/gate")
    assert groups["project"].skips == ("silu/act_out",)


def test_outputs_and_readers_in_the_middle_bound_a_group() -> None:
    groups = by_name(loaded("branches"))
    assert groups["stem"].nodes == ("stem",)  # its output is a graph output
    assert groups["a"].nodes == ("a", "add_two", "add_two/relu")
    assert groups["a"].skips == ("b_out",)
    assert "doubled" in groups["d"].nodes  # x + x is no residual
    assert groups["d"].skips == ("add_two/relu_out",)
    assert groups["e"].nodes == ("e",)
    assert groups["f"].nodes == ("f",)  # a broadcast Add is no residual


def test_shared_weights_are_one_group() -> None:
    group = by_name(loaded("branches"))["d"]
    assert group.anchors == ("d", "d_again")
    assert group.weights == ("d.w",)


def test_one_weight_in_two_kinds_of_op_is_two_groups(tmp_path: Path) -> None:
    n = Net()
    n.random("w", C, C, 1, 1, fan_in=C)
    x = n.op("Conv", [n.conv("image", "stem", 3, C), "w"], "encode")
    n.head(n.op("ConvTranspose", [x, "w"], "decode"), C)
    model = load_proto(n.model([1, 3, 8, 8], "logits", [1, 10]), tmp_path)
    assert [(group.name, group.op) for group in model.groups][1:3] == [("encode", "Conv"), ("decode", "ConvTranspose")]


def test_constant_first_factors_are_pinned_and_folded_weights_are_not() -> None:
    assert "first factor" in by_name(loaded("products"))["m3"].pinned
    text = by_name(loaded("text_encoder"))
    assert not text["head"].pinned  # its weight stood behind a Transpose
    assert not text["tied"].pinned


def test_integer_tensors_make_no_edges() -> None:
    model = loaded("text_encoder")
    assert {edge.tensor for edge in model.edges}.isdisjoint({"ids", "mask"})


def test_bodies_of_if_are_left_alone() -> None:
    model = loaded("conditional")
    assert [group.name for group in model.groups] == ["stem", "second", "third", "fc"]
    assert by_name(model)["second"].output == "second_out"


@pytest.mark.parametrize("build", [residual_cnn, mobile_cnn, transformer])
def test_blocks_do_not_need_names(build: object, tmp_path: Path) -> None:
    assert callable(build)
    proto = build()
    named = block_sizes(load_proto(proto, tmp_path))
    for node in proto.graph.node:
        node.ClearField("name")
    assert block_sizes(load_proto(proto, tmp_path)) == named


def test_blocks_of_a_residual_network_are_its_residual_blocks() -> None:
    assert block_sizes(loaded("residual")) == [1, 2, 3, 1]


def test_a_chain_without_names_is_cut_in_short_runs_of_one_shape(tmp_path: Path) -> None:
    n, x = Net(), "image"
    for i in range(6):
        x = n.op("Relu", [n.conv(x, f"c{i}", C if i else 3, C)], f"r{i}")
    for i in range(4):
        x = n.op("Relu", [n.conv(x, f"d{i}", C if i == 0 else 2 * C, 2 * C)], f"s{i}")
    n.head(x, 2 * C)
    proto = n.model([1, 3, 8, 8], "logits", [1, 10])
    for node in proto.graph.node:
        node.ClearField("name")
    assert block_sizes(load_proto(proto, tmp_path)) == [4, 2, 4, 1]


def test_long_skips_do_not_tie_a_unet_into_one_block(tmp_path: Path) -> None:
    n, x, skips = Net(), "image", []
    for level in range(4):
        x = n.op("Relu", [n.conv(x, f"enc{level}a", C if level else 3, C)], f"enc{level}a/relu")
        x = n.op("Relu", [n.conv(x, f"enc{level}b", C, C)], f"enc{level}b/relu")
        skips.append(x)
        x = n.op("MaxPool", [x], f"pool{level}", kernel_shape=[2, 2], strides=[2, 2])
    for level in reversed(range(4)):
        weight = n.random(f"up{level}.w", C, C, 2, 2, fan_in=C)
        x = n.op("ConvTranspose", [x, weight], f"up{level}", kernel_shape=[2, 2], strides=[2, 2])
        x = n.op("Concat", [x, skips[level]], f"cat{level}", axis=1)
        x = n.op("Relu", [n.conv(x, f"dec{level}", 2 * C, C)], f"dec{level}/relu")
    n.conv(x, "classes", C, 4, 1)
    sizes = block_sizes(load_proto(n.model([1, 3, 32, 32], "mask", [1, 4, 32, 32]), tmp_path))
    assert sum(sizes) == 17
    assert max(sizes) <= 8
    assert len(sizes) >= 6
