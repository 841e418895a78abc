"""A network with all that a recovery step has to leave alone."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from search.graph.model import Model, load
from tests.support.networks import Net, finish, save


@cache
def awkward(opset: int = 17) -> Model:
    """Dead and constant channels, tied weights, a computed weight and bias, a product that nothing is added to."""
    n = Net(3, opset)
    factor = n.op("Sqrt", [n.op("ReduceMax", ["image"], "brightest", keepdims=0)], "factor")
    weight = (n.rng.standard_normal((6, 4, 3, 3)) / 6).astype(np.float32)
    weight[1] = 0  # constant
    bias = n.rng.standard_normal(6).astype(np.float32)
    bias[2] = -1e3  # dead behind the Relu
    x = n.op("Conv", ["image", n.const("dead.w", weight), n.const("dead.b", bias)], "dead", pads=[1] * 4)
    x = n.op("Relu", [x], "relu")
    tied = n.random("tied.w", 6, 6, 1, 1, fan_in=6)
    x = n.op("Relu", [n.op("Conv", [x, tied], "tied1")], "relu1")
    x = n.op("Relu", [n.op("Conv", [x, tied], "tied2")], "relu2")
    computed = n.op("Mul", [n.const("c", np.ones(6, np.float32)), factor], "computed")
    x = n.op("Relu", [n.op("Conv", [x, n.random("w", 6, 6, 1, 1, fan_in=6), computed], "open")], "relu3")
    made = n.op("Mul", [n.random("base", 6, 6, 1, 1, fan_in=6), factor], "made.w")
    x = n.op("Relu", [n.op("Conv", [x, made], "made")], "relu4")
    rows = n.op("Flatten", [n.op("GlobalAveragePool", [x], "pool")], "flatten")
    n.op("MatMul", [rows, n.random("product.w", 6, 5, fan_in=6)], "product")
    proto = finish(n, {"image": [4, 4, 8, 8]}, {"product_out": [4, 5]})
    with tempfile.TemporaryDirectory() as folder:
        return load(save(proto, Path(folder) / "awkward.onnx"))
