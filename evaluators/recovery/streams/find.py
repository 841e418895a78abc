"""Finding the channels of a model that can be scaled, node by node in the order of the graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from evaluators.recovery.streams import elementwise_rules, layout_rules, weight_rules
from evaluators.recovery.streams.result import Scaling, Streams
from evaluators.recovery.streams.slots import PINNED, Slot
from evaluators.recovery.streams.tracker import Tracker, UnclearError
from search.graph.model import Model

_DOMAINS = ("", "ai.onnx")
RULES = {**weight_rules.RULES, **elementwise_rules.RULES, **layout_rules.RULES}


def find_streams(model: Model) -> Streams:
    """Find which channels of which tensors may be divided by a power of two, and the constants that it moves into.

    Every tensor is divided by the factor of its slot and every constant is multiplied as `Scaling` says: then all
    tensors of the pinned slot, the model's inputs and outputs among them, stay what they are. Where a node is unknown,
    or what it reads and makes cannot be told apart, its tensors keep the factor 1.

    Args:
        model: the clean model, or one that is scaled already; not changed.
    """
    tracker = Tracker(model)
    for node in model.graph.graph:
        _follow(tracker, node)
    for value in model.graph.graph.outputs:
        tracker.pin(value)
    return _collect(tracker)


def _follow(tracker: Tracker, node: ir.Node) -> None:
    rule = RULES.get(node.op_type) if node.domain in _DOMAINS else None
    captured = [value for body in _bodies(node) for inside in body.all_nodes() for value in inside.inputs]
    captured += [value for body in _bodies(node) for value in body.outputs]
    known = len(tracker.scalings), len(tracker.readers)
    try:
        if rule is None or not _is_float(node):
            raise UnclearError
        rule(tracker, node)
        return
    except UnclearError:
        # What the rule had begun is taken back; what it made equal may stay so.
        del tracker.scalings[known[0] :], tracker.readers[known[1] :]
    for value in (*node.inputs, *captured):
        if value is not None:
            tracker.pin(value)


def _is_float(node: ir.Node) -> bool:
    """Whether a node works on float32; indices and masks have no factors, and nothing is pinned by their rules."""
    return node.op_type in ("Shape", "Size") or node.outputs[0].dtype is ir.DataType.FLOAT


def _bodies(node: ir.Node) -> list[ir.Graph]:
    bodies = [a.as_graph() for a in node.attributes.values() if a.type is ir.AttributeType.GRAPH]
    more = [list(a.as_graphs()) for a in node.attributes.values() if a.type is ir.AttributeType.GRAPHS]
    return [*bodies, *(graph for graphs in more for graph in graphs)]


def _collect(tracker: Tracker) -> Streams:
    sets = tracker.sets
    slots = {value.name or "": _without_repeats(sets.roots(slots)) for value, slots in tracker.tensors.items()}
    free = {name: tensor_slots for name, tensor_slots in slots.items() if (tensor_slots != PINNED).any()}
    readers = [reader for reader in tracker.readers if reader.tensor in free]
    normalized = {int(slot) for slots in tracker.normalized for slot in np.unique(sets.roots(slots))} - {PINNED}
    return Streams(
        count=len(sets),
        tensors=free,
        scalings=[_settle_scaling(tracker, scaling) for scaling in tracker.scalings],
        readers=[replace(reader, slots=tracker.sets.roots(reader.slots)) for reader in readers],
        normalized=frozenset(normalized),
        notes=tracker.notes,
    )


def _settle_scaling(tracker: Tracker, scaling: Scaling) -> Scaling:
    sides = [None if slots is None else tracker.sets.roots(slots) for slots in (scaling.read, scaling.written)]
    return replace(scaling, read=sides[0], written=sides[1])


def _without_repeats(slots: Slot) -> Slot:
    """Slots with size 1 along every axis along which all are alike."""
    for axis, size in enumerate(slots.shape):
        if size > 1 and bool((slots == (first := np.take(slots, [0], axis))).all()):
            slots = first
    return slots
