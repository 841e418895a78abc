"""Files that ONNX Runtime's optimizer wrote: its fused ops are written out, and compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from search.errors import ModelError
from search.graph.model import Model, load
from tests.support.networks import Net, feeds, finish, plain_session, residual_cnn, save

MICROSOFT = "com.microsoft"
WIDTH = 16
LEVELS = onnxruntime.GraphOptimizationLevel


def optimized(proto: onnx.ModelProto, folder: Path, level: Any = LEVELS.ORT_ENABLE_EXTENDED) -> onnx.ModelProto:
    """The file that ONNX Runtime's optimizer writes."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


def norm(n: Net, x: str, *, is_centred: bool) -> str:
    """A LayerNorm, or a norm by the root mean square, as exporters write them out."""
    if is_centred:
        x = n.op("Sub", [x, n.op("ReduceMean", [x], "mean", axes=[-1])], "centred")
    square = n.op("Pow", [x, n.const("two", np.float32(2))], "square")
    variance = n.op("ReduceMean", [square], "variance", axes=[-1])
    root = n.op("Sqrt", [n.op("Add", [variance, n.const("epsilon", np.float32(1e-5))], "positive")], "root")
    x = n.op("Mul", [n.op("Div", [x, root], "divided"), n.random("scale", WIDTH, fan_in=2)], "scaled")
    return n.op("Add", [x, n.random("shift", WIDTH, fan_in=2)], "shifted") if is_centred else x


def gelu(n: Net, x: str) -> str:
    gate = n.op("Erf", [n.op("Div", [x, n.const("sqrt2", np.float32(np.sqrt(2)))], "turn")], "erf")
    product = n.op("Mul", [x, n.op("Add", [gate, n.const("one", np.float32(1))], "open")], "product")
    return n.op("Mul", [product, n.const("half", np.float32(0.5))], "gelu")


