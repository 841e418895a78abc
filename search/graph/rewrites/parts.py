"""What rewrites read of nodes, and how they change a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[np.float32]
SCALED = {"Mul": np.multiply, "Div": np.divide}
SHIFTED = {"Add": np.add, "Sub": np.subtract}
# A mask of minus a billion has no place in the bias of a layer that may run in FP16 or INT8, nor has such a factor.
LARGEST = 65504.0


def constant_of(value: ir.Value | None) -> Array | None:
    """The numbers of a float32 constant; None for anything else."""
    tensor = value.const_value if value is not None else None
    if value is None or tensor is None or value.is_graph_input() or tensor.dtype is not ir.DataType.FLOAT:
        return None
    return tensor.numpy()


def constant_operand(node: ir.Node) -> tuple[ir.Value, Array] | None:
    """The other operand and the finite constant of a Mul, Div, Add or Sub whose second operand, or any of a sum or
    product, is constant. A factor has no zero."""
    if node.domain or node.op_type not in {*SCALED, *SHIFTED} or not _is_float(node.outputs[0]):
        return None
    orders = [(0, 1)] if node.op_type in ("Div", "Sub") else [(0, 1), (1, 0)]
    for one, other in orders:
        source, constant = node.inputs[one], constant_of(node.inputs[other])
        if source is None or constant is None or constant_of(source) is not None or not np.isfinite(constant).all():
            continue
        grows = constant.ndim > (0 if source.shape is None else len(source.shape))
        usual = float(np.abs(constant).max(initial=0)) <= LARGEST
        if not grows and usual and (node.op_type in SHIFTED or np.all(np.abs(constant) >= 1 / LARGEST)):
            return source, constant
    return None


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.FLOAT)


def is_read_once(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def are_read_within(nodes: Iterable[ir.Node], readers: Sequence[ir.Node]) -> bool:
    """Whether nothing but these readers reads what the nodes make."""
    made = [value for node in nodes for value in node.outputs]
    return not any(value.is_graph_output() or any(use.node not in readers for use in value.uses()) for value in made)


def insert_in_place_of(
    graph: ir.Graph,
    last: ir.Node,
    op: str,
    source: ir.Value,
    attributes: Sequence[ir.Attr],
    *,
    others: Sequence[ir.Value] = (),
    domain: str = "",
) -> None:
    """Compute what the last node of a pattern makes by one node, which has its name and the name of its result."""
    made = last.outputs[0]
    node = ir.Node(domain, op, [source, *others], attributes, num_outputs=1, name=last.name)
    node.outputs[0].type, node.outputs[0].shape = made.type, made.shape
    name, graph_output = made.name, made.is_graph_output()
    graph.insert_before(last, node)
    made.replace_all_uses_with(node.outputs[0], replace_graph_outputs=graph_output)
    _remove_unread(graph, last)
    node.outputs[0].name = name


def replace_by_source(graph: ir.Graph, node: ir.Node, source: ir.Value) -> None:
    """Let all who read what a node makes read its source instead; a result of the model keeps its name."""
    made = node.outputs[0]
    name, graph_output = made.name, made.is_graph_output()
    made.replace_all_uses_with(source, replace_graph_outputs=graph_output)
    _remove_unread(graph, node)
    if graph_output:
        source.name = name


def _remove_unread(graph: ir.Graph, node: ir.Node) -> None:
    """Remove a node and, of those before it, all that nobody reads any more."""
    sources: list[Any] = [value.producer() for value in node.inputs if value is not None]
    graph.remove(node, safe=True)
    for source in dict.fromkeys(each for each in sources if each is not None):
        if source.graph is graph and not any(value.uses() or value.is_graph_output() for value in source.outputs):
            _remove_unread(graph, source)


def set_constant(graph: ir.Graph, node: ir.Node, index: int, array: NDArray[Any]) -> None:
    """Give a node a constant of its own; the one it had goes where nothing else reads it."""
    old = node.inputs[index] if index < len(node.inputs) else None
    base = f"{node.name}/{old.name if old is not None else 'bias'}"
    if old is not None and old.name is not None and old.name.startswith(f"{node.name}/"):
        base = old.name
    names = chain([base], (f"{base}/{number}" for number in count()))
    tensor = ir.tensor(np.array(array, order="C"))
    if old is not None and old.name is not None and len(old.uses()) == 1 and not old.is_graph_output():
        graph.initializers.pop(old.name)
    tensor.name = next(each for each in names if each not in graph.initializers)
    kind, shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
    own = ir.Value(name=tensor.name, type=kind, shape=shape, const_value=tensor)
    graph.register_initializer(own)
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, own)
