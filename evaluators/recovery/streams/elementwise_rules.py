"""Rules for factors at operators that treat all elements alike."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from evaluators.recovery.streams.tracker import (
    Rule,
    Tracker,
    UnclearError,
    array_of,
    input_of,
    integer,
    integers,
    tensor_of,
)
from search.graph.grouping import is_constant


def pass_on(tracker: Tracker, node: ir.Node) -> None:
    """f(k·x) = k·f(x) for positive k: the output has the input's slots."""
    tracker.assign(node.outputs[0], tracker.slots(tensor_of(node, 0)))


def pass_on_sloped(tracker: Tracker, node: ir.Node) -> None:
    """PRelu: the slope multiplies what is negative, and keeps its values."""
    slope = input_of(node, 1)
    if slope is not None and not is_constant(slope):
        tracker.pin(slope)
    pass_on(tracker, node)


def add(tracker: Tracker, node: ir.Node) -> None:
    """Sums, differences and choices among tensors of one unit: all have the same slots, constants move with them."""
    _unite(tracker, node, [value for value in node.inputs if value is not None])


def choose(tracker: Tracker, node: ir.Node) -> None:
    """Where: the condition has no unit."""
    _unite(tracker, node, [value for value in node.inputs[1:] if value is not None])


def _unite(tracker: Tracker, node: ir.Node, values: list[ir.Value]) -> None:
    rank = len(tracker.shape(node.outputs[0]))
    slots = None
    for value in values:
        if not is_constant(value):
            more = tracker.broadcast(value, rank)
            slots = more if slots is None else tracker.sets.unite(slots, more)
    if slots is None:
        raise UnclearError
    for value in values:
        if is_constant(value):
            slots = tracker.tie(value, slots)
    tracker.assign(node.outputs[0], slots)


def multiply(tracker: Tracker, node: ir.Node) -> None:
    """A constant with a number for each channel takes factors from both sides; of two tensors one keeps its values."""
    left, right = node.inputs[0], node.inputs[1]
    if left is None or right is None:
        raise UnclearError
    if is_constant(left) or is_constant(right):
        x, constant = (right, left) if is_constant(left) else (left, right)
        _scale_by_constant(tracker, node, x, constant, dividing=False)
        return
    free, kept = (left, right) if _freedom(tracker, left) >= _freedom(tracker, right) else (right, left)
    tracker.pin(kept)
    tracker.assign(node.outputs[0], tracker.broadcast(free, len(tracker.shape(node.outputs[0]))))


def divide(tracker: Tracker, node: ir.Node) -> None:
    """Treat a division as a product; the divisor keeps its values unless it is a constant."""
    x, divisor = tensor_of(node, 0), input_of(node, 1)
    assert divisor is not None
    if is_constant(divisor):
        _scale_by_constant(tracker, node, x, divisor, dividing=True)
        return
    tracker.pin(divisor)
    tracker.assign(node.outputs[0], tracker.broadcast(x, len(tracker.shape(node.outputs[0]))))


def _scale_by_constant(tracker: Tracker, node: ir.Node, x: ir.Value, constant: ir.Value, *, dividing: bool) -> None:
    rank = len(tracker.shape(node.outputs[0]))
    read, array = tracker.broadcast(x, rank), array_of(constant)
    shape = (1,) * (rank - array.ndim) + array.shape
    covered = array.size > 1 and array.ndim <= rank
    covered = covered and all(slots in (1, size) for slots, size in zip(read.shape, shape, strict=True))
    if not covered or not tracker.may_scale(constant):
        tracker.assign(node.outputs[0], read)
        return
    made = tracker.sets.make(*shape)
    inner = slice(rank - array.ndim, None)
    sides = read.reshape(read.shape[inner]), made.reshape(shape[inner])
    tracker.scale(constant, *(sides[::-1] if dividing else sides))
    if not tracker.is_free(x):
        tracker.normalized.append(made)
    tracker.assign(node.outputs[0], made)


def _freedom(tracker: Tracker, value: ir.Value) -> int:
    """How many factors a tensor may take."""
    return int(np.count_nonzero(np.unique(tracker.sets.roots(tracker.slots(value)))))


def clip(tracker: Tracker, node: ir.Node) -> None:
    """Bounds other than zero move with the one factor that all elements then share."""
    slots = tracker.slots(tensor_of(node, 0))
    for index in (1, 2):
        bound = input_of(node, index)
        if bound is not None and not is_constant(bound):
            raise UnclearError
        slots = tracker.tie(bound, slots)
    tracker.assign(node.outputs[0], slots)


def reduce_axes(tracker: Tracker, node: ir.Node) -> None:
    """Means, sums and extremes over axes along which all have one factor."""
    x = tensor_of(node, 0)
    rank, axes = len(tracker.shape(x)), integers(node, "axes", 1)
    if axes is None or not axes:
        if integer(node, "noop_with_empty_axes", 0):
            raise UnclearError
        axes = list(range(rank))
    axes = sorted({axis % rank for axis in axes})
    slots = tracker.sets.merge_axes(tracker.slots(x), axes)
    if not integer(node, "keepdims", 1):
        slots = slots.reshape([size for axis, size in enumerate(slots.shape) if axis not in axes])
    tracker.assign(node.outputs[0], slots)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Abs", "Dropout", "Identity", "LeakyRelu", "Neg", "Relu"), pass_on),
    **dict.fromkeys(("Add", "Max", "Mean", "Min", "Sub", "Sum"), add),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), reduce_axes),
    "Clip": clip,
    "Div": divide,
    "Mul": multiply,
    "PRelu": pass_on_sloped,
    "Where": choose,
}
