"""Bounds that operators put on their outputs for any data: the output of a Relu is never below zero."""

from __future__ import annotations

import math

import onnx_ir as ir

from search.graph.grouping import is_constant
from search.values import TensorRange

Bounds = tuple[float, float]

UNBOUNDED: Bounds = (-math.inf, math.inf)
_FIXED: dict[str, Bounds] = {
    "Abs": (0.0, math.inf),
    "Erf": (-1.0, 1.0),
    "Exp": (0.0, math.inf),
    "HardSigmoid": (0.0, 1.0),
    "LogSoftmax": (-math.inf, 0.0),
    "ReduceL1": (0.0, math.inf),
    "ReduceL2": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Softplus": (0.0, math.inf),
    "Softsign": (-1.0, 1.0),
    "Sqrt": (0.0, math.inf),
    "Tanh": (-1.0, 1.0),
}
VIEWS = frozenset(
    "DepthToSpace Expand Flatten Gather GlobalMaxPool Identity MaxPool ReduceMax ReduceMin Reshape Slice".split()
    + "SpaceToDepth Split Squeeze Tile Transpose Unsqueeze".split()
)
"""Ops whose outputs are values of their first input, and no others."""
_WITHIN_INPUT = VIEWS | {"GlobalAveragePool", "ReduceMean"}  # whose outputs lie between its least and largest value


def bounds_of_values(graph: ir.Graph) -> dict[str, Bounds]:
    """Lowest and highest value that each output of a node can have, by name; infinite if nothing is known."""
    single = {name: _single(value.const_value) for name, value in graph.initializers.items()}
    bounds_by_name: dict[str, Bounds] = {
        name: (number, number) for name, number in single.items() if number is not None
    }
    for node in graph:
        inputs = [
            bounds_by_name.get(value.name or "", UNBOUNDED) if value is not None else UNBOUNDED for value in node.inputs
        ]
        bounds = _bounds_of_outputs(node, inputs) if node.domain in ("", "ai.onnx") else UNBOUNDED
        bounds_by_name.update((value.name or "", bounds) for value in node.outputs)
    return bounds_by_name


def cut(tensor_range: TensorRange, bounds: Bounds) -> TensorRange:
    """The part of a range that lies within bounds; the range itself where no part of it does."""
    low, high = max(tensor_range.low, bounds[0]), min(tensor_range.high, bounds[1])
    return TensorRange(low, high) if low <= high else tensor_range


def _bounds_of_outputs(node: ir.Node, inputs: list[Bounds]) -> Bounds:
    if node.op_type in _FIXED:
        return _FIXED[node.op_type]
    if node.op_type in ("Relu", "Clip"):
        low, high = (0.0, math.inf) if node.op_type == "Relu" else _limits(node)
        return min(max(inputs[0][0], low), high), min(max(inputs[0][1], low), high)
    if node.op_type in _WITHIN_INPUT:
        return inputs[0]
    if node.op_type == "AveragePool":  # padding may count as zeros
        return min(inputs[0][0], 0.0), max(inputs[0][1], 0.0)
    if node.op_type == "Concat":
        return min(low for low, _ in inputs), max(high for _, high in inputs)
    if node.op_type == "Add":
        return sum(low for low, _ in inputs), sum(high for _, high in inputs)
    if node.op_type == "Mul" and all(low >= 0 for low, _ in inputs):
        return 0.0, math.inf
    return UNBOUNDED


def _limits(clip: ir.Node) -> Bounds:
    """The limits of a Clip where they are constants, else infinite."""
    low, high = [*(_number(value) for value in clip.inputs[1:3]), None, None][:2]
    return -math.inf if low is None else low, math.inf if high is None else high


def _single(tensor: ir.TensorProtocol | None) -> float | None:
    """The number of a float constant that has one."""
    if tensor is None or tensor.size != 1 or tensor.dtype is not ir.DataType.FLOAT:
        return None
    return float(tensor.numpy().item())


def _number(value: ir.Value | None) -> float | None:
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return float(value.const_value.numpy())
