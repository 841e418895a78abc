"""The divergence between the weights of a group and the same weights in a lower precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.diagnose.distributions import by_channel, compare_histograms
from search.graph.grouping import is_constant

_CUT = 0.01  # one far weight would put all others of its channel into one bin


def weight_divergence(exact: ir.Model, lowered: ir.Model, anchors: Sequence[str]) -> float | None:
    """Kullback-Leibler divergence of the rounded from the float weights, in nats; of several weights the worst.

    Histograms are taken of each output channel and, in another pass, of each input channel, over the middle 98 % of
    its own values; the greater of the two means over channels counts. That of output channels shows weights that
    vanish beside a few far larger ones, that of input channels shows inputs that are all but cut off.

    Args:
        exact: a model in float.
        lowered: the same in a lower precision, its nodes under the same names.
        anchors: names of the nodes whose weights are meant.

    Returns:
        None if none of them has a constant weight that is rounded.
    """
    found = [
        _divergence(weight, read_constant(reader))
        for name in anchors
        for value, reader in zip(exact.graph.node(name).inputs[:2], lowered.graph.node(name).inputs[:2], strict=True)
        if value is not None and is_constant(value) and value.const_value is not None
        for weight in [value.const_value.numpy()]
    ]
    return max((each for each in found if each is not None), default=None)


def read_constant(value: ir.Value | None) -> NDArray[Any] | None:
    """What a node reads there, where that is a constant behind Q/DQ and casts at most; else None."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Cast":
        inner = read_constant(node.inputs[0])
        return None if inner is None else inner.astype(ir.DataType(node.attributes["to"].as_int()).numpy())
    return _dequantize(node) if node.op_type == "DequantizeLinear" else None


def _dequantize(node: ir.Node) -> NDArray[Any] | None:
    parts = [read_constant(value) for value in node.inputs]
    if any(part is None for part in parts):
        return None
    codes, scale = np.array(parts[0], np.float32), np.asarray(parts[1], np.float32)
    zero = np.asarray(parts[2], np.float32) if len(parts) > 2 else np.float32(0)
    if scale.ndim == 1 and scale.size > 1:
        axis = node.attributes["axis"].as_int() % codes.ndim if "axis" in node.attributes else 1
        shape = [-1 if i == axis else 1 for i in range(codes.ndim)]
        scale, zero = scale.reshape(shape), np.broadcast_to(zero, scale.shape).reshape(shape)
    codes -= zero
    codes *= scale
    return codes


def _divergence(weight: NDArray[Any], rounded: NDArray[Any] | None) -> float | None:
    if rounded is None or rounded.shape != weight.shape or weight.dtype.kind != "f" or weight.ndim < 2:
        return None
    found = [0.0]
    for axis in (0, 1):
        if weight.shape[axis] > 1:
            rows = by_channel(weight, axis)
            found.append(compare_histograms(rows, by_channel(rounded, axis).astype(np.float64), _CUT)[0])
    return max(found)
