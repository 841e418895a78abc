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
        x = n.op("Mul", [x, n.op("Sigmoid", [x], f"silu.{i}/sigmoid")], f"silu.{i}/act")
        if residual and i:
            x = n.op("Add", [before, x], f"silu.{i}/add")
    far = np.linspace(-40, 2, channels, dtype=np.float32)
    for tensor in n.weights:
        if tensor.name.startswith("silu.") and tensor.name.endswith(".b"):
            tensor.CopyFrom(numpy_helper.from_array(far, tensor.name))
    n.head(x, channels)
    return n.model([4, 3, 16, 16], "logits", [4, 10])
