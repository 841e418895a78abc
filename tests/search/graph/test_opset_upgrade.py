"""Models of old opsets compute after loading what their files compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from search.errors import ModelError
from search.graph.model import load
from tests.support.old_runtime import NEWER

SHAPE = (1, 3, 12, 12)


def model(opset: int, last: Sequence[onnx.NodeProto], constants: dict[str, Any], **more: Any) -> onnx.ModelProto:
    """A convolution to `c`, then nodes that make `y`."""
    weight = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in {"w": weight, **constants}.items()]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4), *last],
        "old",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, None, None])],
        weights,
    )
    opsets = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8 if more else 6, **more)
    onnx.checker.check_model(made)
    return made


def run(proto: onnx.ModelProto) -> NDArray[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    found: NDArray[Any] = session.run(None, {"x": x})[0]
    return found


def check(proto: onnx.ModelProto, folder: Path) -> None:
    path = folder / "old.onnx"
    onnx.save(proto, path)
    np.testing.assert_allclose(run(ir.to_proto(load(path).graph)), run(proto), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("opset", "op", "mode", "scale"),
    [
        (9, "Upsample", "linear", 2),
        (9, "Upsample", "nearest", 3),
        (10, "Resize", "linear", 2),
        (10, "Resize", "linear", 0.5),
        (10, "Resize", "nearest", 1 / 3),
        (10, "Resize", "nearest", 1.25),
        (10, "Resize", "nearest", 1),
    ],
)
def test_a_resize_places_samples_as_its_opset_does(
    opset: int, op: str, mode: str, scale: float, tmp_path: Path
) -> None:
    node = helper.make_node(op, ["c", "s"], ["y"], "up", mode=mode)
    check(model(opset, [node], {"s": np.array([1, 1, scale, scale], np.float32)}), tmp_path)


def test_a_nearest_resize_that_enlarges_one_axis_and_shrinks_another_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["c", "s"], ["y"], "up", mode="nearest")
    onnx.save(model(10, [node], {"s": np.array([1, 1, 2, 0.5], np.float32)}), tmp_path / "old.onnx")
    with pytest.raises(ModelError, match="Resize 'up' of mode nearest cannot be expressed in a newer opset"):
        load(tmp_path / "old.onnx")


def test_an_upsample_by_computed_scales_never_shrinks(tmp_path: Path) -> None:
    shape = helper.make_node("Shape", ["c"], ["size"], "shape")
    nodes = [
        shape,
        helper.make_node("Cast", ["size"], ["sizes"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sizes", "s"], ["more"], "mul"),
        helper.make_node("Div", ["more", "sizes"], ["scales"], "div"),
        helper.make_node("Upsample", ["c", "scales"], ["y"], "up", mode="nearest"),
    ]
    check(model(9, nodes, {"s": np.array([1, 1, 2, 3], np.float32)}), tmp_path)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_a_hardmax_of_an_old_opset_has_one_row_from_its_axis_on(axis: int, tmp_path: Path) -> None:
    proto = model(11, [helper.make_node("Hardmax", ["c"], ["y"], "hard", axis=axis)], {})
    assert run(proto).sum() == {1: 1, 2: 8, -1: 8 * 12}[axis]
    check(proto, tmp_path)


def test_functions_of_an_old_opset_are_kept(tmp_path: Path) -> None:
    block = helper.make_function(
        "local", "Block", ["X"], ["Y"], [helper.make_node("Relu", ["X"], ["Y"])], [helper.make_opsetid("", 12)]
    )
    call = helper.make_node("Block", ["c"], ["y"], "block", domain="local")
    check(model(12, [call], {}, functions=[block], opsets=[helper.make_opsetid("local", 1)]), tmp_path)


# -- newer ones --------------------------------------------------------------------------------------------------------


@NEWER
def test_scales_and_sizes_of_some_axes_become_those_of_all(tmp_path: Path) -> None:
    for name, index, values in (("scales", 2, np.array([2, 3], np.float32)), ("sizes", 3, np.array([7, 9], np.int64))):
        inputs = ["c", "", name] if index == 2 else ["c", "", "", name]
        node = helper.make_node("Resize", inputs, ["y"], "up", mode="nearest", axes=[2, -1])
        proto = model(18, [node], {name: values})
        check(proto, tmp_path)
        [resize] = [n for n in load(tmp_path / "old.onnx").graph.graph if n.op_type == "Resize"]
        assert "axes" not in resize.attributes
        value = resize.inputs[index]
        assert value is not None
        assert value.const_value is not None
        assert value.const_value.numpy().tolist() == ([1, 1, 2, 3] if index == 2 else [1, 8, 7, 9])


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_a_gemm_that_reads_one_constant_twice_gets_two(beta: float, tmp_path: Path) -> None:
    weight = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    if beta == 0:
        weight[0, 0] = np.nan  # of what is added, which counts for nothing
    plain = np.eye(8, dtype=np.float32)
    names = ["x", "w", "w"] if beta else ["x", "p", "w"]
    graph = helper.make_graph(
        [helper.make_node("Gemm", names, ["y"], "gemm", alpha=2.0, beta=beta)],
        "twice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 8])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(plain, "p")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "twice.onnx")
    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    made = []
    for each in (proto, ir.to_proto(load(tmp_path / "twice.onnx").graph)):
        session = onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])
        made.append(session.run(None, {"x": x})[0])
    np.testing.assert_allclose(made[1], made[0], rtol=1e-5)
