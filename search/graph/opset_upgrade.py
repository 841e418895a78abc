"""Bringing models of old opsets to a newer one, with what ONNX's own converter leaves out; nodes in their order.

And those of the newest opsets to one of which older runtimes have every kernel, where nothing in them is newer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, inliner, numpy_helper, version_converter

from search.errors import ModelError

OLDEST_OPSET = 13  # the first with per-channel QuantizeLinear
UPGRADE_OPSET = 17  # the newest that TensorRT 8.6 reads
_KNOWN_OPSET = 22  # the newest of which ONNX Runtime 1.23, the last for Python 3.10, has the kernels of INT8
_KNOWN_IR = 10  # the version of the file format that this opset asks for; older runtimes refuse later ones
_TYPES_ALONE = 25  # from 23 until here ops are defined again for more types and attributes alone; Mod changed with 28
_FLAT_HARDMAX = 13  # before it Hardmax takes everything from its axis on as one row
_SHRINKING = 10  # before it there is only Upsample
_HALF_PIXEL = 11  # before it Resize and Upsample had one way to place samples, which is no longer the default


def at_least_opset(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Give the model, converted to a newer opset if its own does not support per-channel quantization.

    ONNX's converter drops functions, and converts Resize, Upsample and Hardmax to ops that compute something else. What
    they compute in the old opset is written out.

    Raises:
        ModelError: ONNX's own converter cannot convert the model, or a Resize of an old opset cannot be expressed.
    """
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    if version >= OLDEST_OPSET:
        return proto
    try:
        if proto.functions:
            proto = inliner.inline_local_functions(proto)
        if version < _FLAT_HARDMAX:
            proto = _with_flat_hardmax(proto)
        converted: onnx.ModelProto = version_converter.convert_version(proto, UPGRADE_OPSET)
    except Exception as error:
        first = f"{error}".strip().splitlines()
        raise ModelError(
            f"converting {path} from opset {version} to {UPGRADE_OPSET}: ONNX's converter failed: "
            f"{first[0] if first else type(error).__name__}. Export the model with opset {OLDEST_OPSET} or newer."
        ) from error
    if version < _HALF_PIXEL:
        _place_samples(converted, version, path)
    return converted


def lower_opset(model: ir.Model) -> None:
    """Declare a clean model of a newer opset as one of `_KNOWN_OPSET`, if all its nodes are valid there, in place."""
    version, nodes = model.opset_imports.get("", 0), model.graph.all_nodes()
    if _KNOWN_OPSET < version <= _TYPES_ALONE and all(_is_known(node, version) for node in nodes):
        model.opset_imports[""], model.ir_version = _KNOWN_OPSET, _KNOWN_IR


def _is_known(node: ir.Node, version: int) -> bool:
    """Whether `_KNOWN_OPSET` has the op of this node, with its attributes, operands and their types."""
    if node.domain:
        return True
    try:
        new, old = (onnx.defs.get_schema(node.op_type, opset) for opset in (version, _KNOWN_OPSET))
    except onnx.defs.SchemaError:
        return False
    if new.since_version == old.since_version:
        return True
    sides = (old.inputs, node.inputs), (old.outputs, node.outputs)
    return set(node.attributes) <= set(old.attributes) and all(_takes(formal, values) for formal, values in sides)


def _takes(formal: Sequence[onnx.defs.OpSchema.FormalParameter], values: Sequence[ir.Value | None]) -> bool:
    """Whether an op with these parameters, the last of which may stand for many, has place for these values."""
    many = bool(formal) and formal[-1].option is onnx.defs.OpSchema.FormalParameterOption.Variadic
    return (many or len(values) <= len(formal)) and all(
        value is None or (value.dtype is not None and f"tensor({value.dtype.name.lower()})" in parameter.types)
        for value, parameter in zip(values, [*formal, *list(formal[-1:]) * len(values)], strict=False)
    )


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort nodes in place, each behind what it reads; ONNX Runtime takes them in any order, as converters leave them.

    Nodes that read one another in a circle are left to the checker.
    """
    maker = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    needs = {
        place: {maker[name] for name in _names_read(node) if name in maker} for place, node in enumerate(graph.node)
    }
    if all(needed < place for place, some in needs.items() for needed in some):
        return
    with suppress(CycleError):
        order = list(TopologicalSorter(needs).static_order())
        copies = [onnx.NodeProto.FromString(graph.node[place].SerializeToString()) for place in order]
        del graph.node[:]
        graph.node.extend(copies)


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from _names_read(inner)


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, including those in bodies of If and Loop."""
    for inner in proto_graphs(graph):
        yield from inner.node


