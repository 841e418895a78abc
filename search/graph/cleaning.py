"""Clean a graph so that engines and lowering read it in the same way, without changing what it computes.

Only four steps compute: BatchNorm is fused into the convolution before it, a Gemm's alpha and beta are multiplied into
its constants, constant expressions are evaluated, and Einsums and fused ops of ONNX Runtime's optimizer are written
out as ordinary ops. All of them stay within float32 rounding (relative 1e-5 of an output's magnitude).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import count

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import rewrite
from onnxscript.rewriter.rules import common as rules

from search.graph.opset_upgrade import lower_opset, proto_graphs
from search.graph.other_layers import write_out_ops
from search.graph.rewrites.apply import apply_rewrites
from search.graph.rewrites.parts import set_constant
from search.graph.shapes import Profile
from search.graph.sizes import Folding, propagate_shapes

_FOLDING_LOG = logging.getLogger("onnxscript.optimizer._constant_folding")
# A folded constant may grow the file; past this it is left to the engine.
_FOLD_LIMIT = 1 << 26
_NUMBERED_SPLIT = 18  # the first opset whose Split says how many parts it makes
_SHAPE_BYTES = 1 << 20  # more than any constant has that shapes are computed from
_BATCH_NORM = [
    rules.fuse_batchnorm_into_conv_rule,
    rules.fuse_batchnorm_into_conv_transpose_rule,
    rules.fuse_batchnorm_into_gemm_rule,
]


def clean(model: ir.Model) -> ir.Model:
    """Return the clean model. The given model must not be used afterwards.

    Afterwards: no functions, no Constant nodes, no Identity on initializers, no Dropout, no unused nodes or outputs;
    BatchNorm fused where a Conv, ConvTranspose or Gemm is its only source; every node has a unique name, the user's
    own where there was one, also among the bodies of If and Loop; nodes in topological order.
    """
    model = lift_constants(model)
    _remove_identities(model)
    write_out_ops(model)
    _spread_resizes(model.graph)
    own = {node.name for node in model.graph}
    names = {node.outputs[0].name: _weighted_source(node).name for node in model.graph if node.outputs}
    with _silent_folding():
        fold_constants_ir(
            model,
            input_size_limit=_FOLD_LIMIT,
            output_size_limit=_FOLD_LIMIT,
            should_fold=Folding(model, _FOLD_LIMIT),
        )
    model = _run(model, passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0))
    _remove_identities(model)
    _unnumber_splits(model)
    _fold_gemm_factors(model.graph)
    norms = [node for node in model.graph if node.op_type == "BatchNormalization"]
    if norms and not any(map(_in_training, norms)):
        for node in model.graph:
            if node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.inputs) == 3 and node.inputs[2] is None:
                node.resize_inputs(2)  # the rewrite expects no bias that is left out by an empty name
        _unshare_biases(model.graph)
        model = rewrite(model, pattern_rewrite_rules=_BATCH_NORM)
    model = _run(
        model,
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.TopologicalSortPass(),
        passes.ClearMetadataAndDocStringPass(),
    )
    settle_shapes(model)
    _restore_names(model, own, names)
    model = _run(model, passes.NameFixPass(_Names()))
    _rename_in_bodies(model.graph)
    lower_opset(model)
    raise_ir_version(model)
    return model


def lift_constants(model: ir.Model) -> ir.Model:
    """The model without functions, all its constants initializers, every node named, types and shapes inferred."""
    model = _run(
        model,
        passes.InlinePass(),
        passes.NameFixPass(_Names()),
        passes.RemoveInitializersFromInputsPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
    )
    _forget_carried(model)
    settle_shapes(model)
    return model


def _forget_carried(model: ir.Model) -> None:
    """Take the sizes of what a Loop hands on out of its body, unless it begins, comes and ends with the same.

    Exporters write those of the first round. Masks that a loop collects, for one, begin as a tensor without elements,
    which a Concat would be rid of.
    """
    for node in model.graph.all_nodes():
        if node.op_type != "Loop" or node.domain:
            continue
        body = node.attributes["body"].as_graph()
        for first, inside, last in zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False):
            if first is None or not first.shape == inside.shape == last.shape:
                for value in (inside, last):
                    value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))


def rewrite_exactly(model: ir.Model) -> int:
    """Apply the exact rewrites to a clean model, in place; how many ops it has fewer.

    Raises:
        ModelError: a rewrite of another package cannot be imported.
    """
    before = len(model.graph)
    if apply_rewrites(model):
        _run(model, passes.RemoveUnusedNodesPass(), passes.TopologicalSortPass())
        settle_shapes(model)
    return before - len(model.graph)


def raise_ir_version(model: ir.Model) -> None:
    """Give a model at least the IR version of its opset. IR 3, for one, knows constants only among the inputs."""
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    model.ir_version = max(model.ir_version, 4, onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True))


def _run(model: ir.Model, *steps: ir.passes.PassBase) -> ir.Model:
    for step in steps:
        model = step(model).model
    return model


def infer_shapes(model: ir.Model, profiles: Mapping[str, Profile]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor at the measured input shapes, without those that inference cannot determine."""
    bare = skeleton(model)
    for info in bare.graph.input:
        if (profile := profiles.get(info.name)) is not None:
            sizes = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in profile[1]]
            info.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=sizes))
    for graph in proto_graphs(bare.graph):
        computed = {name for node in graph.node for name in node.output}
        _forget_shapes(info for info in graph.value_info if info.name in computed)
    _forget_shapes(bare.graph.output)
    proto = propagate_shapes(bare)
    shapes: dict[str, tuple[int, ...]] = {}
    for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        tensor = info.type.tensor_type
        dims = tuple(dim.dim_value for dim in tensor.shape.dim)
        if tensor.HasField("shape") and all(dims):
            shapes[info.name] = dims
    return shapes


