"""Small networks that formats are measured with: convolutions, products of many rows, and products of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
SAMPLES = 48
_CHANNELS, _WIDTH, _ROWS, _WIDE = 64, 256, 128, 1024
_CLASSES = 16


class _Net:
    """Nodes one behind the other, with weights that keep the variance of what they read."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name, self.shape, self.at = name, shape, "input"
        self._rng = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        out = f"{kind.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, [self.at, *inputs], [out], f"{out}_node", **attributes))  # type: ignore[arg-type]
        self.at = out
        return out

    def weight(self, *shape: int, inputs: int) -> str:
        drawn: NDArray[np.float32] = self._rng.normal(0, (2 / inputs) ** 0.5, shape).astype(np.float32)
        self._weights.append(numpy_helper.from_array(drawn, f"weight{len(self._weights)}"))
        return self._weights[-1].name

    def conv(self, read: int, made: int, size: int = 3, stride: int = 1) -> str:
        weight = self.weight(made, read, size, size, inputs=read * size * size)
        return self.op("Conv", weight, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[size // 2] * 4)

    def product(self, read: int, made: int) -> str:
        return self.op("MatMul", self.weight(read, made, inputs=read))

    def save(self, path: Path, made: Shape) -> None:
        ends = (("input", self.shape), (self.at, made))
        graph_input, graph_output = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends
        )
        graph = helper.make_graph(self._nodes, self.name, [graph_input], [graph_output], self._weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def _convolutions() -> tuple[_Net, Shape]:
    """A stem and three residual blocks."""
    net = _Net("convolutions", (1, 3, 64, 64))
    net.conv(3, _CHANNELS, stride=2)
    for _ in range(3):
        skip = net.op("Relu")
        net.conv(_CHANNELS, _CHANNELS)
        net.op("Relu")
        net.conv(_CHANNELS, _CHANNELS)
        net.op("Add", skip)
    net.op("Relu")
    net.op("GlobalAveragePool")
    net.op("Flatten")
    net.product(_CHANNELS, _CLASSES)
    return net, (1, _CLASSES)


def _products() -> tuple[_Net, Shape]:
    """The feed-forward halves of two encoder layers, for 128 tokens."""
    net = _Net("products", (1, _ROWS, _WIDTH))
    for _ in range(2):
        skip = net.at
        net.product(_WIDTH, 4 * _WIDTH)
        net.op("Relu")
        net.product(4 * _WIDTH, _WIDTH)
        net.op("Add", skip)
    return net, (1, _ROWS, _WIDTH)


def _one_row() -> tuple[_Net, Shape]:
    """Products of one row, which take as long as their weights take to read."""
    net = _Net("one row", (1, _WIDE))
    for _ in range(3):
        net.product(_WIDE, _WIDE)
        net.op("Relu")
    net.product(_WIDE, _CLASSES)
    return net, (1, _CLASSES)


NETWORKS: Mapping[str, Callable[[], tuple[_Net, Shape]]] = {
    "convolutions": _convolutions,
    "products": _products,
    "one row": _one_row,
}


def write_network(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a network and samples for it.

    Returns:
        The files of both.
    """
    net, made = NETWORKS[name]()
    model, data = folder / "model.onnx", folder / "data.npz"
    net.save(model, made)
    drawn = np.random.default_rng(1).normal(size=(SAMPLES, *net.shape[1:]))
    np.savez(data, input=drawn.astype(np.float32))
    return model, data
