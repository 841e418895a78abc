"""Half precision with explicit rounding, for runtimes without kernels for it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def spelled_out(model: ir.Model) -> ir.Model:
    """Compute every half tensor of a lowered model in float, and round it by a Cast there and one back.

    ONNX Runtime's CPU provider computes half ops in float too, but drops the casts that it has put around them together
    with those that stand beside them in the graph: `Cast → Conv → Cast` in half then rounds the weights alone.

    Args:
        model: is changed, and returned.
    """
    graph = model.graph
    for value in graph.initializers.values():
        if value.dtype is HALF and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.type = ir.TensorType(FLOAT)
    for node in list(graph):
        for value in node.outputs:
            if value.dtype is HALF:
                _round(graph, node, value)
    return model


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    users = list(value.uses())
    rounded, after = value, node
    if node.op_type != "Cast":
        value.type = ir.TensorType(FLOAT)
        rounded, after = _cast(graph, node, value, HALF, "rounded")
    back, _ = _cast(graph, after, rounded, FLOAT, "back")
    for user, index in users:
        user.replace_input_with(index, back)


def _cast(graph: ir.Graph, after: ir.Node, value: ir.Value, dtype: ir.DataType, what: str) -> tuple[ir.Value, ir.Node]:
    out = ir.Value(name=f"{value.name}/{what}", type=ir.TensorType(dtype), shape=value.shape)
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], outputs=[out], name=f"{value.name}/{what}/cast")
    graph.insert_after(after, node)
    return out, node
