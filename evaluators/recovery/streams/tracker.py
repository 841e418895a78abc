"""The state of the search for streams: the slots of tensors, and the constants that may be scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.recovery.streams.result import Reader, Scaling
from evaluators.recovery.streams.slots import PINNED, Slot, Slots, with_rank
from search.graph.cleaning import infer_shapes
from search.graph.grouping import is_constant
from search.graph.model import Model

_NOTED = 5  # names in a note


class UnclearError(Exception):
    """A rule cannot say how factors pass through a node: all that it reads and makes keeps the factor 1."""


class Tracker:
    """Slots of the tensors of one model, node after node in the order of the graph."""

    def __init__(self, model: Model) -> None:
        self.sets = Slots()
        self.scalings: list[Scaling] = []
        self.readers: list[Reader] = []
        self.normalized: list[Slot] = []
        self.tensors: dict[ir.Value, Slot] = {}
        self._shapes = [model.shapes, *_further_shapes(model)]
        self._shared: dict[str, None] = {}

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """The shape at the measured inputs; UnclearError where inference does not know it or it is empty."""
        return self.shapes(value)[0]

    def shapes(self, value: ir.Value | None) -> list[tuple[int, ...]]:
        """The shapes at the measured inputs, then at the smallest and the largest where inputs are dynamic.

        Raises:
            UnclearError: inference does not know one of them, or it is empty.
        """
        if value is not None and value.const_value is not None:
            known: list[tuple[int, ...] | None] = [tuple(array_of(value).shape)] * len(self._shapes)
        else:
            known = [shapes.get(value.name or "") if value is not None else None for shapes in self._shapes]
        nonempty = [shape for shape in known if shape is not None and 0 not in shape]
        if len(nonempty) < len(known) or len({len(shape) for shape in nonempty}) > 1:
            raise UnclearError
        return nonempty

    def slots(self, value: ir.Value) -> Slot:
        """Slots of a tensor, with its rank; pinned ones of a constant."""
        return self.tensors.get(value, np.full((1,) * len(self.shape(value)), PINNED, np.int64))

    def assign(self, value: ir.Value, slots: Slot) -> None:
        """Give a tensor its slots; they are made equal along axes whose size changes, as the number of tokens may."""
        if len(self._shapes) > 1:
            sizes = zip(*self.shapes(value), strict=True)
            slots = self.sets.merge_axes(slots, [axis for axis, some in enumerate(sizes) if len(set(some)) > 1])
        self.tensors[value] = slots

    def is_free(self, value: ir.Value) -> bool:
        slots = self.tensors.get(value)
        return slots is not None and bool(self.sets.roots(slots).any())

    def pin(self, value: ir.Value) -> None:
        if value in self.tensors:
            self.sets.pin(self.tensors[value])

    def along(self, value: ir.Value, axis: int) -> Slot:
        """(channels,) slots of a tensor, made equal along all its other axes; of its full size along `axis`."""
        shape, slots = self.shape(value), self.slots(value)
        axis %= len(shape)
        slots = self.sets.merge_axes(slots, [other for other in range(slots.ndim) if other != axis])
        return np.broadcast_to(slots.reshape(-1), (shape[axis],))

    def may_scale(self, value: ir.Value) -> bool:
        """Whether a constant is read by one node alone, so that it can be scaled for it."""
        if value.const_value is None or value.dtype is not ir.DataType.FLOAT:
            return False
        if len(value.uses()) == 1 and not value.is_graph_output() and not value.is_graph_input():
            return True
        self._shared[value.name or ""] = None
        return False

    def scale(self, value: ir.Value, read: Slot | None, written: Slot | None, *, is_weight: bool = False) -> None:
        """Let factors move into a constant, or pin them where it is not this node's alone; zeros need none."""
        if not array_of(value).any():
            return
        if self.may_scale(value):
            self.scalings.append(Scaling(value.name or "", read, written, is_weight))
            return
        for slots in (read, written):
            if slots is not None:
                self.sets.pin(slots)

    def tie(self, value: ir.Value | None, slots: Slot) -> Slot:
        """Let a constant that is added to a tensor, or bounds it, be divided by the tensor's factors.

        Returns:
            The tensor's slots, made equal where one number of the constant stands for several.
        """
        if value is None:
            return slots
        array = array_of(value)
        if not array.any() or np.isinf(array).all():
            return slots
        shape = (1,) * (slots.ndim - array.ndim) + array.shape
        if len(shape) > slots.ndim:
            raise UnclearError
        slots = self.sets.merge_axes(slots, [axis for axis, size in enumerate(shape) if size == 1])
        self.scale(value, None, slots.reshape(slots.shape[slots.ndim - array.ndim :]))
        return slots

    def broadcast(self, value: ir.Value, rank: int) -> Slot:
        return with_rank(self.slots(value), rank)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self._shared:
            return ()
        names = list(self._shared)
        shown = ", ".join(names[:_NOTED]) + (", …" if len(names) > _NOTED else "")
        return (f"left alone what reads or makes {len(names)} constants that several nodes share: {shown}",)


def _further_shapes(model: Model) -> list[Mapping[str, tuple[int, ...]]]:
    """Shapes of all tensors at the smallest and the largest inputs, of a model that takes several."""
    tensor_shapes: list[Mapping[str, tuple[int, ...]]] = []
    for end in (0, 2) if model.profiles else ():
        shapes = {name: profile[end] for name, profile in model.profiles.items()}
        try:
            tensor_shapes.append(
                infer_shapes(model.graph.clone(), {name: (shape,) * 3 for name, shape in shapes.items()})
            )
        except onnx.shape_inference.InferenceError:
            tensor_shapes.append({})
    return tensor_shapes


Rule = Callable[[Tracker, ir.Node], None]
"""Gives the outputs of a node their slots and says which of its constants are scaled; may raise UnclearError."""


def array_of(value: ir.Value | None) -> NDArray[Any]:
    """The values of a constant; UnclearError where it is none."""
    if value is None or value.const_value is None:
        raise UnclearError
    return value.const_value.numpy()


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def tensor_of(node: ir.Node, index: int) -> ir.Value:
    """An activation that a node reads; UnclearError where it is a constant or missing."""
    value = input_of(node, index)
    if value is None or is_constant(value):
        raise UnclearError
    return value


def integer(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def text(node: ir.Node, name: str, default: str) -> str:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()


def integers(node: ir.Node, name: str, index: int) -> list[int] | None:
    """A list given by an attribute or, in newer opsets, by a constant input; None if it is not given."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return [int(number) for number in attribute.as_ints()]
    value = input_of(node, index)
    return None if value is None else [int(number) for number in array_of(value).reshape(-1)]