def loaded_and_same(proto: onnx.ModelProto, folder: Path) -> Model:
    model = load(save(proto, folder / "net.onnx"), batch=3)
    clean = ir.to_proto(model.graph)
    onnx.checker.check_model(clean, full_check=True)
    given = {name: abs(array) if array.dtype.kind == "i" else array for name, array in feeds(model).items()}
    for wanted, found in zip(*(plain_session(each).run(None, given) for each in (proto, clean)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    assert set(model.graph.opset_imports) == {""}
    return model


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("is_centred", [True, False])
def test_a_file_that_the_optimizer_wrote_has_the_layers_of_the_one_before(
    opset: int, is_centred: bool, tmp_path: Path
) -> None:
    n = Net(opset=opset)
    x = norm(n, n.linear("x", "first", 8, WIDTH), is_centred=is_centred)
    n.linear(gelu(n, n.linear(x, "second", WIDTH, WIDTH)), "third", WIDTH, 4)
    n.nodes[-1].output[0] = "y"
    proto = finish(n, {"x": ["N", 5, 8]}, {"y": ["N", 5, 4]})
    proto.opset_import[0].version = opset
    given = optimized(proto, tmp_path)
    assert {"LayerNormalization", "SimplifiedLayerNormalization"} & {node.op_type for node in given.graph.node}
    model = loaded_and_same(given, tmp_path)
    assert [group.name for group in model.groups] == ["first", "second", "third"]
    assert len(model.edges) >= 2
    assert not model.left_out


def test_a_file_in_the_layout_of_one_processor_is_refused_with_which_to_give(tmp_path: Path) -> None:
    given = optimized(residual_cnn(channels=32), tmp_path, LEVELS.ORT_ENABLE_ALL)
    if all(node.domain != "com.microsoft.nchwc" for node in given.graph.node):
        pytest.skip("ONNX Runtime has no such layout on this processor")
    with pytest.raises(ModelError, match=r"for one kind of processor: node .* Give the file .* ORT_ENABLE_EXTENDED"):
        load(save(given, tmp_path / "net.onnx"))


def fused(n: Net, inputs: dict[str, list[int | str]], *, rank: int = 3) -> onnx.ModelProto:
    """The nodes so far, a float input `x` first and whole numbers for the others."""
    n.nodes[-1].output[0] = "y"
    kinds = [TensorProto.FLOAT if name in ("x", "z") else TensorProto.INT32 for name in inputs]
    info = [
        helper.make_tensor_value_info(name, kind, shape)
        for (name, shape), kind in zip(inputs.items(), kinds, strict=True)
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", *[None] * (rank - 1)])
    graph = helper.make_graph(n.nodes, "net", info, [y], n.weights)
    opsets = [helper.make_opsetid("", n.opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize(
    ("op", "more", "attributes"),
    [
        ("Gelu", [], {}),
        ("BiasGelu", ["bias"], {}),
        ("FastGelu", [], {}),
        ("FastGelu", ["bias"], {}),
        ("QuickGelu", [], {}),
        ("QuickGelu", [], {"alpha": 1.0}),
        ("SkipLayerNormalization", ["z", "scale"], {"epsilon": 1e-5}),
        ("SkipLayerNormalization", ["z", "scale", "shift", "bias"], {}),
        ("SkipSimplifiedLayerNormalization", ["z", "scale", "bias"], {"epsilon": 1e-6}),
    ],
)
def test_fused_norms_and_activations_are_ordinary_ops(
    op: str, more: list[str], attributes: dict[str, float], opset: int, tmp_path: Path
) -> None:
    n = Net(opset=opset)
    x = n.op("MatMul", ["x", n.random("w", 8, WIDTH, fan_in=8)], "first")
    for name in set(more) - {"z"}:
        n.random(name, WIDTH, fan_in=2)
    x = n.op(op, [x, *more], "fused", domain=MICROSOFT, **attributes)
    if op.startswith("Skip"):  # transformers read the sum too
        n.nodes[-1].output.extend(["", "", "sum"])
        x = n.op("Add", [x, "sum"], "both")
    n.op("MatMul", [x, n.random("v", WIDTH, 4, fan_in=8)], "second")
    inputs: dict[str, list[int | str]] = {"x": ["N", 5, 8], **({"z": ["N", 5, WIDTH]} if "z" in more else {})}
    model = loaded_and_same(fused(n, inputs), tmp_path)
    assert [group.name for group in model.groups] == ["first", "second"]


MASKS: dict[str, list[int | str]] = {"": [], "of each key": ["N", 5], "how many keys": ["N"]}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}, {"scale": 0.5}, {"qkv_hidden_sizes": [8, 8, 32]}])
def test_attention_is_products_with_weights(mask: str, attributes: dict[str, object], tmp_path: Path) -> None:
    n = Net()
    wide = 48
    inputs = ["x", n.random("w", WIDTH, wide, fan_in=WIDTH), n.random("b", wide, fan_in=2), *["mask"] * bool(mask)]
    x = n.op("Attention", inputs, "attention", domain=MICROSOFT, num_heads=4, **attributes)
    n.op("MatMul", [x, n.random("v", 32 if "qkv_hidden_sizes" in attributes else WIDTH, 4, fan_in=8)], "second")
    given: dict[str, list[int | str]] = {"x": ["N", 5, WIDTH], **({"mask": MASKS[mask]} if mask else {})}
    model = loaded_and_same(fused(n, given), tmp_path)
    assert [(group.name, bool(group.pinned)) for group in model.groups] == [
        ("attention", False), ("attention/scores", True), ("attention/rows", True), ("second", False),
    ]  # fmt: skip
    assert not model.left_out


def test_attention_with_a_past_stays_and_is_named(tmp_path: Path) -> None:
    n = Net()
    weight = n.random("w", WIDTH, 48, fan_in=WIDTH)
    x = n.op("MatMul", ["x", n.random("u", WIDTH, WIDTH, fan_in=8)], "first")
    bias, past = n.random("b", 48, fan_in=2), n.const("past", np.zeros([2, 3, 4, 1, 4], np.float32))
    n.op("Attention", [x, weight, bias, "", past], "attention", domain=MICROSOFT, num_heads=4)
    n.nodes[-1].output.append("present")
    model = load(save(fused(n, {"x": ["N", 5, WIDTH]}), tmp_path / "net.onnx"), batch=3)
    assert [(each.name, each.op) for each in model.left_out] == [("attention", "Attention")]
