"""Small files of models that stand for very much."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def save(
    path: Path, nodes: list[onnx.NodeProto], functions: tuple[onnx.FunctionProto, ...] = (), **arrays: object
) -> Path:
    """A convolution, `c`, and what comes after it, up to `y`."""
    weights = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in {"w": weights, **arrays}.items()]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "w"], ["c"], name="conv"), *nodes],
        "g",
        [helper.make_tensor_value_info("image", FLOAT, [4, 3, 8, 8])],
        [helper.make_tensor_value_info("y", FLOAT, [4, 8, 6, 6])],
        constants,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def added_maximum(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The largest value of `big` is added to the convolution's output."""
    largest = helper.make_node("ReduceMax", ["big"], ["largest"], keepdims=0)
    cast = helper.make_node("Cast", ["largest"], ["float"], to=FLOAT)
    return [*nodes, largest, cast, helper.make_node("Add", ["c", "float"], ["y"])]


HUGE = {
    "Range": (added_maximum(helper.make_node("Range", ["first", "last", "step"], ["big"])),
              {"first": np.int64(0), "last": np.int64(2**35), "step": np.int64(1)}),
    "Cast": (added_maximum(helper.make_node("Range", ["first", "last", "step"], ["list"]),
                           helper.make_node("Cast", ["list"], ["big"], to=FLOAT)),
             {"first": np.int64(0), "last": np.int64(2**35), "step": np.int64(1)}),
    "Concat": (added_maximum(*(helper.make_node("Concat", [f"list{i}"] * 2, [f"list{i + 1}"], axis=0)
                               for i in range(39)),
                             helper.make_node("Concat", ["list39"] * 2, ["big"], axis=0)),
               {"list0": np.ones(1, np.float32)}),
    "Gather": (added_maximum(helper.make_node("Gather", ["u", "v"], ["big"], axis=0)),
               {"u": np.ones((1, 2**18), np.float32), "v": np.zeros(2**18, np.int64)}),
    "Mul": (added_maximum(helper.make_node("Mul", ["u", "v"], ["big"])),
            {"u": np.ones((2**20, 1), np.float32), "v": np.ones((1, 2**20), np.float32)}),
    "Tile": (added_maximum(helper.make_node("Tile", ["u", "times"], ["big"])),
             {"u": np.ones((8, 8), np.float32), "times": np.array([2**18, 2**17])}),
    "MatMul": (added_maximum(helper.make_node("MatMul", ["u", "v"], ["big"])),
               {"u": np.ones((2**20, 1), np.float32), "v": np.ones((1, 2**20), np.float32)}),
    "Resize": (added_maximum(helper.make_node("Resize", ["u", "", "scales"], ["big"])),
               {"u": np.ones((1, 1, 2, 2), np.float32), "scales": np.array([1, 1, 1000, 1000], np.float32)}),
}  # fmt: skip
