"""Write an assignment into an ONNX graph as Q/DQ and Cast: the only place that writes precision.

What is corrected of quantized ops is written into their constants first (`corrections`), and where Q/DQ go is planned
(`placement`). Then every node, in the order of the graph, is given a float type
(`float_types`), reads its activations in the form that the plan says (`activations`) and its constants as codes
(`weights`).
"""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx import version_converter

from evaluators.lowering.activations import Activations
from evaluators.lowering.constants import Edits, Names
from evaluators.lowering.corrections import correct_constants, corrections_of
from evaluators.lowering.float_types import FLOAT, FloatTypes, floats_of
from evaluators.lowering.int8.onnxruntime_rules import becomes_int8
from evaluators.lowering.int8.plan import plan
from evaluators.lowering.placement import DATA_ONLY, SAME_SCALE, Placement
from evaluators.lowering.weights import Weights
from search.errors import ModelError
from search.graph.cleaning import settle_shapes
from search.graph.element_types import settle_types
from search.graph.model import Model
from search.values import REFERENCE, Assignment, Precision, Ranges


def lower(model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> ir.Model:
    """Return a new model in which every group runs in its assigned precision.

    A pure function: equal arguments give byte-equal models. Inputs and outputs keep names and types; nodes of the
    clean model keep their names, new ones are named after the tensor they convert. A Mul or Add by a number may become
    a part of what quantizes, and is gone then.

    Args:
        model: the clean model; not changed.
        assignment: a precision for every group of the model.
        ranges: calibrated range of every float tensor, and the corrections of ops by precision. The model
            already has the factors of their recovery.
        placement: where the target wants Q/DQ.

    Raises:
        ModelError: a tensor that must be quantized has no range, a correction does not fit its op, or the model cannot
            reach the opset that one of its float types needs.
    """
    return Lowered(model, assignment, ranges, placement).model


def _at_opset_of(precision: Precision, model: ir.Model) -> ir.Model:
    needed = precision.opset
    try:
        converted = version_converter.convert_version(ir.to_proto(model), needed)
    except Exception as error:
        raise ModelError(
            f"lowering to {precision.name} needs opset {needed}, and the model cannot be converted: {error}. "
            f"Export it with opset {needed} or newer."
        ) from error
    model_at_opset = ir.from_proto(converted)
    settle_shapes(model_at_opset)
    settle_types(model_at_opset)
    return model_at_opset


class Lowered:
    """A lowered model that can be given other ranges without lowering it again; the arguments are those of `lower`.

    Attributes:
        model: what `lower` gives; changed by `rescale`. Whoever spells narrow types out may go on with `rescale`.
    """

    def __init__(self, model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> None:
        copy = model.graph.clone()
        written = {each for p in assignment.values() for each in (p, floats_of(p, placement))}
        newest = max(written, key=lambda each: each.opset, default=REFERENCE)
        if copy.graph.opset_imports.get("", 0) < newest.opset:
            copy = _at_opset_of(newest, copy)
        self._ranges = ranges
        self._lowering = _Lowering(copy, model, assignment, ranges, placement)
        self._lowering.write()
        copy = passes.RemoveUnusedNodesPass()(copy).model
        self.model = passes.TopologicalSortPass()(copy).model

    def rescale(self, ranges: Ranges) -> bool:
        """Make the model what `lower` gives with other ranges of tensors, where only constants change.

        Returns:
            False where more would have to change, or something else than ranges of tensors differs. The model is of no
            use then.
        """
        known = self._ranges
        if ranges.recovery is not known.recovery or ranges.observed is not known.observed:
            return False
        self._ranges = ranges
        return self._lowering.rescale(ranges)


class _Lowering:
    """Rewrites one clone of a model, node by node."""

    def __init__(
        self, copy: ir.Model, model: Model, assignment: Assignment, ranges: Ranges, placement: Placement
    ) -> None:
        self._graph = graph = copy.graph
        self._edits = Edits(graph)
        corrections = corrections_of(model.groups, assignment, ranges.recovery)
        correct_constants(graph, self._edits.constants, model.groups, corrections)
        self._anchors = {name for group in model.groups for name in group.anchors}
        self._plan = plan(graph, model, assignment, placement)
        owner = {name: group for group in model.groups for name in group.nodes}
        self._types = FloatTypes(graph, owner, assignment, ranges, placement, self._plan)
        self._activations = Activations(graph, self._edits, self._types, self._plan, ranges, placement)
        self._weights = Weights(self._edits, placement, owner, corrections, model.own.weights)

    def rescale(self, ranges: Ranges) -> bool:
        changed = self._activations.rescale(ranges)
        return changed is not None and self._weights.rescale(changed)

    def write(self) -> None:
        nodes = list(self._graph)
        outputs = list(self._graph.outputs)
        for node in nodes:
            self._rewrite(node)
        for index, value in enumerate(outputs):
            self._keep_output(index, value)
        self._activations.name_results()

    def _rewrite(self, node: ir.Node) -> None:
        dtype = self._types.choose(node)
        floats = self._types.float_inputs(node)
        if node.op_type in DATA_ONLY:
            floats = floats[:1]
        for i in floats:
            value = node.inputs[i]
            assert value is not None
            node.replace_input_with(i, self._read(node, i, value, dtype))
        precision = self._types.precision(node)
        if node.name in self._anchors and precision is not None and precision.quantized:
            if precision.recovered:
                self._weights.quantize(node, dtype)
            elif precision.calibrated:
                self._weights.quantize_narrow(node, precision, dtype)
            elif precision.blocks:
                self._weights.quantize_blocks(node, precision, dtype)
            else:
                self._weights.quantize_product(node)
        elif dtype is not FLOAT:
            self._weights.narrow(node, range(len(node.inputs)), dtype)
        self._activations.write_by_codes(node)
        self._rewrite_captures(node)
        self._types.settle(node, dtype)

    def _read(self, node: ir.Node, i: int, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if (node, i) in self._plan.reads:
            precision = self._types.precision(node)
            is_narrow = precision is not None and precision.calibrated and not precision.recovered
            return self._activations.quantize(value, dtype, precision if is_narrow else None)
        if value in self._plan.stored and i == 0 and self._shields(node):
            return self._activations.quantized_by_channel(value, node)
        return self._activations.as_float(value, dtype)

    def _shields(self, node: ir.Node) -> bool:
        """Whether a node, or one behind it that it only moves values to, must not see a DQ that it could take in."""
        float_anchor = node.name in self._anchors and self._types.precision(node) is REFERENCE
        if float_anchor and becomes_int8(node, self._plan):
            return True
        moves = node.op_type in SAME_SCALE and (node, 0) not in self._plan.reads
        return moves and any(self._shields(user) for user in node.outputs[0].consumers())

    def _rewrite_captures(self, node: ir.Node) -> None:
        """Bodies of If and Loop stay FP32, so what they capture must be."""
        for attribute in node.attributes.values():
            for body in _bodies(attribute):
                inner = {value for n in body for value in n.outputs} | set(body.inputs)
                for inside in body.all_nodes():
                    for i in self._types.float_inputs(inside):
                        value = inside.inputs[i]
                        if value is not None and self._types.is_settled(value) and value not in inner:
                            inside.replace_input_with(i, self._activations.as_captured(value))

    def _keep_output(self, index: int, value: ir.Value) -> None:
        """A graph output that changed form keeps its name: the tensor behind it is renamed."""
        if value not in self._plan.stored and self._types.of(value) is FLOAT:
            return
        final = self._activations.as_float(value, FLOAT)
        name = value.name
        value.name = self._edits.names.fresh(f"{name}/raw")
        final.name, final.shape = name, value.shape
        self._graph.outputs[index] = final


def _bodies(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.type is ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    if attribute.type is ir.AttributeType.GRAPHS:
        return list(attribute.as_graphs())
    return []


def expose_groups(lowered: ir.Model, model: Model) -> ir.Model:
    """A copy of a lowered model whose outputs are the outputs of its groups, each named by group id."""
    copy = lowered.clone()
    graph = copy.graph
    values = {value.name: value for node in graph for value in node.outputs}
    graph.outputs.clear()
    _free_names(graph, {group.id for group in model.groups})
    for group in model.groups:
        value = values.get(group.output) or values[f"{group.output}/raw"]
        out = ir.Value(name=group.id, type=ir.TensorType(FLOAT))
        graph.append(
            ir.Node("", "Cast", [value], [ir.AttrInt64("to", FLOAT)], outputs=[out], name=f"{group.id}/expose")
        )
        graph.outputs.append(out)
    return passes.RemoveUnusedNodesPass()(copy).model


def _free_names(graph: ir.Graph, wanted: set[str]) -> None:
    names = Names(graph)
    for value in (*graph.initializers.values(), *(value for node in graph for value in node.outputs)):
        if value.name in wanted:
            value.name = names.fresh(value.name)
