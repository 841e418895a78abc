"""How factors pass through ops with weights: those of what they read are multiplied in, those of what they make divided
out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from evaluators.recovery.streams.result import Reader
from evaluators.recovery.streams.slots import Slot
from evaluators.recovery.streams.tracker import Rule, Tracker, UnclearError, array_of, input_of, integer, tensor_of
from search.graph.grouping import is_constant


def convolve(tracker: Tracker, node: ir.Node) -> None:
    """Weight (outputs, inputs per group, …)."""
    x, weight = tensor_of(node, 0), input_of(node, 1)
    array, groups = array_of(weight), integer(node, "group", 1)
    read = tracker.along(x, 1)
    outputs, width = array.shape[:2]
    first = np.arange(outputs) // (outputs // groups) * width
    matrix = read[first[:, np.newaxis] + np.arange(width)]
    made = tracker.sets.make(outputs)
    ones = (1,) * (array.ndim - 2)
    _finish(tracker, node, read, matrix.reshape(outputs, width, *ones), made.reshape(outputs, 1, *ones))
    _add_bias(tracker, node, made.reshape(1, outputs, *ones))


def convolve_transposed(tracker: Tracker, node: ir.Node) -> None:
    """Weight (inputs, outputs per group, …)."""
    x, weight = tensor_of(node, 0), input_of(node, 1)
    array, groups = array_of(weight), integer(node, "group", 1)
    read = tracker.along(x, 1)
    inputs, width = array.shape[:2]
    made = tracker.sets.make(width * groups)
    first = np.arange(inputs) // (inputs // groups) * width
    matrix = made[first[:, np.newaxis] + np.arange(width)]
    ones = (1,) * (array.ndim - 2)
    _finish(tracker, node, read, read.reshape(inputs, 1, *ones), matrix.reshape(inputs, width, *ones))
    _add_bias(tracker, node, made.reshape(1, -1, *ones))


def multiply_gemm(tracker: Tracker, node: ir.Node) -> None:
    """Weight (inputs, outputs), or the other way round with transB."""
    if integer(node, "transA", 0):
        raise UnclearError
    x, array = tensor_of(node, 0), array_of(input_of(node, 1))
    transposed = bool(integer(node, "transB", 0))
    read = tracker.along(x, 1)
    made = tracker.sets.make(array.shape[0 if transposed else 1])
    sides = (read[np.newaxis], made[:, np.newaxis]) if transposed else (read[:, np.newaxis], made[np.newaxis])
    _finish(tracker, node, read, *sides)
    _add_bias(tracker, node, made[np.newaxis])


def multiply_matrices(tracker: Tracker, node: ir.Node) -> None:
    """A constant right factor (…, inputs, outputs), or two activations, of which only the right one's columns vary."""
    if is_constant(input_of(node, 1)):
        x, array = tensor_of(node, 0), array_of(input_of(node, 1))
        if array.ndim < 2 or len(tracker.shape(x)) < 2:
            raise UnclearError
        read = tracker.along(x, -1)
        made = tracker.sets.make(array.shape[-1])
        _finish(tracker, node, read, read[:, np.newaxis], made[np.newaxis])
        tracker.assign(node.outputs[0], made.reshape((1,) * (len(tracker.shape(node.outputs[0])) - 1) + made.shape))
        return
    left, right = tensor_of(node, 0), tensor_of(node, 1)
    rank = len(tracker.shape(node.outputs[0]))
    if min(len(tracker.shape(left)), len(tracker.shape(right))) < 2:
        raise UnclearError
    slots = tracker.sets.merge_axes(tracker.broadcast(right, rank), [rank - 2])
    tracker.pin(left)
    tracker.assign(node.outputs[0], slots)


