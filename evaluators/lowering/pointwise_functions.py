"""What ops that work element by element make of one tensor, as a function of one number that can be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray


def write_function(
    nodes: Sequence[ir.Node], names: Mapping[ir.Value, str], ends: Sequence[ir.Value], graph: ir.Graph
) -> bytes:
    """Nodes as a serialized model of their own, the same for the same ops of any tensors, by which it can be cached.

    Args:
        nodes: in an order in which they can be computed.
        names: what the tensor that goes in (`x`) and what each node makes are called there; all else is a constant of
            one number.
        ends: which of these values come out.
    """
    used = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None and value not in names)
    names = {**names, **{value: f"c{number}" for number, value in enumerate(used)}}
    written = []
    for node in nodes:
        inputs = ["" if value is None else names[value] for value in node.inputs]
        made = onnx.helper.make_node(node.op_type, inputs, [names[node.outputs[0]]])
        made.attribute.extend(ir.to_proto(each) for each in node.attributes.values())
        written.append(made)
    numbers = {names[value]: value.const_value.numpy().reshape(()) for value in used}  # type: ignore[union-attr]
    infos = [onnx.helper.make_tensor_value_info(names[v], onnx.TensorProto.FLOAT, None) for v in ends]
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)
    tensors = [onnx.numpy_helper.from_array(number, name) for name, number in numbers.items()]
    function = onnx.helper.make_graph(written, "function", [x], infos, tensors)
    opset = onnx.helper.make_opsetid("", graph.opset_imports.get("", 17))
    return bytes(onnx.helper.make_model(function, opset_imports=[opset]).SerializeToString(deterministic=True))


def run_function(function: bytes, x: NDArray[np.floating[Any]]) -> NDArray[np.float64] | None:
    """(ends, points): what such a function makes of points (points,); None if ONNX's reference cannot compute it."""
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            made = ReferenceEvaluator(onnx.load_from_string(function)).run(None, {"x": x})
    except Exception:  # whatever an op of a reference that is not complete raises: then nothing is known
        return None
    return np.array([np.broadcast_to(array, x.shape) for array in made], np.float64)
