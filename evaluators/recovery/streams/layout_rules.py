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
    """Interpolates along the axes whose size changes."""
    x, made = tensor_of(node, 0), tracker.shape(node.outputs[0])
    if text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise UnclearError
    given = tracker.shape(x)
    changed = [axis for axis, size in enumerate(given) if size != made[axis]]
    inner = [axis for axis in range(len(given)) if axis > 1]
    tracker.assign(node.outputs[0], tracker.sets.merge_axes(tracker.slots(x), {*changed, *inner}))


def reshape(tracker: Tracker, node: ir.Node) -> None:
    """Reshape, Flatten, Squeeze and Unsqueeze: what they do is in the shapes."""
    x = tensor_of(node, 0)
    old, new = tracker.shape(x), tracker.shape(node.outputs[0])
    moved = reshape_slots(tracker.sets, tracker.slots(x), old, new, regroup=tracker.fixed_sizes)
    tracker.assign(node.outputs[0], moved)


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
    slots = tracker.slots(tensor_of(node, 0))
    starts, ends, axes, steps = (integers(node, "", index) for index in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise UnclearError
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index = [slice(None)] * slots.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if slots.shape[axis] > 1:
            # Going down, an end before the first element is written as a number below −size.
            stop = None if step < 0 and end < -slots.shape[axis] else end
            index[axis] = slice(start, stop, step)
    tracker.assign(node.outputs[0], slots[tuple(index)])


def take(tracker: Tracker, node: ir.Node) -> None:
    """Gather by constant indices along one axis."""
    slots, indices = tracker.slots(tensor_of(node, 0)), array_of(input_of(node, 1))
    axis = integer(node, "axis", 0) % slots.ndim
    if slots.shape[axis] == 1:
        indices = np.zeros((1,) * indices.ndim, np.int64)
    tracker.assign(node.outputs[0], np.take(slots, indices, axis))


def pad(tracker: Tracker, node: ir.Node) -> None:
    """What is padded with has the unit of the rest."""
    x = tensor_of(node, 0)
    before, after = tracker.shape(x), tracker.shape(node.outputs[0])
    value = input_of(node, 2)
    if value is not None and not is_constant(value):
        raise UnclearError
    slots = tracker.sets.merge_axes(tracker.slots(x), [i for i, size in enumerate(before) if size != after[i]])
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
