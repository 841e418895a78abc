"""Which tensors of an assignment become INT8, and whose range gives the scale of each."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from evaluators.lowering.int8 import onnxruntime_rules, tensorrt_rules
from evaluators.lowering.int8.nodes import Plan, activation_indices, float_inputs, name_of
from evaluators.lowering.placement import SAME_SCALE, Placement
from search.graph.model import Model
from search.values import Assignment, Ranges


def plan(graph: ir.Graph, model: Model, assignment: Assignment, placement: Placement) -> Plan:
    """Decide which tensors of `graph` (a clone of the model's, same node names) are INT8."""
    nodes = {node.name: node for node in graph}
    result = Plan()
    groups = [group for group in model.groups if assignment[group.id].calibrated]
    for group in groups:
        for name in group.anchors:
            result.reads.update((nodes[name], i) for i in activation_indices(nodes[name]))
    groups = [group for group in groups if assignment[group.id].recovered]  # others round what their products read
    if placement.quantize_outputs:
        onnxruntime_rules.quantize_regions(graph, groups, nodes, placement, result)
    else:
        tensorrt_rules.quantize_skips(groups, nodes, result)
        if placement.before_activations:
            tensorrt_rules.round_before_activations(groups, nodes, result)
        if placement.between_groups:
            grouped = frozenset(name for group in model.groups for name in group.nodes)
            tensorrt_rules.round_between_groups(groups, nodes, grouped, result)
        if placement.stored_outputs:
            tensorrt_rules.store_outputs(groups, model.groups, nodes, result)
    _share_scales(graph, placement, result)
    return result


def quantized_tensors(model: Model, assignment: Assignment, placement: Placement) -> frozenset[str]:
    """Names of the tensors that some op reads as INT8 codes when an assignment is lowered for a target."""
    int8_plan = plan(model.graph.graph, model, assignment, placement)
    read = [node.inputs[index] for node, index in int8_plan.reads]
    return frozenset(name_of(value) for value in (*read, *int8_plan.stored))


def with_shared_scales(model: Model, assignment: Assignment, placement: Placement, ranges: Ranges) -> Ranges:
    """The ranges, but that tensors of one scale have the range that the scale is of, as the lowered assignment has it.

    What an engine's builder is told of an input of a Concat is then no other range than that of the Concat. Ranges that
    a user set stay, except that of what a Resize makes: it has to be the range of what the Resize reads.
    """
    planned = plan(model.graph.graph, model, assignment, placement)
    owners = {name_of(value): name_of(_told_owner(value, planned, ranges)) for value in planned.scale_of}
    known = ranges.tensors
    shared = {name: known[owner] for name, owner in owners.items() if owner in known}
    return replace(ranges, tensors={**known, **shared})


def _told_owner(value: ir.Value, planned: Plan, ranges: Ranges) -> ir.Value:
    """The value whose range a builder is told for this one."""
    while value in planned.scale_of and (name_of(value) not in ranges.fixed or resize_source(value) is not None):
        value = planned.scale_of[value]
    return value


def resize_source(value: ir.Value) -> ir.Value | None:
    """What a Resize makes a value of; None for a value that no Resize makes."""
    maker = value.producer()
    return maker.inputs[0] if maker is not None and maker.op_type == "Resize" else None


def _share_scales(graph: ir.Graph, placement: Placement, result: Plan) -> None:
    for node in graph:
        made = node.outputs[0]
        if node.op_type in SAME_SCALE and made in result.stored:
            source = node.inputs[0]
            if source is not None and result.root(source) is not made:
                result.scale_of[made] = source
        if placement.shared_resize and (source := resize_source(made)) is not None:
            result.scale_of[made] = source
        if node.op_type == "Concat" and placement.shared_concat and read_quantized(made, result):
            for i in float_inputs(node):
                source = node.inputs[i]
                while placement.shared_resize and source is not None and resize_source(source) is not None:
                    source = resize_source(source)
                if source is not None:
                    result.scale_of.setdefault(source, made)


def read_quantized(value: ir.Value, result: Plan) -> bool:
    return any((user, i) in result.reads for user, i in value.uses())
