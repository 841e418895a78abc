"""Weights whose neighbours would overflow a sum of 16 bits, in engines of ONNX Runtime on this processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.lowering.lower import lower
from evaluators.lowering.weights import sums_pairs
from search.graph.model import load
from search.values import Assignment, Precision, Ranges, TensorRange

Level = onnxruntime.GraphOptimizationLevel
SHAPES = {
    "three_by_three": ("Conv", (8, 16, 3, 3), (2, 16, 9, 9), {}),
    "odd_channels": ("Conv", (5, 7, 3, 3), (2, 7, 9, 9), {}),
    "one_by_one": ("Conv", (8, 24, 1, 1), (2, 24, 9, 9), {}),
    "grouped": ("Conv", (8, 3, 3, 3), (2, 12, 9, 9), {"group": 4}),
    "depthwise": ("Conv", (16, 1, 3, 3), (2, 16, 9, 9), {"group": 16}),
    "two_for_each_input": ("Conv", (32, 1, 3, 3), (2, 16, 9, 9), {"group": 16}),
    "matrix": ("MatMul", (37, 16), (4, 37), {}),
}


def network(path: Path, form: str) -> Path:
    """One op whose largest weights are neighbours, which is the worst that may happen."""
    op, shape, inputs, attributes = SHAPES[form]
    rng = np.random.default_rng(0)
    weight = rng.choice(np.array([1, 1, 1, 0.9, 0.5, -1], np.float32), shape)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], name="op", **attributes)],
        form,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def difference(path: Path, inputs: np.ndarray[Any, Any]) -> float:
    """The largest difference between the engine and the same graph computed in float, in steps of the output."""
    model = load(path)
    exact = run(onnx.load(path), Level.ORT_DISABLE_ALL, inputs)
    bounds = {"x": TensorRange(0.0, 1.0), "y": TensorRange(float(exact.min()), float(exact.max()))}
    mix = Assignment({group.id: Precision.INT8 for group in model.groups})
    quantized = ir.to_proto(lower(model, mix, Ranges("minmax", bounds, bounds, 4), OnnxRuntimeBackend().placement))
    engine, emulated = (run(quantized, level, inputs) for level in (Level.ORT_ENABLE_ALL, Level.ORT_DISABLE_ALL))
    return float(np.abs(engine - emulated).max() / ((exact.max() - exact.min()) / 255))


def run(proto: onnx.ModelProto, level: Level, inputs: np.ndarray[Any, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": inputs})[0]


@pytest.mark.parametrize("form", SHAPES)
def test_engines_compute_what_their_codes_say(tmp_path: Path, form: str) -> None:
    path = network(tmp_path / "one.onnx", form)
    inputs = np.random.default_rng(1).choice(np.array([1, 1, 0.98, 0], np.float32), SHAPES[form][2])
    assert difference(path, inputs) <= 1.01


def test_only_depthwise_kernels_take_any_pair(tmp_path: Path) -> None:
    found = {}
    for form, (_, shape, *_) in SHAPES.items():
        node = load(network(tmp_path / f"{form}.onnx", form)).graph.graph.node("op")
        found[form] = sums_pairs(node, np.zeros(shape, np.float32))
    assert [form for form, pairs in found.items() if not pairs] == ["depthwise"]
