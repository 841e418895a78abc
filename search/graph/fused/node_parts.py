"""The ordinary ops that a fused op is written out as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

MICROSOFT = "com.microsoft"
_AXES_INPUT = 18  # the first opset whose ReduceMean has its axes as an input


class NodeParts:
    """Collects the ordinary ops of one node.

    Attributes:
        node: the fused op.
        opset: of the model.
        nodes: the ordinary ops so far, in their order.
        others: what takes the place of the outputs of the fused op behind its first one.
    """

    def __init__(self, node: ir.Node, opset: int) -> None:
        self.node = node
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.others: dict[ir.Value, ir.Value] = {}

    def input(self, index: int) -> ir.Value | None:
        """An input of the fused op; None where it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def has_more_outputs(self, first: int) -> bool:
        """Whether something reads an output from this one on."""
        return any(value.uses() or value.is_graph_output() for value in self.node.outputs[first:])

    def add(self, op: str, inputs: Sequence[ir.Value | None], name: str = "", **attributes: Any) -> ir.Value:
        """One more op; without a name it has that of the node, by which the user knows the layer."""
        full = f"{self.node.name}/{name}" if name else self.node.name
        made = ir.node(op, inputs, {k: v for k, v in attributes.items() if v is not None}, name=full)
        self.nodes.append(made)
        made.outputs[0].name = f"{self.node.outputs[0].name}/{name or 'product'}"
        made.outputs[0].type = self.node.outputs[0].type
        return made.outputs[0]

    def mean(self, value: ir.Value, axes: Sequence[int], name: str) -> ir.Value:
        if self.opset >= _AXES_INPUT:
            return self.add("ReduceMean", [value, self.constant(f"{name}/axes", np.array(axes, np.int64))], name)
        return self.add("ReduceMean", [value], name, axes=list(axes))

    def constant(self, name: str, array: np.typing.NDArray[np.generic]) -> ir.Value:
        value = ir.Value(
            name=f"{self.node.outputs[0].name}/{name}",
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
        )
        value.const_value = ir.tensor(array, name=value.name)
        assert self.node.graph is not None
        self.node.graph.register_initializer(value)
        return value

    def transpose(self, value: ir.Value, order: Sequence[int], name: str) -> ir.Value:
        return value if list(order) == sorted(order) else self.add("Transpose", [value], name, perm=list(order))
