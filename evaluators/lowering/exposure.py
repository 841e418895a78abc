"""Exposing the outputs of groups as outputs of a model, to find where values differ."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as passes

from evaluators.lowering.constants import Names
from evaluators.lowering.float_types import FLOAT
from search.graph.model import Model


def expose_groups(lowered: ir.Model, model: Model) -> ir.Model:
    """A copy of a lowered model whose outputs are the outputs of its groups, each named by group id."""
    copy = lowered.clone()
    graph = copy.graph
    values = {value.name: value for node in graph for value in node.outputs}
    graph.outputs.clear()
    _free_names(graph, {group.id for group in model.groups})
    for group in model.groups:
        value = values.get(group.output) or values[f"{group.output}/raw"]
        out = ir.Value(name=group.id, type=ir.TensorType(FLOAT))
        graph.append(
            ir.Node("", "Cast", [value], [ir.AttrInt64("to", FLOAT)], outputs=[out], name=f"{group.id}/expose")
        )
        graph.outputs.append(out)
    return passes.RemoveUnusedNodesPass()(copy).model


def _free_names(graph: ir.Graph, wanted: set[str]) -> None:
    names = Names(graph)
    for value in (*graph.initializers.values(), *(value for node in graph for value in node.outputs)):
        if value.name in wanted:
            value.name = names.fresh(value.name)
