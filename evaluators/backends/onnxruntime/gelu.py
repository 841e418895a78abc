"""A GELU that is written out, as one op for ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from numpy.typing import NDArray

from search.graph.grouping import is_constant
from search.graph.rewrites.parts import are_read_within, insert_in_place_of, is_read_once

MICROSOFT = "com.microsoft"  # ONNX has Gelu from opset 20 on, which would move every other op too

_Numbers = NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])
_COMPUTED: dict[str, Any] = {
    "Add": np.add,
    "Div": np.divide,
    "Erf": _erf,
    "Mul": np.multiply,
    "Pow": np.power,
    "Sub": np.subtract,
    "Tanh": np.tanh,
}
_MOST_NODES = 12  # the longest known GELU has nine
_GRID = np.concatenate([np.linspace(-8, 8, 129), [-64, -16, 16, 64]])
# Constants of a file in FP16 change a GELU by 0.00003. The two GELUs differ by 0.0005.
_NEAR = 1e-4
_GELUS: dict[str, tuple[str, _Numbers]] = {
    "Erf": ("Gelu", _GRID / 2 * (1 + _erf(_GRID / 2**0.5))),
    "Tanh": ("FastGelu", _GRID / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (_GRID + 0.044715 * _GRID**3)))),
}


def join_gelu(model: ir.Model) -> ir.Model:
    """The model with each GELU as one op, with the name of its last one.

    Both `0.5 · x · (1 + erf(x ÷ √2))` and `0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))` are found by what they
    compute, because exporters write them in many orders. ONNX Runtime knows two orders of the first and one of the
    second, not that of PyTorch. Behind a DequantizeLinear it knows none: it first gives each reader one of its own, and
    then finds two inputs where the pattern has one. The given model must not be used afterwards.
    """
    gates = [node for node in model.graph if node.op_type in _GELUS and not node.domain]
    if not any([_join_gelu_of(gate, model.graph) for gate in gates]):  # noqa: C419 - each has its turn
        return model
    model.opset_imports.setdefault(MICROSOFT, 1)
    return passes.RemoveUnusedNodesPass()(model).model


def _join_gelu_of(gate: ir.Node, graph: ir.Graph) -> bool:
    """Join the GELU that an Erf or a Tanh is of, if it is of one that nothing else reads parts of."""
    op, expected = _GELUS[gate.op_type]
    for last, source in product(_followers(gate, graph), list(_sources(gate))):
        parts = _parts_between(source, last)
        if not parts or _rank(source) != _rank(last.outputs[0]):
            continue
        if np.allclose(_compute(last.outputs[0], {source: _GRID}), expected, rtol=_NEAR, atol=_NEAR):
            if not are_read_within([node for node in parts if node is not last], parts):
                return False
            insert_in_place_of(graph, last, op, source, [], domain=MICROSOFT)
            return True
    return False


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
    """The ops that make a node's result of one tensor and single numbers; empty if it takes more than that."""
    parts, waiting = list[ir.Node](), [last]
    while waiting:
        node = waiting.pop()
        if node in parts:
            continue
        if not _is_computed(node) or len(parts) == _MOST_NODES:
            return []
        parts.append(node)
        for value in node.inputs:
            maker = value.producer() if value is not None else None
            if value is source or (value is not None and _number_of(value) is not None):
                continue
            if maker is None:
                return []
            waiting.append(maker)
    return parts


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _number_of(value: ir.Value) -> _Numbers | None:
    """The constant that is one number, whatever its type and axes."""
    tensor = value.const_value if is_constant(value) else None
    return tensor.numpy().astype(np.float64).reshape(()) if tensor is not None and tensor.size == 1 else None


def _compute(value: ir.Value, known: dict[ir.Value, _Numbers]) -> _Numbers:
    """What a tensor holds where others hold what is known."""
    if value not in known:
        number, maker = _number_of(value), value.producer()
        if number is not None or maker is None:
            assert number is not None
            return number
        inputs = [_compute(each, known) for each in maker.inputs if each is not None]
        with np.errstate(all="ignore"):
            known[value] = _COMPUTED[maker.op_type](*inputs)
    return known[value]