def normalize_last(tracker: Tracker, node: ir.Node) -> None:
    """LayerNormalization and its like over the last axis: its input is pinned, its output free."""
    x, rank = tensor_of(node, 0), len(tracker.shape(node.outputs[0]))
    scale = array_of(input_of(node, 1))
    if integer(node, "axis", -1) not in (-1, rank - 1) or scale.ndim != 1:
        raise UnclearError
    _normalize(tracker, node, x, (1,) * (rank - 1) + scale.shape)


def normalize_channels(tracker: Tracker, node: ir.Node) -> None:
    """InstanceNormalization, and GroupNormalization with a number for each channel: axis 1."""
    x, shape = tensor_of(node, 0), tracker.shape(node.outputs[0])
    if array_of(input_of(node, 1)).shape != shape[1:2]:
        raise UnclearError
    _normalize(tracker, node, x, (1, shape[1], *(1,) * (len(shape) - 2)))


def _normalize(tracker: Tracker, node: ir.Node, x: ir.Value, shape: tuple[int, ...]) -> None:
    constants = [value for value in (input_of(node, 1), input_of(node, 2)) if value is not None]
    if len({array_of(value).shape for value in constants}) > 1:
        raise UnclearError
    tracker.pin(x)
    made = tracker.sets.make(int(np.prod(shape)))
    for value in constants:
        tracker.scale(value, None, made)
    tracker.normalized.append(made)
    tracker.assign(node.outputs[0], made.reshape(shape))


def normalize_batch(tracker: Tracker, node: ir.Node) -> None:
    """BatchNormalization with fixed statistics: (x − mean) · scale / deviation + bias."""
    if integer(node, "training_mode", 0):
        raise UnclearError
    x, shape = tensor_of(node, 0), tracker.shape(node.outputs[0])
    scale, bias, mean, variance = (input_of(node, index) for index in (1, 2, 3, 4))
    if any(array_of(value).ndim != 1 for value in (scale, bias, mean, variance)):
        raise UnclearError
    assert scale is not None
    assert bias is not None
    assert mean is not None
    read = tracker.along(x, 1)
    made = tracker.sets.make(shape[1])
    tracker.scale(scale, read, made)
    tracker.scale(mean, None, read)
    tracker.scale(bias, None, made)
    tracker.assign(node.outputs[0], made.reshape(1, shape[1], *(1,) * (len(shape) - 2)))


def _finish(tracker: Tracker, node: ir.Node, read: Slot, in_weight: Slot, made_in_weight: Slot) -> None:
    weight = input_of(node, 1)
    assert weight is not None
    tracker.scale(weight, in_weight, made_in_weight, is_weight=True)
    tracker.readers.append(Reader(node.name or "", (node.inputs[0] and node.inputs[0].name) or "", read))


def _add_bias(tracker: Tracker, node: ir.Node, slots: Slot) -> None:
    """Give the output its slots, tied to the bias: a constant of (channels,), a Gemm's of any shape that broadcasts."""
    bias = input_of(node, 2)
    if bias is not None and not is_constant(bias):
        slots = tracker.sets.unite(slots, _as_rows(tracker, node, bias, slots.ndim))
    elif bias is not None and node.op_type == "Gemm":
        slots = tracker.tie(bias, slots)
    elif bias is not None:
        tracker.scale(bias, None, slots.reshape(-1))
    tracker.assign(node.outputs[0], slots)


def _as_rows(tracker: Tracker, node: ir.Node, bias: ir.Value, rank: int) -> Slot:
    slots = tracker.slots(bias)
    return tracker.broadcast(bias, rank) if node.op_type == "Gemm" else slots.reshape(1, -1, *(1,) * (rank - 2))


RULES: dict[str, Rule] = {
    "BatchNormalization": normalize_batch,
    "Conv": convolve,
    "ConvTranspose": convolve_transposed,
    "Gemm": multiply_gemm,
    "GroupNormalization": normalize_channels,
    "InstanceNormalization": normalize_channels,
    "LayerNormalization": normalize_last,
    "MatMul": multiply_matrices,
    "RMSNormalization": normalize_last,
    "SimplifiedLayerNormalization": normalize_last,
}
