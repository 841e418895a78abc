"""The nodes and constants that lowering adds to a graph, each of them once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import onnx_ir as ir

from evaluators.lowering.constants import Constants, Names


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
