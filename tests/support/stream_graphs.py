"""Random graphs of ops that factors pass through, and runs of every tensor of a model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from hypothesis import strategies as st
from numpy.typing import NDArray

from search.graph.model import Model, load
from tests.support.networks import Net, feeds, finish, save

SIZE = 6
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Growing:
    """A graph to which random ops are added; every tensor is (2, channels, SIZE, SIZE)."""

    def __init__(self, draw: Draw, opset: int) -> None:
        self.draw = draw
        self.net = Net(draw(st.integers(0, 2**16)), opset)
        self.tensors = [("image", 3)]
        self.count = 0
        self.add_conv()

    def grow(self) -> None:
        """Add one op, or a few that belong together."""
        self.draw(st.sampled_from([getattr(self, name) for name in dir(self) if name.startswith("add_")]))()

    def end(self) -> onnx.ModelProto:
        """Make the last tensor a Gemm's, and that the output."""
        x, c = self.tensors[-1]
        pooled = self.op("GlobalAveragePool", [x]) if self.draw(st.booleans()) else x
        flat = self.op("Flatten", [pooled], axis=1)
        self.net.gemm(flat, "fc", c if pooled != x else c * SIZE * SIZE, 5)
        self.net.nodes[-1].output[0] = "logits"
        return finish(self.net, {"image": [2, 3, SIZE, SIZE]}, {"logits": [2, 5]})

    def op(self, kind: str, inputs: list[str], **attributes: object) -> str:
        self.count += 1
        return self.net.op(kind, inputs, f"{kind}{self.count}", **attributes)

    def const(self, array: Any, kind: str = "float32") -> str:
        self.count += 1
        return self.net.const(f"constant{self.count}", np.asarray(array, kind))

    def pick(self, channels: int | None = None) -> tuple[str, int]:
        fitting = [item for item in self.tensors if channels in (None, item[1])]
        tensor: tuple[str, int] = self.draw(st.sampled_from(fitting))
        return tensor

    def put(self, name: str, channels: int) -> None:
        self.tensors.append((name, channels))

    def _convolve(self, x: str, cin: int, cout: int, group: int = 1) -> str:
        self.count += 1
        return self.net.conv(x, f"conv{self.count}", cin, cout, self.draw(st.sampled_from([1, 3])), group=group)

    def add_conv(self) -> None:
        x, c = self.pick()
        out = self.draw(st.sampled_from([4, 8]))
        self.put(self._convolve(x, c, out, self.draw(st.sampled_from([1, 2])) if c % 2 == 0 else 1), out)

    def add_depthwise(self) -> None:
        x, c = self.pick()
        self.put(self._convolve(x, c, c, c), c)

    def add_transposed(self) -> None:
        x, c = self.pick()
        group = 2 if c % 2 == 0 else 1
        weight = self.const(self.net.rng.standard_normal((c, 8 // group, 1, 1)))
        self.put(self.op("ConvTranspose", [x, weight, self.const(self.net.rng.standard_normal(8))], group=group), 8)

    def add_activation(self) -> None:
        x, c = self.pick()
        kind, attributes = self.draw(
            st.sampled_from([("Relu", {}), ("LeakyRelu", {"alpha": 0.1}), ("Sigmoid", {}), ("Abs", {})])
        )
        self.put(self.op(kind, [x], **attributes), c)

    def add_prelu(self) -> None:
        x, c = self.pick()
        self.put(self.op("PRelu", [x, self.const(self.net.rng.uniform(0, 0.5, (c, 1, 1)))]), c)

    def add_clip(self) -> None:
        x, c = self.pick()
        low = self.draw(st.sampled_from([0.0, -0.5]))
        self.put(self.op("Clip", [x, self.const(low), self.const(1.5)]), c)

    def add_residual(self) -> None:
        x, c = self.pick()
        other, _ = self.pick(c)
        self.put(self.op(self.draw(st.sampled_from(["Add", "Sub", "Max", "Mul"])), [x, other]), c)

    def add_concat(self) -> None:
        (x, a), (y, b) = self.pick(), self.pick()
        if a + b <= 24:
            self.put(self.op("Concat", [x, y], axis=1), a + b)

    def add_pool(self) -> None:
        x, c = self.pick()
        kind = self.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        self.put(self.op(kind, [x], kernel_shape=[3, 3], pads=[1] * 4), c)

    def add_constant(self) -> None:
        x, c = self.pick()
        shape = self.draw(st.sampled_from([(c, 1, 1), (1, 1, 1), (1, c, 1, SIZE), ()]))
        values = self.net.rng.uniform(0.5, 2, shape)
        self.put(self.op(self.draw(st.sampled_from(["Add", "Mul", "Div", "Sub", "Min"])), [x, self.const(values)]), c)

    def add_slice(self) -> None:
        x, c = self.pick()
        if c < 3:
            return
        step = self.draw(st.sampled_from([1, 2, -1]))
        start, end = (1, c) if step > 0 else (c - 1, -c - 1)
        bounds = [self.const([number], "int64") for number in (start, end, 1, step)]
        self.put(self.op("Slice", [x, *bounds]), len(range(c)[start : end if step > 0 else None : step]))

    def add_transposes(self) -> None:
        """Channels last, a matrix product over them, and back."""
        x, c = self.pick()
        last = self.op("Transpose", [x], perm=[0, 2, 3, 1])
        self.count += 1
        made = self.net.linear(last, f"linear{self.count}", c, 4)
        self.put(self.op("Transpose", [made], perm=[0, 3, 1, 2]), 4)

    def add_reshapes(self) -> None:
        """Channels in two axes that are swapped, as in a channel shuffle."""
        x, c = self.pick()
        if c % 2 == 0:
            apart = self.op("Reshape", [x, self.const([2, 2, c // 2, SIZE, SIZE], "int64")])
            moved = self.op("Transpose", [apart], perm=[0, 2, 1, 3, 4])
            self.put(self.op("Reshape", [moved, self.const([2, c, SIZE, SIZE], "int64")]), c)

    def add_gate(self) -> None:
        """Squeeze and excite."""
        x, c = self.pick()
        gate = self.op("Sigmoid", [self._convolve(self.op("GlobalAveragePool", [x]), c, c)])
        self.put(self.op("Mul", [x, gate]), c)

    def add_norm(self) -> None:
        x, c = self.pick()
        parts = [self.const(self.net.rng.uniform(0.5, 2, c)) for _ in range(4)]
        self.put(self.op("BatchNormalization", [self.op("Relu", [x]), *parts]), c)


@st.composite
def graphs(draw: Draw) -> Model:
    """A loaded model of random ops, opset 13 to 21."""
    growing = Growing(draw, draw(st.sampled_from([13, 17, 18, 21])))
    for _ in range(draw(st.integers(2, 10))):
        growing.grow()
    return loaded_from(growing.end())


def loaded_from(proto: onnx.ModelProto) -> Model:
    with tempfile.TemporaryDirectory() as folder:
        return load(save(proto, Path(folder) / "model.onnx"))


def outputs_of(model: Model, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The model's outputs, without any fusion."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = ir.to_proto(model.graph).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def run_all(model: Model, *, optimized: bool = False, only: bool = False) -> dict[str, NDArray[Any]]:
    """Every float tensor of a model on one batch by ONNX Runtime; `only` the model's outputs."""
    proto = ir.to_proto(model.graph)
    known = {named.name for named in (*proto.graph.output, *proto.graph.initializer)}
    extra = [info for info in proto.graph.value_info if info.type.tensor_type.elem_type == 1 and info.name not in known]
    proto.graph.output.extend([] if only else extra)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feed: Mapping[str, NDArray[Any]] = feeds(model)
    return dict(zip(names, session.run(names, dict(feed)), strict=True))
