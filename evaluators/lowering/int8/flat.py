"""Beyond which values nothing that reads a tensor tells them apart, as below minus three in front of a HardSwish.

Eight bits need no codes for them. What reads a tensor is found op by op, so that it does not matter whether a GELU is
one node or written out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.lowering.pointwise_functions import run_function, write_function
from search.graph.floats.bounds import UNBOUNDED, VIEWS, Bounds
from search.graph.grouping import POINTWISE, is_constant

# Not Exp, whose many small values are summed by a softmax that is written out.
_OPS = POINTWISE - {"Exp"}
_MOST_NODES = 12
_PER_ONE, _FARTHEST = 8, 64  # points of the grid on which functions are looked at, exact for the ends of a HardSwish
_MOST = 16  # a function that changes up to there may change beyond the grid too
_STEEPEST = 8  # up to where a function's steepest slope is looked for, by which its outputs count as inputs
# Of a step of eight bits over a range that ends there: what a function may still change by beyond, counted as inputs.
# That is a third of what rounding itself is usually off by, and all on one side.
_FLAT = 0.1 / 255


def flat_beyond(graph: ir.Graph) -> dict[str, Bounds]:
    """Name of a tensor → between which bounds its values have to be told apart, infinite on a side where all have to.

    Tensors of which all values have to be told apart are left out, as outputs of the graph are.
    """
    bounds_by_tensor: dict[str, Bounds] = {}
    for value in (value for node in reversed(graph) for value in node.outputs):
        bounds = _distinct_bounds(value, graph, bounds_by_tensor)
        if bounds != UNBOUNDED:
            bounds_by_tensor[value.name or ""] = bounds
    return bounds_by_tensor


def _distinct_bounds(value: ir.Value, graph: ir.Graph, bounds_by_tensor: Mapping[str, Bounds]) -> Bounds:
    readers = list(dict.fromkeys(node for node, _ in value.uses()))
    if not readers or value.is_graph_output():
        return UNBOUNDED
    views = [made for node in readers for made in node.outputs if node.op_type in VIEWS and node.inputs[0] is value]
    others = [node for node in readers if node.op_type not in VIEWS]
    needed = [bounds_by_tensor.get(made.name or "", UNBOUNDED) for made in views]
    if others:
        function = _function_of(value, others, graph)
        needed.append(_flat_ends(function) if function else UNBOUNDED)
    return min((low for low, _ in needed), default=-math.inf), max((high for _, high in needed), default=math.inf)


def _function_of(value: ir.Value, readers: list[ir.Node], graph: ir.Graph) -> bytes:
    """What pointwise ops make of one value alone, as a serialized model of the same for any names; empty if some reader
    is no such op."""
    names, nodes, waiting = {value: "x"}, list[ir.Node](), list(readers)
    while waiting and len(nodes) < _MOST_NODES:
        node = waiting.pop(0)
        if node in nodes or not _is_pointwise(node, graph, names):
            continue
        nodes.append(node)
        names[node.outputs[0]] = f"y{len(nodes)}"
        waiting += dict.fromkeys(reader for reader, _ in node.outputs[0].uses())
    if any(node not in nodes for node in readers):
        return b""
    made = [node.outputs[0] for node in nodes]
    ends = [v for v in made if v.is_graph_output() or any(reader not in nodes for reader, _ in v.uses())]
    return write_function(nodes, names, ends, graph)


def _is_pointwise(node: ir.Node, graph: ir.Graph, names: Mapping[ir.Value, str]) -> bool:
    known = (v is None or v in names or (is_constant(v) and v.const_value.size == 1) for v in node.inputs)  # type: ignore[union-attr]
    return node.graph is graph and node.domain in ("", "ai.onnx") and node.op_type in _OPS and all(known)


@lru_cache(maxsize=256)
def _flat_ends(function: bytes) -> Bounds:
    """Below and above which inputs all outputs of a function stay as they are, infinite where they do not."""
    x = np.arange(-_FARTHEST * _PER_ONE, _FARTHEST * _PER_ONE + 1, dtype=np.float32) / _PER_ONE
    outputs = run_function(function, x)
    if outputs is None:
        return UNBOUNDED
    with np.errstate(all="ignore"):
        steepest = np.abs(np.diff(outputs[:, np.abs(x) <= _STEEPEST], axis=1)).max(axis=1, keepdims=True) * _PER_ONE
        outputs = outputs / steepest  # what does not change at all is not finite then, and tells nothing
    low = _flat_below(x, outputs)
    high = _flat_below(-x[::-1], outputs[:, ::-1])
    return (low, -high) if low < -high else UNBOUNDED


def _flat_below(x: NDArray[np.floating[Any]], outputs: NDArray[np.float64]) -> float:
    """The highest x ≤ 0 below which all outputs stay as they are; minus infinity if there is none."""
    with np.errstate(all="ignore"):
        spread = np.maximum.accumulate(outputs, axis=1) - np.minimum.accumulate(outputs, axis=1)
    fits = np.isfinite(spread).all(axis=0) & (spread <= _FLAT * np.abs(x)).all(axis=0) & (x <= 0)
    fits[0] = False  # one point is always flat
    places = np.flatnonzero(~fits[1:])
    first = int(places[0]) if len(places) else len(x) - 1
    return float(x[first]) if x[first] >= -_MOST else -math.inf
