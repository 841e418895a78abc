"""All mixes of patterns in which ONNX Runtime's optimizer moves or fuses what a mix of precisions must keep apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from evaluators.backends.onnxruntime import OnnxRuntimeBackend
from search.model import load
from search.values import Answer, Assignment, Precision
from tests.networks import Net, finish, observed, save


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


@pytest.mark.parametrize("network", [pooled, embedding, parted])
def test_every_mix_is_obeyed(network: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    backend, model = OnnxRuntimeBackend(), load(save(network(), tmp_path / "net.onnx"))
    builder = backend.builder(model, observed(model))
    groups = [group.id for group in model.groups if not group.pinned]
    assert len(groups) >= 3
    for mix in itertools.product((Precision.FP32, Precision.INT8), repeat=len(groups)):
        kept = dict.fromkeys((group.id for group in model.groups), Precision.FP32)
        assignment = Assignment(kept | dict(zip(groups, mix, strict=True)))
        engine = builder.build(builder.lower(assignment), tmp_path / "engine.onnx")
        wrong = [row for row in builder.audit(engine, assignment).rows if row.answer is not Answer.OBEYED]
        assert not wrong, (mix, wrong)
        session = builder.load(engine.path)
        rng = np.random.default_rng(0)
        outputs = session.run({spec.name: rng.standard_normal(spec.shape, np.float32) for spec in model.inputs})
        session.close()
        assert all(np.isfinite(array).all() for array in outputs.values())
