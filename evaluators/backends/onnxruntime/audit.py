"""The audit of ONNX Runtime's engines: the kernels of each group, found in the optimized graph by weights and names."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from evaluators.lowering.constants import name_of_form
from evaluators.lowering.float_types import NARROW, precision_of
from evaluators.lowering.int8.dynamic import PRODUCT
from search.graph.grouping import is_constant
from search.graph.model import Model
from search.values import REFERENCE, Assignment, AuditRow, Precision

_DYNAMIC_KERNEL = "DynamicQuantizeMatMul"
_INT8_KERNELS = frozenset(
    {"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "MatMulInteger", _DYNAMIC_KERNEL}
)
BLOCKS_KERNEL, FLOAT8_KERNEL = "MatMulNBits", "MatMulBlockQuantizedFp8Weight"
_FLOAT_KERNELS = frozenset("Conv FusedConv ConvTranspose Gemm FusedGemm MatMul FusedMatMul".split())
_KERNELS = _INT8_KERNELS | _FLOAT_KERNELS | {BLOCKS_KERNEL, FLOAT8_KERNEL}
_WRITTEN = (*NARROW, ir.DataType.INT8)  # types that lowering writes weights in
# What lowering and ONNX Runtime's optimizers append to the name of the node or tensor that a kernel comes from.
_SUFFIX = re.compile(
    r"(_token_\d+|/MatMulAddFusion|/MatMulScaleFusion/?|/MatmulTransposeFusion/?|_pre_q|_nchwc"
    rf"|{re.escape(PRODUCT)}(\.\d+)?)+$"
)
_PREFIX = re.compile(r"^(InsertedPrecisionFreeCast_|FusedBack_|fused )+")


def audit_rows(optimized: onnx.GraphProto, model: Model, assignment: Assignment) -> tuple[AuditRow, ...]:
    """What the optimized graph runs for each group, found by its weight or by what optimizers leave of its names."""
    types = {tensor.name: ir.DataType(tensor.data_type) for tensor in optimized.initializer}
    dynamic = {name for node in optimized.node if node.op_type == "DynamicQuantizeLinear" for name in node.output}
    owners = owners_of(model)
    got: dict[str, list[tuple[Precision, str]]] = {}
    for node in optimized.node:
        if node.op_type not in _KERNELS:
            continue
        owned_by = owner_of(node, owners)
        if owned_by is not None:
            got.setdefault(owned_by, []).append((_precision_of(node, types, dynamic), node.op_type))
    return answer_rows(got, model, assignment)


def answer_rows(
    got: Mapping[str, Sequence[tuple[Precision, str]]], model: Model, assignment: Assignment
) -> tuple[AuditRow, ...]:
    """What runs for each group, from the precisions and names of the kernels that were found of it."""
    rows = []
    for group in model.groups:
        # Of several kernels (shared weights, or a split op) one that does not obey is the answer.
        group_precision, kernels = assignment[group.id], got.get(group.id, [])
        disobeying = [kernel for kernel in kernels if kernel[0] != group_precision]
        precision, name = min(disobeying or kernels, default=(None, ""))
        rows.append(AuditRow(group.id, group_precision, precision, name))
    return tuple(rows)


@dataclass(frozen=True)
class Owners:
    """Group id by what a kernel may still be known by; node names and tensor names may coincide in a user's file."""

    nodes: Mapping[str, str]
    tensors: Mapping[str, str]
    weights: Mapping[str, str]
    behind: Mapping[str, str]


def owners_of(model: Model) -> Owners:
    groups = model.groups
    weights: dict[str, str] = {}
    shared = set()
    for group in groups:
        written = (*group.weights, *(f"{anchor}/weight" for anchor in group.anchors))
        forms = [*group.weights, *(name_of_form(name, dtype) for name in written for dtype in _WRITTEN)]
        shared |= weights.keys() & forms
        weights.update(dict.fromkeys(forms, group.id))
    return Owners(
        nodes={name: group.id for group in groups for name in group.nodes},
        tensors={name: group.id for group in groups for name in group.tensors},
        weights={name: owner for name, owner in weights.items() if name not in shared},
        behind=dict(_behind(model)),
    )


def _behind(model: Model) -> Iterator[tuple[str, str]]:
    """Names of the ops behind each group that read nothing else, and of what they make, with the group's id.

    Optimizers fuse some with it, once Transposes between were moved, and name what is left after the last one.
    """
    grouped = {name for group in model.groups for name in group.nodes}
    made = {value.name: value for node in model.graph.graph for value in node.outputs}
    for group in model.groups:
        waiting = [made[group.output]] if group.output in made else []
        while waiting:
            for user in waiting.pop().consumers():
                alone = sum(value is not None and not is_constant(value) for value in user.inputs) == 1
                if alone and user.name not in grouped:
                    yield from ((name, group.id) for name in (user.name, *(v.name for v in user.outputs)) if name)
                    waiting += user.outputs


def owner_of(node: onnx.NodeProto, owners: Owners) -> str | None:
    """The group of a node: by its weight, which is what it computes with; else by its name, which NCHWc kernels, whose
    weights have new names, take from the tensor they make; else by its output; else by what comes behind a kernel."""
    by_weight = (owners.weights.get(name) for name in node.input)
    by_name = _lookup(node.name, owners.tensors if node.name.endswith("_nchwc") else owners.nodes)
    by_output = (_lookup(name, owners.tensors) for name in node.output)
    behind = (_lookup(name, owners.behind) for name in (node.name, *node.output) if node.op_type in _KERNELS)
    return next(filter(None, (*by_weight, by_name, *by_output, *behind)), None)


def _lookup(name: str, owners: Mapping[str, str]) -> str | None:
    return owners.get(name) or owners.get(original_name(name))


def original_name(name: str) -> str:
    """The name that a node or tensor had before ONNX Runtime's optimizers added theirs to it."""
    return _PREFIX.sub("", _SUFFIX.sub("", name))


def _precision_of(node: onnx.NodeProto, types: Mapping[str, ir.DataType], dynamic: Container[str]) -> Precision:
    """A node's precision, by its kernel and its codes' source, else the coarsest type of floats among its constants.

    Args:
        dynamic: names of the codes that are made anew in each inference.
    """
    if node.op_type == _DYNAMIC_KERNEL or node.input[0] in dynamic:
        return Precision.INT8_DYNAMIC
    if node.op_type in _INT8_KERNELS:
        return Precision.INT8
    if node.op_type == FLOAT8_KERNEL:
        return Precision.WF8
    if node.op_type == BLOCKS_KERNEL:
        bits = next(each.i for each in node.attribute if each.name == "bits")
        return Precision.in_blocks(f"int{bits}") or REFERENCE
    input_precisions = (precision_of(types.get(name)) for name in node.input)
    return max((precision for precision in input_precisions if precision is not None), default=REFERENCE)
