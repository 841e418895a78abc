"""Assignments of a model's groups."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from evaluators.lowering.placement import Placement
from search.graph.model import Model
from search.values import Assignment, Precision

FP32, FP16, INT8 = THREE = (Precision.FP32, Precision.FP16, Precision.INT8)  # that the shipped backends offer
DRAWN = 30


def uniform_and_mixed(model: Model) -> list[Assignment]:
    """Everything in FP32, in FP16, in INT8, and one after the other; pinned groups stay in FP32."""
    uniform = [Assignment({g.id: FP32 if g.pinned else p for g in model.groups}) for p in (FP32, FP16, INT8)]
    order = (FP32, FP16, INT8)
    mixed = Assignment({g.id: FP32 if g.pinned else order[i % 3] for i, g in enumerate(model.groups)})
    return [*uniform, mixed]


def uniform(model: Model, precision: Precision) -> Assignment:
    """All groups in one precision, but pinned groups in FP32 where it is INT8."""
    return Assignment({g.id: FP32 if g.pinned and precision is INT8 else precision for g in model.groups})


def mixes(model: Model, precisions: Sequence[Precision] = (FP32, FP16, INT8)) -> Iterator[Assignment]:
    """The uniform assignments, then mixes until neighbours have had every pair of precisions; always the same.

    Of some random mixes, the next one is that with the most pairs that no earlier one had: a third of the mixes that
    chance alone takes to have nearly all pairs.
    """
    rng = random.Random(0)
    edges = [(edge.source, edge.target) for edge in model.edges if edge.source is not None]
    takes = {g.id: [p for p in precisions if not (g.pinned and p is INT8)] for g in model.groups}
    missing = {(*edge, *pair) for edge in edges for pair in itertools.product(*(takes[group] for group in edge))}
    for precision in precisions:
        assignment = uniform(model, precision)
        missing -= _pairs(assignment, edges)
        yield assignment
    while missing:
        drawn = [Assignment({group: rng.choice(choices) for group, choices in takes.items()}) for _ in range(DRAWN)]
        pairs = [_pairs(mix, edges) for mix in drawn]
        best = max(range(DRAWN), key=lambda i: len(missing & pairs[i]))
        if missing & pairs[best]:
            missing -= pairs[best]
            yield drawn[best]


def precisions_of(placement: Placement) -> list[Precision]:
    return [FP32, FP16, INT8] if placement.float_side is FP16 else [FP32, INT8]


def _pairs(assignment: Assignment, edges: Sequence[tuple[str, str]]) -> set[tuple[str, str, Precision, Precision]]:
    return {(source, target, assignment[source], assignment[target]) for source, target in edges}
