"""Networks of about 260 groups with random weights, in which noise reaches the outputs with very different gains."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support.networks import Net, save

BATCH = 8


def residual(seed: int, spread: float, scale: float) -> onnx.ModelProto:
    """64 inverted residual blocks with SiLU, downsampled twice.

    Args:
        spread: of the logarithm of what each block adds to its input.
        scale: the median of that.
    """
    net, channels = Net(seed), 16
    x = _silu(net, net.conv("image", "stem", 3, channels), "stem")
    for block in range(64):
        gain = float(np.exp(spread * net.rng.standard_normal())) * scale
        y = _silu(net, _conv(net, x, f"b{block}.up", channels, 2 * channels, 1, tails=0.5), f"b{block}.up")
        y = _silu(net, _conv(net, y, f"b{block}.dw", 2 * channels, 2 * channels, 3, True, tails=0.8), f"b{block}.dw")
        y = _silu(net, _conv(net, y, f"b{block}.mid", 2 * channels, 2 * channels, 1, tails=0.3), f"b{block}.mid")
        y = _conv(net, y, f"b{block}.down", 2 * channels, channels, 1, gain=gain)
        x = net.op("Add", [y, x], f"b{block}.add")
        if block % 16 == 15:
            stride = 2 if block < 40 else 1
            x = _silu(net, _conv(net, x, f"b{block}.t", channels, channels, 3, gain=0.5, stride=stride), f"b{block}.t")
    net.head(x, channels)
    return net.model([BATCH, 3, 16, 16], "logits", [BATCH, 10])


def chain() -> onnx.ModelProto:
    """256 convolutions with BatchNorm and ReLU, and a shortcut around every fourth."""
    net, channels = Net(2), 16
    x = net.op("Relu", [net.conv("image", "stem", 3, channels)], "stem/r")
    before = x
    for number in range(256):
        y = _conv(net, x, f"c{number}", channels, channels, 3 if number % 3 else 1, tails=0.4)
        x = net.op("Relu", [net.batch_norm(y, f"c{number}.bn", channels)], f"c{number}/r")
        if number % 4 == 3:
            x = net.op("Add", [x, before], f"c{number}/add")
        if number % 4 == 3 or number == 0:
            before = x
    net.head(x, channels)
    return net.model([BATCH, 3, 12, 12], "logits", [BATCH, 10])


def transformer() -> onnx.ModelProto:
    """44 blocks of one head of attention and two layers with SiLU, some with three loud channels."""
    net, size, tokens = Net(3), 48, 16
    x = net.conv("image", "embed", 3, size, 3)
    x = net.op("Reshape", [x, net.const("shape", np.array([BATCH, size, tokens], np.int64))], "flat")
    x = net.op("Transpose", [x], "tokens", perm=[0, 2, 1])
    for block in range(44):
        h = _norm(net, x, f"l{block}.n1", size, loud=block % 5 == 0)
        q, k, v = (net.linear(h, f"l{block}.{which}", size, size) for which in "qkv")
        scores = net.op("MatMul", [q, net.op("Transpose", [k], f"l{block}.kt", perm=[0, 2, 1])], f"l{block}.qk")
        scale = net.const(f"l{block}.sc", np.float32(size**-0.5))
        weights = net.op("Softmax", [net.op("Mul", [scores, scale], f"l{block}.scale")], f"l{block}.soft", axis=-1)
        h = net.linear(net.op("MatMul", [weights, v], f"l{block}.av"), f"l{block}.o", size, size)
        x = net.op("Add", [x, _scaled(net, h, f"l{block}.s1")], f"l{block}.add1")
        h = _norm(net, x, f"l{block}.n2", size, loud=block % 7 == 0)
        h = _silu(net, net.linear(h, f"l{block}.f1", size, 2 * size), f"l{block}.f1")
        h = net.linear(h, f"l{block}.f2", 2 * size, size)
        x = net.op("Add", [x, _scaled(net, h, f"l{block}.s2")], f"l{block}.add2")
    net.gemm(net.op("ReduceMean", [x], "mean", axes=[1], keepdims=0), "fc", size, 10)
    return net.model([BATCH, 3, 4, 4], "logits", [BATCH, 10])


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "residual": partial(residual, 11, 0.5, 0.15),
    "uneven": partial(residual, 1, 0.8, 0.35),
    "chain": chain,
    "transformer": transformer,
}


def _silu(net: Net, x: str, name: str) -> str:
    return net.op("Mul", [x, net.op("Sigmoid", [x], f"{name}/s")], f"{name}/a")


def _conv(
    net: Net,
    x: str,
    name: str,
    inputs: int,
    outputs: int,
    size: int,
    depthwise: bool = False,
    *,
    tails: float = 0.0,
    gain: float = 1.0,
    stride: int = 1,
) -> str:
    """A convolution whose output channels differ in scale, by a normal distribution of the logarithm."""
    y = net.conv(x, name, inputs, outputs, size, group=inputs if depthwise else 1, stride=stride)
    weight = next(weight for weight in net.weights if weight.name == f"{name}.w")
    scales = np.exp(tails * net.rng.standard_normal((outputs, 1, 1, 1)))
    weight.CopyFrom(
        numpy_helper.from_array((numpy_helper.to_array(weight) * gain * scales).astype(np.float32), f"{name}.w")
    )
    return y


def _norm(net: Net, x: str, name: str, size: int, *, loud: bool) -> str:
    scale = net.rng.uniform(0.5, 1.5, size)
    scale[:3] *= 12 if loud else 1
    parts = [net.const(f"{name}.g", scale.astype(np.float32)), net.const(f"{name}.b", np.zeros(size, np.float32))]
    return net.op("LayerNormalization", [x, *parts], name, axis=-1)


def _scaled(net: Net, x: str, name: str) -> str:
    return net.op("Mul", [x, net.const(f"{name}.g", np.float32(np.exp(0.7 * net.rng.standard_normal())))], name)


def saved(name: str) -> Path:
    """The file of a network, in a folder for temporary files."""
    return save(NETWORKS[name](), Path(tempfile.gettempdir()) / f"bitfront-few-runs-{name}.onnx")
