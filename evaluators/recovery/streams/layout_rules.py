"""Rules for factors at operators that move, select or pool elements."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from evaluators.recovery.streams.slots import reshape_slots
from evaluators.recovery.streams.tracker import (
    Rule,
    Tracker,
    UnclearError,
    array_of,
    input_of,
    integer,
    integers,
    tensor_of,
    text,
)
from search.graph.grouping import is_constant


def pool(tracker: Tracker, node: ir.Node) -> None:
    """Pools over what is behind the channels."""
    x = tensor_of(node, 0)
    slots = tracker.slots(x)
    tracker.assign(node.outputs[0], tracker.sets.merge_axes(slots, range(2, slots.ndim)))


def resize(tracker: Tracker, node: ir.Node) -> None:
    """Interpolates along the axes whose size changes, or would with a scale that is rounded to the same size."""
    x, made = tensor_of(node, 0), tracker.shape(node.outputs[0])
    if text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise UnclearError
    if text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnclearError
    sizes, scales = tracker.shape(x), input_of(node, 2)
    changed = {axis for axis, size in enumerate(sizes) if size != made[axis]}
    if scales is not None and (factors := array_of(scales)).size:
        axes = integers(node, "axes", len(node.inputs)) or range(len(factors))
        changed |= {axis % len(sizes) for axis, factor in zip(axes, factors, strict=True) if factor != 1}
    inner = {axis for axis in range(len(sizes)) if axis > 1}
    tracker.assign(node.outputs[0], tracker.sets.merge_axes(tracker.slots(x), changed | inner))


def reshape(tracker: Tracker, node: ir.Node) -> None:
    """Reshape, Flatten, Squeeze and Unsqueeze: what they do is in the shapes."""
    x = tensor_of(node, 0)
    shapes = list(zip(tracker.shapes(x), tracker.shapes(node.outputs[0]), strict=True))
    tracker.assign(node.outputs[0], reshape_slots(tracker.sets, tracker.slots(x), shapes))


def transpose(tracker: Tracker, node: ir.Node) -> None:
    slots = tracker.slots(tensor_of(node, 0))
    order = node.attributes.get("perm")
    axes = list(range(slots.ndim))[::-1] if order is None else list(order.as_ints())
    tracker.assign(node.outputs[0], np.transpose(slots, axes))


def concatenate(tracker: Tracker, node: ir.Node) -> None:
    """Side by side along the axis; along the others the parts keep their slots."""
    values = [value for value in node.inputs if value is not None]
    axis = integer(node, "axis", 0) % len(tracker.shape(node.outputs[0]))
    parts = [tracker.slots(value) for value in values]
    sizes = [tracker.shape(value)[axis] for value in values]
    common = [max(sizes_) for sizes_ in zip(*(part.shape for part in parts), strict=True)]
    full = [
        np.broadcast_to(part, [*common[:axis], n, *common[axis + 1 :]]) for part, n in zip(parts, sizes, strict=True)
    ]
    tracker.assign(node.outputs[0], np.concatenate(full, axis))


def split(tracker: Tracker, node: ir.Node) -> None:
    x = tensor_of(node, 0)
    slots, shape = tracker.slots(x), tracker.shape(x)
    axis = integer(node, "axis", 0) % len(shape)
    sizes = [tracker.shape(value)[axis] for value in node.outputs]
    ends = np.cumsum(sizes)[:-1].tolist()
    parts = [slots] * len(sizes) if slots.shape[axis] == 1 else np.split(slots, ends, axis)
    for value, part in zip(node.outputs, parts, strict=True):
        tracker.assign(value, part)


def cut(tracker: Tracker, node: ir.Node) -> None:
    """Slice between constant bounds."""
    x = tensor_of(node, 0)
    slots, shape = tracker.slots(x), tracker.shape(x)
    tracker.shape(node.outputs[0])  # which is not empty
    starts, ends, axes, steps = (integers(node, "", index) for index in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise UnclearError
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if slots.shape[axis] > 1:
            slots = np.take(slots, _places(start, end, step, shape[axis]), axis)
    tracker.assign(node.outputs[0], slots)


def _places(start: int, end: int, step: int, size: int) -> list[int]:
    """What a Slice takes, as ONNX clamps its bounds: other than NumPy's, a start far before 0 is 0 going down too."""
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    low, high = (0, size) if step > 0 else (-1, size - 1)
    return list(range(min(max(start, 0), high), min(max(end, low), high), step))


def take(tracker: Tracker, node: ir.Node) -> None:
    """Gather by constant indices along one axis."""
    slots, indices = tracker.slots(tensor_of(node, 0)), array_of(input_of(node, 1))
    tracker.shape(node.outputs[0])  # which is not empty
    axis = integer(node, "axis", 0) % slots.ndim
    if slots.shape[axis] == 1:
        indices = np.zeros((1,) * indices.ndim, np.int64)
    tracker.assign(node.outputs[0], np.take(slots, indices, axis))


def pad(tracker: Tracker, node: ir.Node) -> None:
    """What is padded with has the unit of the rest. With one more here and one less there an axis keeps its size."""
    x = tensor_of(node, 0)
    before, after = tracker.shape(x), tracker.shape(node.outputs[0])
    value = input_of(node, 2)
    if value is not None and not is_constant(value):
        raise UnclearError
    amounts, axes = integers(node, "pads", 1), integers(node, "axes", 3)
    axes = list(range(len(before))) if axes is None else axes
    if amounts is None or len(amounts) != 2 * len(axes):
        raise UnclearError
    moved = {axis % len(before) for axis, amount in zip([*axes, *axes], amounts, strict=True) if amount}
    moved |= {axis for axis, size in enumerate(before) if size != after[axis]}
    slots = tracker.sets.merge_axes(tracker.slots(x), moved)
    if text(node, "mode", "constant") == "constant":
        slots = tracker.tie(value, slots)
    tracker.assign(node.outputs[0], slots)


def repeat(tracker: Tracker, node: ir.Node) -> None:
    """Expand repeats along axes of size 1, or adds axes in front."""
    tracker.assign(node.outputs[0], tracker.broadcast(tensor_of(node, 0), len(tracker.shape(node.outputs[0]))))


def shuffle(tracker: Tracker, node: ir.Node) -> None:
    """Elements change their place: one factor for all of them."""
    slots = tracker.slots(tensor_of(node, 0))
    rank = len(tracker.shape(node.outputs[0]))
    tracker.assign(node.outputs[0], tracker.sets.merge_all(slots, rank))


def ignore(tracker: Tracker, node: ir.Node) -> None:
    """Reads no values."""


RULES: dict[str, Rule] = {
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"), pool),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth", "Tile"), shuffle),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), reshape),
    **dict.fromkeys(("Shape", "Size"), ignore),
    "Concat": concatenate,
    "Expand": repeat,
    "Gather": take,
    "Pad": pad,
    "Resize": resize,
    "Slice": cut,
    "Split": split,
    "Transpose": transpose,
}
