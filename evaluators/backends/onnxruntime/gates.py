"""A GELU or SiLU that is written out, as one op for ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from evaluators.lowering.pointwise_functions import run_function, write_function
from search.graph.fused.node_parts import MICROSOFT
from search.graph.grouping import is_constant
from search.graph.rewrites.parts import are_read_within, insert_in_place_of, is_read_once

_COMPUTED = frozenset({"Add", "Div", "Erf", "Mul", "Pow", "Sub", "Tanh"})
_MOST_NODES = 12  # the longest known GELU has nine
_GRID = np.concatenate([np.linspace(-8, 8, 129), [-64, -16, 16, 64]]).astype(np.float32)
# Constants of a file in FP16 change a GELU by 0.00003. The two GELUs differ by 0.0005.
_NEAR = 1e-4
_GATES = {"Erf": "Gelu", "Tanh": "FastGelu"}


def join_gelu(model: ir.Model) -> ir.Model:
    """The model with each GELU as one op, with the name of its last one.

    Both `0.5 · x · (1 + erf(x ÷ √2))` and `0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))` are found by what they
    compute, because exporters write them in many orders. ONNX Runtime knows two orders of the first and one of the
    second, not that of PyTorch. Behind a DequantizeLinear it knows none: it first gives each reader one of its own, and
    then finds two inputs where the pattern has one. The rules of onnxscript 0.7 know one order of each. The given model
    must not be used afterwards.
    """
    gates = [node for node in model.graph if node.op_type in _GATES and not node.domain]
    if not any([_join_gelu_of(gate, model.graph) for gate in gates]):  # noqa: C419 - each has its turn
        return model
    # ONNX has Gelu from opset 20 on, which would move every other op too.
    model.opset_imports.setdefault(MICROSOFT, 1)
    return passes.RemoveUnusedNodesPass()(model).model


def _join_gelu_of(gate: ir.Node, graph: ir.Graph) -> bool:
    """Join the GELU that an Erf or a Tanh is of, if it is of one that nothing else reads parts of."""
    for last, source in product(_followers(gate, graph), list(_sources(gate))):
        parts = _parts_between(source, last)
        if not parts or _rank(source) != _rank(last.outputs[0]):
            continue
        names = {source: "x", **{node.outputs[0]: f"y{number}" for number, node in enumerate(parts)}}
        if _is_gelu(write_function(parts, names, last.outputs, graph), gate.op_type):
            if not are_read_within(parts[:-1], parts):
                return False
            insert_in_place_of(graph, last, _GATES[gate.op_type], source, [], domain=MICROSOFT)
            return True
    return False


@lru_cache(maxsize=256)
def _is_gelu(function: bytes, gate: str) -> bool:
    """Whether a function is the GELU with an Erf, or the one with a Tanh."""
    x, made = _GRID.astype(np.float64), run_function(function, _GRID)
    bent = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    gates = np.tanh(bent) if gate == "Tanh" else [math.erf(each / math.sqrt(2)) for each in x]
    return made is not None and np.allclose(made, x / 2 * (1 + np.asarray(gates)), rtol=_NEAR, atol=_NEAR)


def _sources(gate: ir.Node) -> Iterator[ir.Value]:
    """The tensors of which a GELU may be: each stands before the gate, and beside it as a factor."""
    waiting, seen = [gate], 0
    while waiting and seen < _MOST_NODES:
        node, seen = waiting.pop(0), seen + 1
        for value in dict.fromkeys(each for each in node.inputs if each is not None):
            maker = value.producer()
            if len(value.uses()) > 1 and not is_constant(value) and value.dtype is ir.DataType.FLOAT:
                yield value
            if maker is not None and _is_computed(maker):
                waiting.append(maker)


def _followers(node: ir.Node, graph: ir.Graph) -> Iterator[ir.Node]:
    """The ops that read what a node makes, one after the other, as far as each is the only reader."""
    for _ in range(_MOST_NODES):
        if not is_read_once(node.outputs[0]):
            return
        node = next(iter(node.outputs[0].uses())).node
        if not _is_computed(node) or node.graph is not graph:
            return
        yield node


def _is_computed(node: ir.Node) -> bool:
    return node.op_type in _COMPUTED and not node.domain


def _parts_between(source: ir.Value, last: ir.Node) -> list[ir.Node]:
    """The ops that make a node's result of one tensor and single numbers, in an order in which they can be computed;
    empty if it takes more than that."""
    parts, waiting = list[ir.Node](), [last]
    while waiting:
        makers = []
        for value in waiting[-1].inputs:
            if value is source or value is None or _is_number(value):
                continue
            maker = value.producer()
            if maker is None or not _is_computed(maker) or len(parts) + len(waiting) > _MOST_NODES:
                return []
            makers += [] if maker in parts else [maker]
        if makers:
            waiting += makers
        elif (done := waiting.pop()) not in parts:
            parts.append(done)
    return parts


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _is_number(value: ir.Value) -> bool:
    return is_constant(value) and value.const_value is not None and value.const_value.size == 1


def join_silu(model: ir.Model) -> ir.Model:
    """The model with each `x · Sigmoid(x)` of a dequantized tensor as one op, with the name of its product.

    ONNX Runtime joins them itself, but not behind a DequantizeLinear: it first gives each reader one of its own. A SiLU
    between layers in INT8 stays as it is, since a table and a product of codes are faster. The given model must not be
    used afterwards.
    """
    gates = [node for node in model.graph if node.op_type == "Sigmoid" and not node.domain]
    if not any([_join_silu_of(gate, model.graph) for gate in gates]):  # noqa: C419 - each has its turn
        return model
    model.opset_imports.setdefault(MICROSOFT, 1)
    return passes.RemoveUnusedNodesPass()(model).model


def _join_silu_of(gate: ir.Node, graph: ir.Graph) -> bool:
    source, made = gate.inputs[0], gate.outputs[0]
    maker = source.producer() if source is not None else None
    if source is None or maker is None or maker.op_type != "DequantizeLinear" or not is_read_once(made):
        return False
    product = next(iter(made.uses())).node
    if product.op_type != "Mul" or product.domain or product.graph is not graph or {*product.inputs} != {source, made}:
        return False
    insert_in_place_of(graph, product, "QuickGelu", source, [ir.AttrFloat32("alpha", 1.0)], domain=MICROSOFT)
    return True
