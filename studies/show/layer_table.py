"""The groups and edges of a model as rows with their possible precisions, as `bitfront inspect` prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.values import FREE, REFERENCE

if TYPE_CHECKING:  # these import ONNX, which reading verbs should not wait for
    from evaluators.lowering.placement import Placement
    from search.graph.model import Model
    from search.space.choices import Space
    from search.values import Capability, Target


@dataclass(frozen=True)
class Layers:
    """A clean model and the space it has on a target.

    Attributes:
        capability: what the target runs.
        placement: how it is written.
    """

    model: Model
    space: Space
    target: Target
    capability: Capability
    placement: Placement


def layer_rows(layers: Layers) -> list[dict[str, Any]]:
    """Every group with what it may run in, and why not."""
    rows = []
    for group in layers.model.groups:
        choices = layers.space.choices[group.id]
        rows.append(
            {
                "group": group.id,
                "node": group.name,
                "op": group.op,
                "nodes": list(group.nodes),
                "block": group.block,
                "shape": list(group.shape),
                "weight_shape": list(group.weight_shape),
                "may": [choice.precision.label for choice in choices if choice.offered],
                "why_not": {c.precision.label: c.reason for c in choices if not c.offered},
            }
        )
    return rows


def left_out_rows(layers: Layers) -> list[dict[str, Any]]:
    """Every layer with weights that is in no group, and why."""
    return [vars(each) for each in layers.model.left_out]


def rule_rows(layers: Layers) -> list[dict[str, Any]]:
    """Every layer without weights that is in no group, of the kinds that `--decide` takes: its type and why."""
    grouped = {name for group in layers.model.groups for name in group.nodes}
    decided = layers.model.with_decisions([op.lower() for op in FREE])
    left = [group for group in decided.groups if group.op in FREE and group.name not in grouped]
    rules = {op: _rule(op, layers) for op in {group.op for group in left}}
    return [{"name": group.name, "op": group.op, **rules[group.op]} for group in left]


def _rule(op: str, layers: Layers) -> dict[str, str]:
    """What lowering gives an op type that is in no group, and why no search decides on it."""
    if layers.target.options.get("typing") == "weak":
        return {"runs_in": "any type", "why": "with weak typing the engine chooses"}
    runs_in, why = REFERENCE.label, "sums over an axis stay in it"
    if op in layers.placement.narrow:
        runs_in, why = "as its neighbours", "a conversion would gain nothing"
    floats = [p for p in layers.capability.precisions if not p.quantized and p is not REFERENCE]
    refused = [layers.capability.why_not(precision, op) for precision in floats]
    if not all(refused):
        return {"runs_in": runs_in, "why": f"{why}; may be decided: --decide {op.lower()}"}
    return {"runs_in": runs_in, "why": f"{why}; {refused[0] if refused else 'the target has no other float type'}"}


def edge_rows(layers: Layers) -> list[dict[str, Any]]:
    return [vars(edge) for edge in layers.model.edges]
