"""Models of one input that a test writes down node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZES = (2, 4, 6, 6)


class Chain:
    """A model of one input that is written down node by node."""

    def __init__(self, shape: tuple[int | str, ...] = SIZES, seed: int = 0) -> None:
        self.rng, self.shape = np.random.default_rng(seed), shape
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.last = "x"

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, np.float32)
        return name

    def add(self, op: str, *others: str, first: str = "", **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, [first or self.last, *others], [name], f"n{len(self.nodes)}", **attributes)
        )
        self.last = name
        return name

    def random(self, *shape: int) -> str:
        return self.constant(self.rng.normal(size=shape))

    def conv(self, out: int = 4, size: int = 1, *, bias: bool = True, group: int = 1, **attributes: Any) -> str:
        biases = [self.random(out)] if bias else []
        return self.add("Conv", self.random(out, 4 // group, size, size), *biases, group=group, **attributes)

    def save(self, path: Path, opset: int = 17) -> Path:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        onnx.save(model, path)
        return path