def proto_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and the bodies in it, in the order in which onnx_ir goes through them."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from proto_graphs(body)


def _with_flat_hardmax(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every Hardmax is between a Flatten and a Reshape back."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for graph in proto_graphs(copy.graph):
        new_nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if node.op_type != "Hardmax" or node.domain not in ("", "ai.onnx"):
                new_nodes.append(node)
                continue
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
            source, made = node.input[0], node.output[0]
            flat, shape, hard = (f"{made}/{part}" for part in ("flat", "shape", "hard"))
            new_nodes += [
                helper.make_node("Flatten", [source], [flat], f"{node.name}/flatten" if node.name else "", axis=axis),
                helper.make_node("Hardmax", [flat], [hard], node.name, axis=1),
                helper.make_node("Shape", [source], [shape], f"{node.name}/shape" if node.name else ""),
                helper.make_node("Reshape", [hard, shape], [made], f"{node.name}/back" if node.name else ""),
            ]
        del graph.node[:]
        graph.node.extend(new_nodes)
    return copy


def _place_samples(proto: onnx.ModelProto, version: int, path: Path) -> None:
    """Write into every Resize how samples were placed before opset 11, in place."""
    constants = _constants(proto.graph)
    for node in nodes(proto.graph):
        if node.op_type != "Resize" or node.domain not in ("", "ai.onnx"):
            continue
        kept = [each for each in node.attribute if each.name not in ("coordinate_transformation_mode", "nearest_mode")]
        mode = next((attribute.s.decode() for attribute in kept if attribute.name == "mode"), "nearest")
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("coordinate_transformation_mode", "asymmetric")])
        if mode == "nearest":
            rounding = _rounding_mode(constants.get(node.input[2] if len(node.input) > 2 else ""), node, version, path)
            node.attribute.append(helper.make_attribute("nearest_mode", rounding))


def _rounding_mode(scales: NDArray[np.float32] | None, node: onnx.NodeProto, version: int, path: Path) -> str:
    """Which sample is the nearest: the one before where the tensor grows, the one behind where it shrinks."""
    if version < _SHRINKING:
        return "floor"
    grows, shrinks = (None, None) if scales is None else (bool((scales > 1).any()), bool((scales < 1).any()))
    if grows is None or (grows and shrinks):
        why = "its scales are computed" if grows is None else "it enlarges one axis and shrinks another"
        raise ModelError(
            f"converting {path} from opset {version} to {UPGRADE_OPSET}: Resize {node.name!r} of mode nearest cannot "
            f"be expressed in a newer opset, because {why}. Export the model with opset {OLDEST_OPSET} or newer."
        )
    return "ceil" if shrinks else "floor"


def _constants(graph: onnx.GraphProto) -> dict[str, NDArray[np.float32]]:
    """Float constants of up to eight values by name, as scales are."""
    constants: dict[str, NDArray[np.float32]] = {}
    for inner in proto_graphs(graph):
        tensors = {tensor.name: tensor for tensor in inner.initializer}
        for node in inner.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                tensors[node.output[0]] = node.attribute[0].t
        constants |= {name: numpy_helper.to_array(tensor) for name, tensor in tensors.items() if _is_small(tensor)}
    return constants


def _is_small(tensor: onnx.TensorProto) -> bool:
    inside = tensor.data_location != onnx.TensorProto.EXTERNAL
    return inside and tensor.data_type == onnx.TensorProto.FLOAT and math.prod(tensor.dims) <= 8