def settle_shapes(model: ir.Model) -> None:
    """Write the types and shapes that inference finds into the model, in place; where it fails, none.

    The pass of onnx_ir makes a tensor of every sequence. An output keeps the shape that the file gives it only where
    nothing else is known: files are wrong about it, and inference would then find nothing at all.
    """
    bare = skeleton(model)
    _forget_shapes(bare.graph.output)
    try:
        inferred = propagate_shapes(bare, check_type=True)
    except Exception:  # what comes later says what is wrong
        return
    for graph, proto in zip(model.graphs(), proto_graphs(inferred.graph), strict=True):
        known = {info.name: info.type for info in (*proto.input, *proto.output, *proto.value_info)}
        for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
            if value.name not in known:
                continue
            kind = ir.serde.deserialize_type_proto_for_type(known[value.name])
            shape = ir.serde.deserialize_type_proto_for_shape(known[value.name])
            if kind is not None:
                value.type = kind
            if shape is not None:  # that of a scalar is false
                value.shape = shape


def _forget_shapes(infos: Iterable[onnx.ValueInfoProto]) -> None:
    for info in infos:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """The message in which large constants are inputs, because one with all constants may exceed 2 GiB.

    The constants that shapes are computed from stay. The model is changed meanwhile, and as before afterwards.
    """
    graphs = [(graph, dict(graph.initializers), len(graph.inputs)) for graph in model.graphs()]
    try:
        for graph, constants, _ in graphs:
            for name, value in constants.items():
                tensor = value.const_value
                if tensor is not None and tensor.nbytes > _SHAPE_BYTES:
                    value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
                    graph.initializers.pop(name)
                    graph.inputs.append(value)
        return ir.to_proto(model)
    finally:
        for graph, constants, count in graphs:
            while len(graph.inputs) > count:
                graph.inputs.pop()
            if len(graph.initializers) < len(constants):
                graph.initializers.clear()
                graph.initializers.update(constants)


def _weighted_source(node: ir.Node) -> ir.Node:
    """The node whose name a fused BatchNorm should have: the convolution, by which the user knows the layer."""
    source = node.inputs[0].producer() if node.op_type == "BatchNormalization" and node.inputs[0] else None
    return source if source is not None and source.op_type in ("Conv", "ConvTranspose", "Gemm") else node


class _Names(passes.naming.SimpleNameGenerator):
    """Names an unnamed node after the tensor that it computes, which has a name in the user's file."""

    def generate_node_name(self, node: ir.Node) -> str:
        output = node.outputs[0].name if node.outputs else None
        return node.name or f"{node.op_type}_{output or 'node'}"


