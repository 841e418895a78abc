"""Inference of element types that ONNX leaves unknown behind custom operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir


def is_float(value: ir.Value) -> bool:
    """Whether a value is a float tensor; the element type of a sequence may be float too."""
    return isinstance(value.type, ir.TensorType) and value.dtype is ir.DataType.FLOAT


def settle_types(model: ir.Model) -> None:
    """Set unknown element types of tensors, in place, to those that the ONNX operators around them require.

    ONNX's inference goes from inputs to outputs and ends at an operator that it does not know. The definitions of
    operators say more: a Conv has one type for its input, its weight and its output, so a float32 weight determines the
    types of both. A tensor that no operator connects to a known type stays unknown. Shapes are not changed.
    """
    if all(
        value.type is not None for node in model.graph.all_nodes() for value in (*node.inputs, *node.outputs) if value
    ):
        return
    alike = [same for node in model.graph.all_nodes() for same in _alike(node, model.graph.opset_imports)]
    open_ones = [same for same in alike if any(value.type is None for value in same)]
    settled = True
    while settled:
        settled = False
        for same in open_ones:
            known = next((value.type for value in same if isinstance(value.type, ir.TensorType)), None)
            for value in same:
                if value.type is None and known is not None:
                    value.type = ir.TensorType(known.dtype)
                    settled = True


def _alike(node: ir.Node, opsets: dict[str, int]) -> Iterator[list[ir.Value]]:
    """Inputs and outputs of a node that have the same type by the definition of its operator."""
    if not onnx.defs.has(node.op_type, opsets.get(node.domain, 1), node.domain):
        return
    schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    variables: dict[str, list[ir.Value]] = {constraint.type_param_str: [] for constraint in schema.type_constraints}
    for values, parameters in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for value, parameter in _with_parameters(values, parameters):
            if value is not None and parameter.is_homogeneous and parameter.type_str in variables:
                variables[parameter.type_str].append(value)
    yield from variables.values()


def _with_parameters(
    values: Sequence[ir.Value | None], parameters: Sequence[onnx.defs.OpSchema.FormalParameter]
) -> Iterator[tuple[ir.Value | None, onnx.defs.OpSchema.FormalParameter]]:
    """The parameters of an operator; its last one is repeated if it takes any number of values."""
    for index, value in enumerate(values):
        yield value, parameters[min(index, len(parameters) - 1)]
