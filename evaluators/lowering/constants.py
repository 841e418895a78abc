"""Unused names in a graph, and the constants and nodes that lowering adds with them, each of them once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


class Names:
    """Gives out names that no node or tensor of a graph has, bodies of If and Loop included."""

    def __init__(self, graph: ir.Graph) -> None:
        self._taken: set[str | None] = set()
        for part in (graph, *graph.subgraphs()):
            values = [*part.inputs, *part.initializers.values(), *(value for node in part for value in node.outputs)]
            self._taken.update(value.name for value in values)
            self._taken.update(node.name for node in part)

    def fresh(self, name: str) -> str:
        """`name`, or where that is taken, the first of `name.1`, `name.2`, … that is not; taken from now on."""
        candidate, number = name, 0
        while candidate in self._taken:
            number += 1
            candidate = f"{name}.{number}"
        self._taken.add(candidate)
        return candidate


def name_of_form(name: str, dtype: ir.DataType) -> str:
    """What a tensor or constant is called in another type: `weight/half`, `weight/int8`."""
    return f"{name}/{'half' if dtype is ir.DataType.FLOAT16 else dtype.name.lower()}"


def suffix_of(dtype: ir.DataType) -> str:
    """How names of scales and of what reads codes end, by the float type that codes are read back as."""
    return {ir.DataType.FLOAT: "", ir.DataType.FLOAT16: "16"}.get(dtype, dtype.short_name())


class Constants:
    """The constants that lowering adds to a graph: equal ones asked for under one name are stored once."""

    def __init__(self, graph: ir.Graph, names: Names) -> None:
        self._graph = graph
        self._names = names
        self._made: dict[str, list[ir.Value]] = {}

    def added_arrays(self, name: str) -> list[NDArray[Any]]:
        """What was added under this name: never a constant that the user's file has under it."""
        return [array_of(value) for value in self._made.get(name, [])]

    def add(self, name: str, array: NDArray[Any]) -> ir.Value:
        known = self._made.setdefault(name, [])
        for value in known:
            old = array_of(value)
            if old.dtype == array.dtype and np.array_equal(old, array):
                return value
        tensor = ir.tensor(array, name=self._names.fresh(name))
        shape = ir.Shape(array.shape)
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self._graph.register_initializer(value)
        known.append(value)
        return value


def array_of(value: ir.Value) -> NDArray[Any]:
    """The values of a constant."""
    assert value.const_value is not None
    return value.const_value.numpy()


class Edits:
    """What is added to one graph.

    Attributes:
        names: that the graph does not have yet.
        constants: that are added to it.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.names = Names(graph)
        self.constants = Constants(graph, self.names)
        self._graph = graph
        self._made: dict[Hashable, ir.Value] = {}

    def once(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """What was made under this key, made now where it was not."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def insert(self, node: ir.Node, after: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Put a node of one output right behind the producer of a value, under a fresh name; its output, as `dtype`."""
        out = node.outputs[0]
        node.name = self.names.fresh(node.name or "")
        out.name, out.type, out.shape = self.names.fresh(f"{node.name}_out"), ir.TensorType(dtype), after.shape
        producer = after.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], node)
        else:
            self._graph.insert_after(producer, node)
        return out