def _remove_identities(model: ir.Model) -> None:
    """Remove Identity and Dropout nodes of the main graph, but not in bodies of If and Loop, which may need them."""
    for node in list(model.graph):
        source, target = node.inputs[0] if node.inputs else None, node.outputs[0]
        if source is None or not _is_identity(node):
            continue
        name = target.name
        if target.is_graph_output() and (source.producer() is None or source.is_graph_output()):
            continue
        renamed = target.is_graph_output()
        target.replace_all_uses_with(source, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        if renamed:
            source.name = name


def _is_identity(node: ir.Node) -> bool:
    if node.domain or node.op_type not in ("Identity", "Dropout"):
        return False
    return not (_in_training(node) or any(value.uses() or value.is_graph_output() for value in node.outputs[1:]))


def _in_training(node: ir.Node) -> bool:
    """Whether a Dropout or BatchNormalization is in training mode."""
    if node.op_type == "BatchNormalization":
        mode = node.attributes.get("training_mode")
        return mode is not None and bool(mode.as_int())
    flag = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
    return flag is not None and (flag.const_value is None or bool(flag.const_value.numpy()))


@contextmanager
def _silent_folding() -> Iterator[None]:
    """Drop the warnings that ONNX's reference evaluator cannot compute a node, as some GatherElements.

    They are harmless, because such a node stays in the model as it is, and they do not name it.
    """
    _FOLDING_LOG.addFilter(_is_not_failed_folding)
    try:
        yield
    finally:
        _FOLDING_LOG.removeFilter(_is_not_failed_folding)


def _is_not_failed_folding(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Evaluation failed")


def _unnumber_splits(model: ir.Model) -> None:
    """Leave out how many parts a Split has, where folding wrote it into an opset that counts its outputs instead."""
    for node in model.graph.all_nodes() if model.opset_imports.get("", 0) < _NUMBERED_SPLIT else ():
        if node.op_type == "Split" and not node.domain:
            node.attributes.pop("num_outputs", None)


def _fold_gemm_factors(graph: ir.Graph) -> None:
    """Multiply alpha and beta into a Gemm's constants, because no engine's INT8 kernel supports them."""
    for node in graph:
        if node.op_type != "Gemm" or node.domain:
            continue
        for name, index in (("alpha", 1), ("beta", 2)):
            factor = node.attributes.get(name)
            value = node.inputs[index] if index < len(node.inputs) else None
            if factor is None:
                continue
            if name == "beta" and factor.as_float() == 0.0:  # what is added counts for nothing, NaN neither
                node.replace_input_with(index, None) if value is not None else None
                node.attributes.pop(name)
                continue
            if value is not None and value.const_value is None:
                continue
            if value is not None and factor.as_float() != 1.0 and value.const_value is not None:
                set_constant(graph, node, index, value.const_value.numpy() * np.float32(factor.as_float()))
            node.attributes.pop(name)


def _spread_resizes(graph: ir.Graph) -> None:
    """Give scales and sizes of a Resize for all axes: ONNX Runtime's INT8 layouts do not know its `axes`."""
    for node in graph:
        policy, axes = (node.attributes.get(name) for name in ("keep_aspect_ratio_policy", "axes"))
        plain = policy is None or policy.as_string() == "stretch"
        crops = len(node.inputs) > 1 and node.inputs[1] is not None
        if node.op_type == "Resize" and not node.domain and axes is not None and plain and not crops:
            _spread(graph, node, list(axes.as_ints()))


def _spread(graph: ir.Graph, node: ir.Node, axes: list[int]) -> None:
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    for index in (2, 3):
        operand = node.inputs[index] if index < len(node.inputs) else None
        if shape is None or operand is None or operand.const_value is None or not operand.const_value.size:
            continue
        known = {axis % len(shape) for axis in axes}
        full = [1 if index == 2 or axis in known else size for axis, size in enumerate(shape)]
        if all(isinstance(size, int) for size in full):
            array = np.array(full, operand.const_value.numpy().dtype)
            array[axes] = operand.const_value.numpy()
            set_constant(graph, node, index, array)
            node.attributes.pop("axes", None)


def _unshare_biases(graph: ir.Graph) -> None:
    """Copy biases that several layers share, as exporters make them, so that a BatchNorm can be fused into them."""
    for node in graph:
        bias = node.inputs[2] if node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.inputs) > 2 else None
        users = {user.op_type for user in node.outputs[0].consumers()}
        if bias is None or bias.const_value is None or len(bias.uses()) < 2 or users != {"BatchNormalization"}:
            continue
        set_constant(graph, node, 2, bias.const_value.numpy())


def _restore_names(model: ir.Model, own: AbstractSet[str | None], names: Mapping[str | None, str | None]) -> None:
    """Give a node of a rewrite the name of the user's node that computed the same tensor."""
    taken = {node.name for node in model.graph}
    for node in model.graph:
        wanted = names.get(node.outputs[0].name) if node.outputs else None
        if node.name not in own and wanted not in taken:
            node.name = wanted
            taken.add(wanted)


def _rename_in_bodies(graph: ir.Graph) -> None:
    """Rename nodes of bodies that share their name with a node of the main graph.

    TensorRT has one list of layers for all graphs, and gives the name to the node that it parses first.
    """
    taken = {node.name for node in graph}
    ours = {node.name for node in graph.all_nodes()}
    for node in graph.all_nodes():
        if node.graph is graph:
            continue
        if node.name in taken:
            node.name = next(name for i in count(1) if (name := f"{node.name}_{i}") not in ours)
            ours.add(node.name)
        taken.add(node.name)
