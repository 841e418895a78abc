"""The groups and edges of a model as rows with their possible precisions, as `bitfront inspect` prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these import ONNX, which reading verbs should not wait for
    from search.graph.model import Model
    from search.space.choices import Space
    from search.values import Target


@dataclass(frozen=True)
class Layers:
    """A clean model and the space it has on a target."""

    model: Model
    space: Space
    target: Target


def layer_rows(found: Layers) -> list[dict[str, Any]]:
    """Every group with what it may run in, and why not."""
    rows = []
    for group in found.model.groups:
        choices = found.space.choices[group.id]
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


def left_out_rows(found: Layers) -> list[dict[str, Any]]:
    """Every layer with weights that is in no group, and why."""
    return [vars(each) for each in found.model.left_out]


def edge_rows(found: Layers) -> list[dict[str, Any]]:
    return [vars(edge) for edge in found.model.edges]
