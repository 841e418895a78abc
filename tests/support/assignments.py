"""Assignments of a model's groups."""

from __future__ import annotations

import random
from collections.abc import Iterator

from evaluators.lowering.placement import Placement
from search.graph.model import Model
from search.values import Assignment, Precision

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32


def uniform_and_mixed(model: Model) -> list[Assignment]:
    """Everything in FP32, in FP16, in INT8, and one after the other; pinned groups stay in FP32."""
    uniform = [Assignment({g.id: FP32 if g.pinned else p for g in model.groups}) for p in (FP32, FP16, INT8)]
    order = (FP32, FP16, INT8)
    mixed = Assignment({g.id: FP32 if g.pinned else order[i % 3] for i, g in enumerate(model.groups)})
    return [*uniform, mixed]


def uniform(model: Model, precision: Precision) -> Assignment:
    """As near as the pinned groups allow."""
    return Assignment({g.id: FP32 if g.pinned and precision is INT8 else precision for g in model.groups})


def mixes(model: Model, placement: Placement, count: int) -> Iterator[Assignment]:
    """The uniform assignments, then random ones."""
    precisions = [FP32, FP16, INT8] if placement.half else [FP32, INT8]
    rng = random.Random(0)
    yield from (uniform(model, precision) for precision in precisions)
    for _ in range(count):
        drawn = {group.id: rng.choice(precisions) for group in model.groups}
        yield Assignment({g.id: FP32 if g.pinned and drawn[g.id] is INT8 else drawn[g.id] for g in model.groups})
