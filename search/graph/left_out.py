"""Layers with weights that are in no group, so that they stay as they are, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from search.graph.element_types import is_float
from search.graph.grouping import TRANSPARENT, WEIGHTED, Group, is_constant

# Ops that multiply no matrix, though they may read a constant with several axes.
_NO_PRODUCTS = TRANSPARENT | frozenset(
    "And Cast CumSum Equal Gather GatherElements GatherND Greater GridSample GroupNormalization If "
    "InstanceNormalization LayerNormalization Less Loop Mean Mod OneHot Or RMSNormalization RotaryEmbedding Scan "
    "ScatterElements ScatterND "
    "SkipLayerNormalization EmbedLayerNormalization Sum Trilu Where".split()
)


@dataclass(frozen=True)
class LeftOut:
    """A layer that no precision is chosen for.

    Attributes:
        name: ONNX node name.
        op: op type.
        why: in words.
    """

    name: str
    op: str
    why: str


def find_left_out(graph: ir.Graph, groups: Iterable[Group]) -> tuple[LeftOut, ...]:
    """Every node with weights that is in none of the groups, bodies of If, Loop and Scan included."""
    grouped = {name for group in groups for name in group.nodes}
    return tuple(_each(graph, grouped))


def _each(graph: ir.Graph, grouped: set[str]) -> Iterator[LeftOut]:
    for node in graph.all_nodes():
        inside = node.graph is not graph
        if (not inside and (node.name or "") in grouped) or not _has_weights(node):
            continue
        if inside and node.op_type in WEIGHTED:
            why = "it is in the body of an If, Loop or Scan, which runs as it is"
        elif node.op_type in WEIGHTED and not node.domain:
            why = "it does not compute in float32 on an activation"
        elif node.op_type == "Einsum":
            why = "its equation is no matrix product of an activation and a constant"
        else:
            why = f"precisions are chosen for Conv, ConvTranspose, Gemm and MatMul, not for {node.op_type}"
        yield LeftOut(node.name or "", node.op_type, why)


def _has_weights(node: ir.Node) -> bool:
    if node.op_type in _NO_PRODUCTS:
        return False
    constants = [value for value in node.inputs if value is not None and is_constant(value)]
    return any(
        (is_float(value) or value.dtype is ir.DataType.DOUBLE) and value.shape is not None and len(value.shape) > 1
        for value in constants
    )
