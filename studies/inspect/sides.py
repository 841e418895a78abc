"""Judging whether the outputs of an engine and of its groups are as near to its emulation as its precisions explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluators.diagnose.compare import TensorDifferences, fall_db, held_in, inputs_db
from search.graph.model import Edge
from search.values import Assignment
from studies.inspect.comparison import GroupSide, OutputComparison
from studies.store.records import GroupRecord

_LEAST_DB = 6.0  # of an engine against its emulation, however little INT8 leaves of the float model: half the amplitude


def output_sides(
    rows: Sequence[TensorDifferences], assignment: Assignment, threshold_db: float
) -> tuple[OutputComparison, ...]:
    """Each output with whether its engine is as near to its emulation as its precisions explain."""
    normal = min(precision.ceiling_db for precision in assignment.values())
    sides = []
    for row in rows:
        found = row.by_pair
        allowed = max(min(normal, found["emulated-float"].level_db) - threshold_db, _LEAST_DB)
        sides.append(OutputComparison(row.name, found, found["engine-emulated"].level_db >= allowed))
    return tuple(sides)


def group_sides(
    rows: Sequence[TensorDifferences],
    groups: Mapping[str, GroupRecord],
    assignment: Assignment,
    edges: Sequence[Edge],
    threshold_db: float,
) -> tuple[GroupSide, ...]:
    """Each group with how far its output falls below its inputs, in the order of `rows`."""
    sources: dict[str, list[str]] = {}
    for edge in edges:
        if edge.source is not None:
            sources.setdefault(edge.target, []).append(edge.source)
    levels = {row.name: row.by_pair["engine-emulated"].level_db for row in rows}
    inputs, held = inputs_db(levels, sources), held_in(assignment, sources)
    sides = []
    for row in rows:
        name = row.name
        fall = fall_db(levels[name], inputs[name], held[name])
        found = row.by_pair
        sides.append(GroupSide(groups[name], assignment[name].label, found, inputs[name], fall, fall > threshold_db))
    return tuple(sides)
