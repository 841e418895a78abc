"""Biases of weighted ops, in the form that INT8 kernels need."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.lowering.constants import array_of
from search.graph.grouping import is_constant


@dataclass(frozen=True)
class Bias:
    """Input `index` of `user`, a constant, and its numbers: (N,) or (M, N) for N output channels."""

    user: ir.Node
    index: int
    array: NDArray[Any]


def find_bias(node: ir.Node, weight: NDArray[Any], owned: Container[str]) -> Bias | None:
    """The bias to quantize: the third input, or what an Add right behind a MatMul adds. None if there is none such.

    Args:
        weight: constant factor of the node, as stored.
        owned: names of the nodes of all groups: of other Adds nobody asked for INT8.
    """
    user, index = node, 2
    if node.op_type == "MatMul":
        users = node.outputs[0].consumers()
        if len(users) != 1 or users[0].op_type != "Add" or (users[0].name or "") not in owned:
            return None
        user, index = users[0], 1 if users[0].inputs[0] is node.outputs[0] else 0
    value = user.inputs[index] if len(user.inputs) > index else None
    if value is None or not is_constant(value) or not _is_unscaled(node):
        return None
    array = _per_channel(node, array_of(value), weight)
    return None if array is None else Bias(user, index, array)


def _per_channel(node: ir.Node, bias: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any] | None:
    """The bias with a number for each output channel, which is all that kernels take; None if it has no such form.

    A Gemm's may have any shape that broadcasts, and of a MatMul of matrices with its Add ONNX Runtime makes a Gemm.
    """
    if node.op_type not in ("Gemm", "MatMul"):
        return bias if bias.ndim == 1 else None
    transposed = node.attributes.get("transB")
    channels = weight.shape[0 if transposed is not None and transposed.as_int() else -1]
    if node.op_type == "MatMul" and (bias.shape[-1:] != (channels,) or (bias.ndim > 1 and not _gives_matrix(node))):
        return None
    if bias.ndim > 2:
        return None
    rows = () if bias.shape[:-1] == (1,) else bias.shape[:-1]
    return np.broadcast_to(bias if bias.ndim == 0 else bias.reshape(*rows, -1), (*rows, channels))


def _gives_matrix(node: ir.Node) -> bool:
    shape = node.outputs[0].shape
    return shape is not None and len(shape) == 2


def _is_unscaled(node: ir.Node) -> bool:
    """Whether a bias is added as it is: a scaled one cannot share the accumulator's scale."""
    factors = [node.attributes.get(name) for name in ("alpha", "beta")]
    return all(factor is None or factor.as_float() == 1.0 for factor in factors)
