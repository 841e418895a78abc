"""A SiLU that stays in floats behind a layer in INT8, as one op for ONNX Runtime."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as passes

from evaluators.backends.onnxruntime.gelu import MICROSOFT
from search.graph.rewrites.parts import insert_in_place_of, is_read_once


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
