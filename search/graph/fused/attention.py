"""The Attention of ONNX Runtime's transformer optimizer, written out as the products that it was made of."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from search.graph.fused.node_parts import NodeParts

_FILTERED = -10000.0  # what is added to the score of a position that does not count, where the op says nothing else
_NOT_WRITTEN_OUT = ("do_rotary", "past_present_share_buffer")


def write_out_attention(parts: NodeParts) -> ir.Value | None:
    """One product for query, key and value, whose weights they share, and one each for scores and result.

    None where the op has a past, gives one, or has a mask that is not known to be of keys.
    """
    x, weights, bias, mask = (parts.input(index) for index in range(4))
    attributes = parts.node.attributes
    heads = attributes.get_int("num_heads", 0)
    shape = weights.const_value.shape.numpy() if weights is not None and weights.const_value is not None else ()
    is_other = any(attributes.get_int(name) for name in _NOT_WRITTEN_OUT) or parts.has_more_outputs(1)
    if x is None or not heads or len(shape) != 2 or parts.input(4) is not None or is_other:
        return None
    sizes = list(attributes.get_ints("qkv_hidden_sizes") or [shape[1] // 3] * 3)
    added = _masks(parts, x, mask)
    if sum(sizes) != shape[1] or any(size % heads for size in sizes) or added is None:
        return None
    made = parts.add("MatMul", [x, weights])
    made = made if bias is None else parts.add("Add", [made, bias], "biased")
    query, key, value = _split(parts, made, sizes, heads)
    scale = attributes.get_float("scale") or 1 / math.sqrt(sizes[0] // heads)
    scores = parts.add("MatMul", [query, key], "scores")
    scores = parts.add("Mul", [scores, parts.constant("scale", np.array(scale, np.float32))], "scaled")
    for number, each in enumerate(added):
        scores = parts.add("Add", [scores, each], f"masked{number}")
    rows = parts.add("MatMul", [parts.add("Softmax", [scores], "softmax", axis=-1), value], "rows")
    joined = parts.transpose(rows, [0, 2, 1, 3], "joined")
    return parts.add("Reshape", [joined, parts.constant("joined/shape", np.array([0, 0, sizes[2]]))], "out")


def _split(parts: NodeParts, made: ir.Value, sizes: list[int], heads: int) -> list[ir.Value]:
    """Query, key and value of each head, the key as the second factor of the scores."""
    node = ir.node(
        "Split",
        [made, parts.constant("sizes", np.array(sizes))],
        {"axis": 2},
        num_outputs=3,
        name=f"{parts.node.name}/split",
    )
    parts.nodes.append(node)
    operands = []
    for value, size, name, order in zip(
        node.outputs, sizes, ("query", "key", "value"), ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True
    ):
        value.name, value.type = f"{parts.node.outputs[0].name}/{name}", parts.node.outputs[0].type
        shape = parts.constant(f"{name}/shape", np.array([0, 0, heads, size // heads]))
        operands.append(
            parts.transpose(parts.add("Reshape", [value, shape], f"{name}/of_heads"), order, f"{name}/ordered")
        )
    return operands


def _masks(parts: NodeParts, x: ir.Value, mask: ir.Value | None) -> list[ir.Value] | None:
    """What is added to the scores; None where it is not known what the mask says."""
    masks, filtered = [], parts.node.attributes.get_float("mask_filter_value", _FILTERED) or 0.0
    if mask is not None:
        kept = _kept_keys(parts, x, mask)
        if kept is None:
            return None
        numbers = [parts.constant(name, np.array(n, np.float32)) for name, n in (("kept", 0.0), ("cut", filtered))]
        masks.append(parts.add("Where", [kept, *numbers], "mask"))
    if parts.node.attributes.get_int("unidirectional"):
        length = x.shape[1] if x.shape is not None and len(x.shape) == 3 else None
        if not isinstance(length, int):
            return None
        # Below what a mask adds: a row whose keys are all masked still sees none that follow it.
        later = np.triu(np.full((length, length), 4 * _FILTERED, np.float32), 1)
        masks.append(parts.constant("later", later))
    bias = parts.input(5)
    return masks if bias is None else [*masks, bias]


def _kept_keys(parts: NodeParts, x: ir.Value, mask: ir.Value) -> ir.Value | None:
    """Which keys count, as (batch, 1, 1, keys), of a mask with a number for each key or with how many of them count."""
    if mask.shape is None or mask.dtype is not ir.DataType.INT32:
        return None
    boolean = ir.TensorType(ir.DataType.BOOL)
    if len(mask.shape) == 2:
        zero = parts.constant("zero", np.array(0, np.int32))
        kept = parts.add("Greater", [mask, zero], "counts")
        kept.type = boolean
        axes = [1, 2]
    elif len(mask.shape) == 1 and x.shape is not None and mask.shape[0] == x.shape[0] and isinstance(x.shape[1], int):
        places = parts.constant("places", np.arange(x.shape[1], dtype=np.int32).reshape(1, 1, 1, -1))
        column = parts.add("Unsqueeze", [mask, parts.constant("axes", np.array([1, 2, 3]))], "lengths")
        column.type = mask.type
        kept = parts.add("Less", [places, column], "counts")
        kept.type = boolean
        return kept
    else:
        return None
    made = parts.add("Unsqueeze", [kept, parts.constant("axes", np.array(axes))], "of_all_rows")
    made.type = boolean
    return made
