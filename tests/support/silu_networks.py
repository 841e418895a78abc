"""Networks whose convolutions reach far below 0, where a SiLU leaves nothing: 8 bits are coarse before it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support.networks import Net


def silu_network(*, residual: bool, channels: int = 32, layers: int = 5) -> onnx.ModelProto:
    """Convolutions with SiLU.

    Args:
        residual: what a SiLU makes is added to what its convolution reads, but for the first one.
    """
    n, x = Net(24), "image"
    for i in range(layers):
        before, x = x, n.conv(x, f"silu.{i}", 3 if i == 0 else channels, channels)
        x = silu(n, x, f"silu.{i}")
        if residual and i:
            x = n.op("Add", [before, x], f"silu.{i}/add")
    far = np.linspace(-40, 2, channels, dtype=np.float32)
    for tensor in n.weights:
        if tensor.name.startswith("silu.") and tensor.name.endswith(".b"):
            tensor.CopyFrom(numpy_helper.from_array(far, tensor.name))
    n.head(x, channels)
    return n.model([4, 3, 16, 16], "logits", [4, 10])


def box_network(channels: int = 32) -> onnx.ModelProto:
    """A convolution with SiLU, a pooling, and a convolution from whose outputs corners of boxes in pixels are computed.

    The image is 64 pixels wide, of which 8 bits make steps of half a pixel.
    """
    n, cells = Net(27), 32
    x = silu(n, n.conv("image", "first", 3, channels), "first")
    x = n.op("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = n.conv(x, "box", channels, 16, 1)
    centers = np.broadcast_to(np.linspace(1, 63, cells, dtype=np.float32)[:, None], (1, 1, cells, 16))
    x = n.op("Transpose", [x], "corners", perm=[0, 2, 3, 1])
    x = n.op("Mul", [x, n.const("step", np.full((1, 1, cells, 1), 2, np.float32))], "scale")
    x = n.op("Add", [x, n.const("centers", np.ascontiguousarray(centers))], "shift")
    n.op("Tanh", [n.op("Div", [x, n.const("width", np.full((1, 1, 1, 1), 64, np.float32))], "share")], "boxes")
    return n.model([4, 3, 64, 64], "boxes", [4, cells, cells, 16])


def neck_network(channels: int = 32) -> onnx.ModelProto:
    """What a detector's neck does: a coarse convolution is read by a head, and enlarged beside a fine one by another.

    The channels of `maps` are those of the fine head, then those of the coarse one.
    """
    n = Net(31)
    coarse = silu(n, n.conv("image", "coarse", 3, channels, stride=2), "coarse")
    fine = silu(n, n.conv("image", "fine", 3, channels), "fine")
    joined = n.op("Concat", [fine, _enlarged(n, coarse, "larger")], "joined", axis=1)
    heads = [n.conv(joined, "head.fine", 2 * channels, 8), n.conv(coarse, "head.coarse", channels, 8)]
    n.op("Concat", [heads[0], _enlarged(n, heads[1], "spread")], "maps", axis=1)
    return n.model([4, 3, 32, 32], "maps", [4, 16, 32, 32])


def squeeze_network() -> onnx.ModelProto:
    """EfficientNet's blocks: depthwise convolutions with SiLU, and channels scaled by squeeze-excite."""
    n = Net(41)
    x = silu(n, n.conv("image", "stem", 3, 32, stride=2), "stem")
    x = _squeeze_block(n, x, "b1", (32, 32, 16))
    x = _squeeze_block(n, x, "b2", (16, 96, 24), stride=2)
    x = n.op("Add", [_squeeze_block(n, x, "b3", (24, 144, 24)), x], "b3.add")
    x = _squeeze_block(n, x, "b4", (24, 144, 40), kernel=5, stride=2)
    n.head(x, 40)
    return n.model([8, 3, 56, 56], "logits", [8, 10])


def _squeeze_block(n: Net, x: str, name: str, widths: tuple[int, int, int], *, kernel: int = 3, stride: int = 1) -> str:
    """Channels of the input, between, and of the output."""
    before, middle, after = widths
    if middle > before:
        x = silu(n, n.conv(x, f"{name}.expand", before, middle, 1), f"{name}.expand")
    x = silu(
        n, n.conv(x, f"{name}.depthwise", middle, middle, kernel, stride=stride, group=middle), f"{name}.depthwise"
    )
    s = n.op("GlobalAveragePool", [x], f"{name}.pool")
    s = silu(n, n.conv(s, f"{name}.squeeze", middle, middle // 4, 1), f"{name}.squeeze")
    s = n.op("Sigmoid", [n.conv(s, f"{name}.excite", middle // 4, middle, 1)], f"{name}.gate")
    return n.conv(n.op("Mul", [s, x], f"{name}.scaled"), f"{name}.project", middle, after, 1)


def gated_network(channels: int = 64) -> onnx.ModelProto:
    """MobileNetV3's blocks: depthwise convolutions with HardSwish, and gates of HardSigmoid and of Sigmoid. What is
    before these activations reaches far below 0."""
    n, small = Net(43), channels // 2
    x = n.op("Relu", [n.conv("image", "stem", 3, small)], "stem/act")
    for name, kind, gate in (("b1", "HardSwish", "HardSigmoid"), ("b2", "Relu", "Sigmoid")):
        y = n.op("Relu", [n.conv(x, f"{name}.expand", small, channels, 1)], f"{name}.expand/act")
        y = n.op(kind, [n.conv(y, f"{name}.depthwise", channels, channels, group=channels)], f"{name}.depthwise/act")
        s = n.op("GlobalAveragePool", [y], f"{name}.pool")
        s = n.op("Relu", [n.conv(s, f"{name}.squeeze", channels, 32, 1)], f"{name}.squeeze/act")
        s = n.op(gate, [n.conv(s, f"{name}.excite", 32, channels, 1)], f"{name}.excite/act")
        x = n.conv(n.op("Mul", [s, y], f"{name}.scaled"), f"{name}.project", channels, small, 1)
    x = n.op("HardSwish", [n.conv(x, "last", small, channels, 1)], "last/act")
    x = n.op("Flatten", [n.op("GlobalAveragePool", [x], "pool")], "flatten")
    n.gemm(x, "fc", channels, 16)
    _reach_below_zero(n, ("b1.depthwise", "b1.excite", "b2.excite"))
    return n.model([8, 3, 32, 32], "logits", [8, 16])


def _reach_below_zero(n: Net, layers: tuple[str, ...], lowest: float = -60) -> None:
    """In four channels, so that the others have coarse codes."""
    for index, tensor in enumerate(n.weights):
        if tensor.name.removesuffix(".b") in layers and tensor.name.endswith(".b"):
            far = numpy_helper.to_array(tensor).copy()
            far[:4] = lowest
            n.weights[index] = numpy_helper.from_array(far, tensor.name)


def silu(n: Net, x: str, name: str) -> str:
    return n.op("Mul", [x, n.op("Sigmoid", [x], f"{name}/sigmoid")], f"{name}/act")


def _enlarged(n: Net, x: str, name: str) -> str:
    scales = n.const(f"{name}.scales", np.array([1, 1, 2, 2], np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return n.op("Resize", [x, "", scales], name, **how)
