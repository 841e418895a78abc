"""Single groups in a lower precision, as small graphs that show its effect on one group alone."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from evaluators.diagnose.distributions import Levels, Narrow
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import Placement
from evaluators.measure.group_tensors import Piece
from search.values import Assignment, Precision, Ranges


def lower_piece(piece: Piece, precision: Precision, ranges: Ranges, placement: Placement) -> ir.Model:
    """The piece in a precision, with the outputs of the float piece.

    Raises:
        ModelError: it cannot be written in that precision.
    """
    return spelled_out(lower(piece.model, Assignment({piece.group.id: precision}), ranges, placement))


def grids(graph: ir.Model, precision: Precision, piece: Piece) -> Mapping[str, Levels | Narrow]:
    """What each activation of a lowered piece is rounded to: the piece's inputs and output, where they are at all."""
    known = {*piece.inputs, piece.output}
    if not precision.quantized:
        return {name: Narrow(precision) for name in known}
    found: dict[str, Levels | Narrow] = {}
    for node in graph.graph:
        value = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        name = (value.name or "").removesuffix("/raw") if value is not None else ""
        if name in known:
            found[name] = _levels(node)
    return found


def _levels(node: ir.Node) -> Levels:
    scale, zero = (node.inputs[i].const_value for i in (1, 2))  # type: ignore[union-attr]
    assert scale is not None
    assert zero is not None
    signed = zero.dtype is ir.DataType.INT8
    return Levels(float(scale.numpy()), int(zero.numpy()), -128 if signed else 0, 127 if signed else 255)
