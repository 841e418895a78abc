"""All mixes of patterns in which ONNX Runtime's optimizer moves or fuses what a mix of precisions must keep apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from search.graph.model import load
from search.values import Answer, Assignment, Precision
from tests.support.networks import Net, feeds, finish, observed, save, sqnr_db


def pooled() -> onnx.ModelProto:
    """MaxPool between convolutions, as in VGG: a DQ behind it is pushed in front of it."""
    n, c = Net(31), 8
    x = "image"
    for i, width in enumerate((3, c, c)):
        x = n.op("Relu", [n.conv(x, f"conv.{i}", width, c)], f"conv.{i}/relu")
        x = n.op("MaxPool", [x], f"pool.{i}", kernel_shape=[2, 2], strides=[2, 2])
    n.head(x, c)
    return n.model([4, 3, 16, 16], "logits", [4, 10])


def embedding() -> onnx.ModelProto:
    """A Gemm whose output is one of the network's as well as the next one's input; and a MatMul with only a Relu."""
    n, c = Net(32), 16
    weight = n.random("in.w", c, c, fan_in=c)
    x = n.op("Relu", [n.op("MatMul", ["vector", weight], "in")], "in/relu")
    feature = n.gemm(x, "feature", c, c)
    x = n.op("Softmax", [n.gemm(feature, "head", c, 10)], "softmax")
    return finish(n, {"vector": [4, c]}, {feature: [4, c], x: [4, 10]})


def parted() -> onnx.ModelProto:
    """A Gemm read by another one and by a float op."""
    n, c = Net(33), 16
    x = n.gemm(n.gemm("vector", "first", c, c), "second", c, c)
    y = n.gemm(x, "third", c, c)
    y = n.op("Add", [n.op("Tanh", [x], "tanh"), y], "sum")
    return finish(n, {"vector": [4, c]}, {y: [4, c]})


def dense(*shape: int, op: str = "MatMul") -> onnx.ModelProto:
    """Layers as Keras and scikit-learn export them: a product of matrices, a bias of this shape, a Relu."""
    n, c = Net(34), 16
    x = "vector"
    for name in ("first", "second"):
        weight = n.random(f"{name}.w", c, c, fan_in=c)
        bias = n.const(f"{name}.b", n.rng.standard_normal(shape).astype(np.float32))
        given = [x, weight, *([bias] if op == "Gemm" else [])]
        x = n.op(op, given, name)
        x = x if op == "Gemm" else n.op("Add", [bias, x] if name == "second" else [x, bias], f"{name}/add")
        x = n.op("Relu", [x], f"{name}/relu")
    x = n.gemm(x, "head", c, 10)
    return finish(n, {"vector": [4, c]}, {x: [4, 10]})


def named(op: str, shape: tuple[int, ...]) -> Callable[[], onnx.ModelProto]:
    def made() -> onnx.ModelProto:
        return dense(*shape, op=op)

    made.__name__ = f"{op}{shape}"
    return made


def clipped(product: str, low: float, high: float) -> Callable[[], onnx.ModelProto]:
    """Clips behind convolutions or matrix products; a quantized range ends as they do at zero alone."""

    def made() -> onnx.ModelProto:
        n, c = Net(35), 8
        x = "image" if product == "Conv" else "vector"
        for i in range(2):
            x = (
                n.conv(x, f"layer.{i}", 3 if x == "image" else c, c)
                if product == "Conv"
                else _product(n, x, i, product)
            )
            limits = [n.const(f"clip.{i}.{end}", np.float32(value)) for end, value in (("low", low), ("high", high))]
            x = n.op("Clip", [x, *limits], f"clip.{i}")
        if product != "Conv":
            return finish(n, {"vector": [4, 16]}, {n.gemm(x, "head", 16, 10): [4, 10]})
        n.head(x, c)
        return n.model([4, 3, 8, 8], "logits", [4, 10])

    made.__name__ = f"{product}-clip({low:g},{high:g})"
    return made


def _product(n: Net, x: str, number: int, product: str) -> str:
    weight = n.random(f"layer.{number}.w", 16, 16, fan_in=16)
    return n.op(product, [x, weight], f"layer.{number}")


def residual_dense() -> onnx.ModelProto:
    """Matrix products that ONNX Runtime makes a Gemm of together with the branch that is added to them."""
    n, c = Net(36), 16
    x = n.op("Relu", [n.linear("vector", "first", c, c)], "first/relu")
    y = n.op("MatMul", [x, n.random("second.w", c, c, fan_in=c)], "second")
    x = n.op("Relu", [n.op("Add", [y, x], "sum")], "sum/relu")
    y = n.linear(x, "third", c, c)
    x = n.op("Add", [n.linear(y, "fourth", c, c), y], "sum2")
    return finish(n, {"vector": [4, c]}, {x: [4, c]})


def channels_last() -> onnx.ModelProto:
    """Transposes around activations, as converted from TensorFlow; ONNX Runtime moves them and renames what is left."""
    n, c = Net(37), 8
    x = "image"
    for i, width in enumerate((3, c)):
        x = n.op("Transpose", [n.conv(x, f"conv.{i}", width, c)], f"last.{i}", perm=[0, 2, 3, 1])
        x = n.op("Transpose", [n.op("Relu", [x], f"relu.{i}")], f"first.{i}", perm=[0, 3, 1, 2])
    n.head(x, c)
    return n.model([4, 3, 8, 8], "logits", [4, 10])


def scaled() -> onnx.ModelProto:
    """Constants behind convolutions, which ONNX Runtime takes into their weights."""
    n, c = Net(38), 8
    x = n.conv("image", "conv.0", 3, c)
    weight = n.random("conv.1.w", c, c, 3, 3, fan_in=9 * c)
    x = n.op("Conv", [x, weight], "conv.1", pads=[1] * 4)
    x = n.op("Mul", [x, n.const("half", np.float32(0.5))], "times")
    x = n.batch_norm(n.conv(x, "conv.2", c, c), "norm", c)
    n.head(x, c)
    return n.model([4, 3, 8, 8], "logits", [4, 10])


CLIPPED = [
    clipped(product, low, high) for product in ("Conv", "Gemm", "MatMul") for low, high in ((0, 6), (-1, 1), (0.25, 2))
]
DENSE = [
    *(named("MatMul", shape) for shape in [(16,), (1, 16), (1,), (4, 16)]),
    *(named("Gemm", shape) for shape in [(1, 16), (1,), (), (4, 16), (4, 1)]),
]


@pytest.mark.parametrize(
    "network",
    [pooled, embedding, parted, residual_dense, channels_last, scaled, *CLIPPED, *DENSE],
    ids=lambda made: made.__name__,
)
def test_every_mix_is_obeyed(network: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    backend, model = OnnxRuntimeBackend(), load(save(network(), tmp_path / "net.onnx"))
    builder = backend.builder(model, observed(model))
    groups = [group.id for group in model.groups if not group.pinned]
    assert len(groups) >= 3
    inputs = feeds(model, 0)  # one of those that ranges were observed on, so that nothing is clipped
    floats = backend.float_session(model)
    reference = floats.run(inputs)
    floats.close()
    for mix in itertools.product((Precision.FP32, Precision.INT8), repeat=len(groups)):
        kept = dict.fromkeys((group.id for group in model.groups), Precision.FP32)
        assignment = Assignment(kept | dict(zip(groups, mix, strict=True)))
        engine = builder.build(builder.lower(assignment), tmp_path / "engine.onnx")
        wrong = [row for row in builder.audit(engine, assignment).rows if row.answer is not Answer.OBEYED]
        assert not wrong, (mix, wrong)
        session = builder.load(engine.path)
        outputs = session.run(inputs)
        session.close()
        assert all(sqnr_db(array, outputs[name]) > 20 for name, array in reference.items())
