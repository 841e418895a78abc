"""Fused ops and Einsums become ordinary ops that compute the same; what stays is named with its reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from search.graph.model import Model, load
from tests.support.networks import Net, feeds, plain_session, save

MICROSOFT = "com.microsoft"
Shape = list[int | str]


def network(n: Net, inputs: dict[str, Shape], rank: int, batch: int | str = "N") -> onnx.ModelProto:
    """The nodes so far, with the last one's output as the only one."""
    n.nodes[-1].output[0] = "y"
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, *[None] * (rank - 1)])
    graph = helper.make_graph(n.nodes, "net", info, [y], n.weights)
    opsets = [helper.make_opsetid("", n.opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def loaded_and_same(proto: onnx.ModelProto, folder: Path) -> Model:
    model = load(save(proto, folder / "net.onnx"), batch=3)
    wanted, found = (plain_session(each).run(None, feeds(model))[0] for each in (proto, ir.to_proto(model.graph)))
    assert wanted.shape == model.outputs[0].shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    return model


def ops(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.graph]


@pytest.mark.parametrize(
    ("activation", "params"),
    [
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.1]),
        ("Clip", [0.0, 0.5]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
@pytest.mark.parametrize("added", [False, True])
def test_a_fused_convolution_is_a_convolution_a_sum_and_an_activation(
    activation: str, params: list[float], added: bool, tmp_path: Path
) -> None:
    n = Net()
    n.conv("x", "fused", 4, 4)
    fused = n.nodes[-1]
    fused.op_type, fused.domain = "FusedConv", MICROSOFT
    fused.input.extend(["z"] if added else [])
    fused.attribute.append(helper.make_attribute("activation", activation))
    if params:
        fused.attribute.append(helper.make_attribute("activation_params", params))
    n.conv("fused_out", "next", 4, 2, 1)
    inputs: dict[str, Shape] = {"x": ["N", 4, 6, 6], **({"z": ["N", 4, 6, 6]} if added else {})}
    model = loaded_and_same(network(n, inputs, 4), tmp_path)
    assert ops(model) == ["Conv", *["Add"] * added, activation, "Conv"]
    assert [group.name for group in model.groups] == ["fused", "next"]
    assert len(model.groups[0].nodes) == 2 + added
    assert set(model.graph.opset_imports) == {""}


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Sigmoid"])
def test_a_fused_gemm_is_a_gemm_and_an_activation(activation: str, tmp_path: Path) -> None:
    n = Net()
    n.gemm("x", "fused", 8, 6)
    fused = n.nodes[-1]
    fused.op_type, fused.domain = "FusedGemm", MICROSOFT
    fused.attribute.extend(helper.make_attribute(*each) for each in (("activation", activation), ("alpha", 0.5)))
    if activation == "LeakyRelu":
        fused.attribute.append(helper.make_attribute("activation_alpha", 0.2))
    model = loaded_and_same(network(n, {"x": ["N", 8]}, 2), tmp_path)
    assert ops(model) == ["Gemm", activation]
    assert not model.left_out


@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("turned", [{}, {"transB": 1}, {"transA": 1}])
def test_a_fused_matmul_is_a_matmul(turned: dict[str, int], alpha: float, tmp_path: Path) -> None:
    n = Net()
    n.op("FusedMatMul", ["x", n.random("w", 8, 8, fan_in=8)], "fused", domain=MICROSOFT, alpha=alpha, **turned)
    model = loaded_and_same(network(n, {"x": ["N", 8, 8]}, 3), tmp_path)
    assert [(group.name, group.op, group.pinned) for group in model.groups] == [("fused", "MatMul", "")]
    assert "FusedMatMul" not in ops(model)


EQUATIONS: list[tuple[str, Shape, list[int]]] = [
    ("nchw,cd->ndhw", ["N", 4, 3, 3], [4, 5]),
    ("nchw,dc->ndhw", ["N", 4, 3, 3], [5, 4]),
    ("bld,dhk->bhlk", ["N", 5, 6], [6, 2, 3]),
    ("bhlk,hkd->bld", ["N", 2, 5, 3], [2, 3, 6]),
    ("bld,dk", ["N", 5, 6], [6, 7]),
    ("...d,dk->...k", ["N", 5, 6], [6, 7]),
    ("bhlk,hkm->bhlm", ["N", 2, 5, 3], [2, 3, 4]),
    ("nc,cd->nd", ["N", 4], [4, 5]),
    ("nc,cd->dn", ["N", 4], [4, 5]),
]


@pytest.mark.parametrize(("equation", "shape", "weight"), EQUATIONS)
@pytest.mark.parametrize("first", [False, True])
def test_an_einsum_that_is_a_matrix_product_becomes_one(
    equation: str, shape: Shape, weight: list[int], first: bool, tmp_path: Path
) -> None:
    n = Net()
    inputs = ["x", n.random("w", *weight, fan_in=weight[0])]
    if first:
        left, arrow, out = equation.partition("->")
        equation, inputs = ",".join(reversed(left.split(","))) + arrow + out, inputs[::-1]
    n.op("Einsum", inputs, "ein", equation=equation)
    factors = [np.ones([3, *shape[1:]]), np.ones(weight)]
    made = np.einsum(equation, *(factors[::-1] if first else factors))
    model = loaded_and_same(network(n, {"x": shape}, made.ndim, made.shape[0]), tmp_path)
    assert [(group.name, group.op, group.pinned) for group in model.groups] == [("ein", "MatMul", "")]
    assert len(model.groups[0].weight_shape) >= 2
    assert not model.left_out


def test_an_einsum_of_two_activations_is_a_pinned_product(tmp_path: Path) -> None:
    n = Net()
    a, b = (n.op("MatMul", ["x", n.random(f"w{i}", 6, 6, fan_in=6)], f"m{i}") for i in "ab")
    n.op("Einsum", [a, b], "scores", equation="bid,bjd->bij")
    model = loaded_and_same(network(n, {"x": ["N", 5, 6]}, 3), tmp_path)
    assert [group.name for group in model.groups] == ["ma", "mb", "scores"]
    assert "both factors are activations" in model.groups[2].pinned


def test_what_stays_as_it_is_is_named_with_the_reason(tmp_path: Path) -> None:
    n = Net()
    x = n.op("MatMul", ["x", n.random("w", 6, 6, fan_in=6)], "product")
    x = n.op("Einsum", [x, n.random("v", 5, 6, fan_in=6)], "weighted", equation="bld,ld->bld")
    weights = [n.random("W", 1, 12, 6, fan_in=6), n.random("R", 1, 12, 3, fan_in=3)]
    n.op("LSTM", [x, *weights], "lstm", hidden_size=3, layout=0)
    model = loaded_and_same(network(n, {"x": ["N", 5, 6]}, 4), tmp_path)
    assert [(each.name, each.op) for each in model.left_out] == [("weighted", "Einsum"), ("lstm", "LSTM")]
    assert "no matrix product" in model.left_out[0].why
    assert "not for LSTM" in model.left_out[1].why


def test_layers_in_a_body_are_named(tmp_path: Path) -> None:
    n = Net()
    n.conv("x", "first", 3, 4)
    body = Net(1)
    body.conv("first_out", "inner", 4, 4)
    made = helper.make_tensor_value_info("inner_out", TensorProto.FLOAT, None)
    then = helper.make_graph(body.nodes, "then", [], [made], body.weights)
    other = helper.make_graph([helper.make_node("Identity", ["first_out"], ["same"], "same")], "other", [], [made])
    other.output[0].name = "same"
    size = n.op("ReduceMax", ["first_out"], "most", keepdims=0)
    big = n.op("Greater", [size, n.const("bound", np.float32(0))], "big")
    n.op("If", [big], "if", then_branch=then, else_branch=other)
    model = loaded_and_same(network(n, {"x": ["N", 3, 5, 5]}, 4), tmp_path)
    assert [(each.name, each.op) for each in model.left_out] == [("inner", "Conv")]
    assert "body" in model.left_out[0].why
