"""Files in half precision: the float32 model that they stand for, whose constants are widened exactly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "stash_type"})


def uses_halves(model: ir.Model) -> bool:
    """Whether an input, or anything that is stored or computed, is in FP16 or BF16."""
    values = (v for graph in model.graphs() for v in (*graph.inputs, *graph.initializers.values(), *_outputs(graph)))
    return any(value.dtype in _HALVES for value in values) or any(
        _is_half(name, attribute) for node in every_node(model) for name, attribute in node.attributes.items()
    )


def every_node(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of a model, those of bodies and functions included."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _is_half(name: str, attribute: ir.Attr) -> bool:
    """Whether an attribute is a constant in half precision, or asks for one."""
    if attribute.type is ir.AttributeType.TENSOR:
        return attribute.as_tensor().dtype in _HALVES
    return attribute.type is ir.AttributeType.INT and name in _TYPE_ATTRIBUTES and attribute.as_int() in _HALVES


def widen_halves(model: ir.Model) -> int:
    """Make everything in FP16 or BF16 float32, in place: constants exactly, inputs, outputs, and what is computed.

    Args:
        model: all constants are initializers.

    Returns:
        How many constants were in half precision.
    """
    count = 0
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype in _HALVES:
                count += 1
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
        for value in (*graph.initializers.values(), *graph.inputs, *_outputs(graph)):
            if value.dtype in _HALVES and value.type is not None:
                value.dtype = ir.DataType.FLOAT  # of a sequence too, that of its elements
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if _is_half(name, attribute) and attribute.type is ir.AttributeType.TENSOR:
                    tensor = attribute.as_tensor()
                    wide = ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)
                    node.attributes[name] = ir.AttrTensor(name, wide)
                elif _is_half(name, attribute):
                    node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)
    return count


def cast_ends(model: ir.Model) -> None:
    """Give inputs and outputs that are in half precision float32, in place, with a Cast behind or in front of each."""
    graph = model.graph
    first = graph[0]
    for i, value in enumerate(graph.inputs):
        if value.dtype in _HALVES and value.dtype is not None:
            wide = ir.Value(name=value.name, type=ir.TensorType(ir.DataType.FLOAT), shape=value.shape)
            cast = _cast(wide, value.dtype, f"{value.name}/half")
            graph.insert_before(first, cast)
            value.replace_all_uses_with(cast.outputs[0])
            graph.inputs[i] = wide
    for i, value in enumerate(graph.outputs):
        if value.dtype in _HALVES:
            name, value.name = value.name, f"{value.name}/half"
            cast = _cast(value, ir.DataType.FLOAT, name)
            graph.append(cast)
            graph.outputs[i] = cast.outputs[0]


def _cast(value: ir.Value, to: ir.DataType, name: str | None) -> ir.Node:
    cast = ir.node("Cast", [value], {"to": int(to)}, name=f"{name}/cast")
    made = cast.outputs[0]
    made.name, made.type, made.shape = name, ir.TensorType(to), value.shape
    return cast


def _outputs(graph: ir.Graph) -> Iterator[ir.Value]:
    return (value for node in graph for value in node.outputs)
