"""Cutting a model into parts that are models of their own, for builders that learn from each what kernels take."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from search.graph.model import Model, TensorSpec
from search.values import digest_of


def cut_part(model: Model, number: int, count: int) -> Model | None:
    """One of several parts of a model, cut along the order of its nodes into pieces with as many weighted layers each.

    A part keeps the names and ids of the model, and takes what nodes of other parts compute as inputs. It is made to
    be built, not to be run or stored: its inputs need not have samples along their first axis.

    Returns:
        None where the part would hold no layer, and for models that cannot be cut: with sizes that stay dynamic, with
        nodes inside If, Loop or Scan, or with tensors between parts whose type or shape nobody knows.
    """
    graph = model.graph.graph
    if model.profiles or any(node.graph is not graph for node in graph.all_nodes()):
        return None
    nodes = _nodes_of(model, number, count)
    names = {node.name for node in nodes}
    groups = tuple(group for group in model.groups if set(group.anchors) <= names)
    if not groups:
        return None
    made = {value for node in nodes for value in node.outputs}
    taken = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None and value not in made)
    inputs = [value for value in taken if value.name not in graph.initializers]
    outer = {value for value in made if value.is_graph_output() or any(use.node not in nodes for use in value.uses())}
    outputs = [value for node in nodes for value in node.outputs if value in outer]
    proto = ir.to_proto(model.graph)
    types = {each.name: each for each in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output)}
    if not all(value.name in types and value.name in model.shapes for value in (*inputs, *outputs)):
        return None
    first = list(graph).index(nodes[0])
    parts = (
        (proto.graph.node, list(proto.graph.node)[first : first + len(nodes)]),
        (proto.graph.initializer, [each for each in proto.graph.initializer if each.name in {v.name for v in taken}]),
        (proto.graph.input, [types[value.name] for value in inputs]),
        (proto.graph.output, [types[value.name] for value in outputs]),
    )
    for whole, part in parts:
        del whole[:]
        whole.extend(part)
    return replace(
        model,
        graph=ir.from_proto(proto),
        inputs=tuple(_spec_of(model, value) for value in inputs),
        outputs=tuple(_spec_of(model, value) for value in outputs),
        groups=groups,
        edges=tuple(edge for edge in model.edges if {edge.source, edge.target} <= {group.id for group in groups}),
        digest=digest_of([model.digest, str(number), str(count)]),
    )


def _nodes_of(model: Model, number: int, count: int) -> list[ir.Node]:
    """The nodes of a part: it begins with a weighted layer, the first one with the model."""
    anchors = {anchor for group in model.groups for anchor in group.anchors}
    found: list[ir.Node] = []
    passed = 0
    for node in model.graph.graph:
        passed += node.name in anchors
        if max(0, passed - 1) * count // max(1, len(anchors)) == number:
            found.append(node)
    return found


def _spec_of(model: Model, value: ir.Value) -> TensorSpec:
    name = value.name or ""
    dtype = "float32" if value.dtype is None else str(value.dtype.numpy())
    return TensorSpec(name, dtype, tuple(model.shapes[name]))
