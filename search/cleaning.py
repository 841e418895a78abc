"""Make a graph that engines and lowering agree on, without changing what it computes.

Every step is arithmetic-free except two: BatchNorm fused into the convolution before it, and constants computed
ahead of time; both stay within float32 rounding (relative 1e-5 of an output's magnitude).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import rewrite
from onnxscript.rewriter.rules import common as rules

from search.shapes import Profile

# A folded constant may grow the file; past this it is left to the engine.
_FOLD_LIMIT = 1 << 26
_BATCH_NORM = [
    rules.fuse_batchnorm_into_conv_rule,
    rules.fuse_batchnorm_into_conv_transpose_rule,
    rules.fuse_batchnorm_into_gemm_rule,
]


def clean(model: ir.Model) -> ir.Model:
    """Return the clean model; the one given is used up.

    Afterwards: no functions, no Constant nodes, no Identity on initializers, no Dropout, no unused nodes or outputs;
    BatchNorm fused where a Conv, ConvTranspose or Gemm is its only source; every node has a unique name, the user's
    own where there was one; nodes in topological order.
    """
    model = _run(
        model,
        passes.InlinePass(),
        passes.NameFixPass(),
        passes.RemoveInitializersFromInputsPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.ShapeInferencePass(strict_mode=False),
    )
    _remove_dropout(model)
    names = {node.outputs[0].name: _weighted_source(node).name for node in model.graph if node.outputs}
    fold_constants_ir(model, input_size_limit=_FOLD_LIMIT, output_size_limit=_FOLD_LIMIT)
    model = _run(
        model,
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.IdentityEliminationPass(),
    )
    model = rewrite(model, pattern_rewrite_rules=_BATCH_NORM)
    model = _run(
        model,
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.IdentityEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.TopologicalSortPass(),
        passes.ClearMetadataAndDocStringPass(),
        passes.ShapeInferencePass(strict_mode=False),
    )
    _restore_names(model, names)
    return _run(model, passes.NameFixPass())


def _run(model: ir.Model, *steps: ir.passes.PassBase) -> ir.Model:
    for step in steps:
        model = step(model).model
    return model


def infer_shapes(model: ir.Model, profiles: Mapping[str, Profile]) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor at the measured input shapes; tensors that inference cannot size are left out."""
    copy = model.clone()
    for value in copy.graph.inputs:
        profile = profiles.get(value.name or "")
        if profile is not None:
            value.shape = ir.Shape(profile[1])
    for node in copy.graph.all_nodes():
        for output in node.outputs:
            output.shape = None
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(copy), data_prop=True)
    shapes: dict[str, tuple[int, ...]] = {}
    for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        tensor = info.type.tensor_type
        dims = tuple(dim.dim_value for dim in tensor.shape.dim)
        if tensor.HasField("shape") and all(dims):
            shapes[info.name] = dims
    return shapes


def _weighted_source(node: ir.Node) -> ir.Node:
    """The node whose name a fused BatchNorm should carry: the convolution's, which the user knows the layer by."""
    source = node.inputs[0].producer() if node.op_type == "BatchNormalization" and node.inputs[0] else None
    return source if source is not None and source.op_type in ("Conv", "ConvTranspose", "Gemm") else node


def _remove_dropout(model: ir.Model) -> None:
    for node in list(model.graph):
        mask_used = len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
        training = len(node.inputs) > 2 and node.inputs[2] is not None
        source = node.inputs[0] if node.op_type == "Dropout" and not node.domain else None
        if source is None or mask_used or training or node.outputs[0].is_graph_output():
            continue
        node.outputs[0].replace_all_uses_with(source)
        model.graph.remove(node, safe=True)


def _restore_names(model: ir.Model, names: Mapping[str | None, str | None]) -> None:
    """Give nodes that a rewrite made the name of the user's node that made the same tensor."""
    taken = {node.name for node in model.graph}
    for node in model.graph:
        wanted = names.get(node.outputs[0].name) if node.outputs else None
        if node.name is None or (wanted and wanted not in taken):
            node.name = wanted
            taken.add(wanted)
