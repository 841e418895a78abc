"""The costs that the fake backend invents, for groups by precision and for changes of precision, and their noise.

Latency in milliseconds: BASE_MS, plus for every group `LAUNCH_MS + share × (1 - gain × (1 - usual_time))`, plus for
every edge between two precisions its part of MOVES_MS. A group's share of the GROUPS_MS that all take in FP32 follows
the square root of its multiply-adds; `usual_time` is the precision's own fact. Gains and sensitivities are drawn by a
seed, so layers differ: some gain nothing, and a few make most of the loss.

Error of the outputs: for every group its sensitivity times `usual_noise` of its precision, summed, as a share of the
outputs' power. All groups in INT8 give INT8_NOISE; FP32 gives none.

All of it is additive and holds for any model, whatever its size, and for any precision with its facts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from search.graph.model import Group, Model
from search.values import REFERENCE, Assignment, Precision, digest_of

BASE_MS = 0.1
GROUPS_MS = 1.0
LAUNCH_MS = 0.002
MOVES_MS = 0.2
INT8_NOISE = 0.1
SAMPLE_NOISE = 0.004  # standard deviation of one inference, relative
BUILD_NOISE = 0.002  # of one build against another of the same assignment
_LEAST_GAIN, _MOST_GAIN = 0.2, 1.3
_SENSITIVITY_SPREAD = 1.2  # standard deviation of its logarithm


@dataclass(frozen=True)
class TimedPart:
    """What takes time in an engine: a group, or a move of one tensor; `group` is None for a move."""

    name: str
    group: str | None
    ms: float


class LayerCosts:
    """Costs of the layers of one model.

    Args:
        seed: draws gains and sensitivities.
    """

    def __init__(self, model: Model, seed: int) -> None:
        self._model = model
        self._names = {group.id: group.name for group in model.groups}
        works = {group.id: math.sqrt(group.multiply_adds) for group in model.groups}
        self._share_ms = {name: GROUPS_MS * work / sum(works.values()) for name, work in works.items()}
        drawn = {group.id: _draw(seed, group) for group in model.groups}
        total = sum(sensitivity for _, sensitivity in drawn.values())
        self._gains = {name: gain for name, (gain, _) in drawn.items()}
        self._sensitivities = {name: sensitivity / total for name, (_, sensitivity) in drawn.items()}
        self._elements = sum(edge.elements for edge in model.edges) or 1
        self._weights = {group.id: float(np.prod(group.weight_shape)) for group in model.groups}

    def parts(self, assignment: Assignment) -> Iterator[TimedPart]:
        """Groups in topological order, each behind the moves of what it reads."""
        for group in self._model.groups:
            yield from self._moves(group.id, assignment)
            yield TimedPart(
                f"{group.name} ({assignment[group.id].label})", group.id, self._group_ms(group.id, assignment)
            )

    def latency_ms(self, assignment: Assignment) -> float:
        """The latency of an assignment without noise."""
        return BASE_MS + math.fsum(part.ms for part in self.parts(assignment))

    def noise(self, group: str, precision: Precision) -> float:
        """Error that one group adds, over the power of the outputs."""
        return INT8_NOISE * self._sensitivities[group] * precision.usual_noise

    def error(self, assignment: Assignment) -> float:
        """Error of the outputs over their power."""
        return math.fsum(self.noise(group, precision) for group, precision in assignment.items())

    def size_bytes(self, assignment: Assignment) -> int:
        """Bytes of the weights."""
        return round(sum(self._weights[group] * p.weight_bytes for group, p in assignment.items()))

    def memory_bytes(self, assignment: Assignment) -> int:
        """Bytes of the weights and of every tensor between two groups."""
        tensors = {edge.tensor: edge.elements * assignment[edge.target].value_bytes for edge in self._model.edges}
        return self.size_bytes(assignment) + round(sum(tensors.values()))

    def _group_ms(self, group: str, assignment: Assignment) -> float:
        gained = self._gains[group] * (1 - assignment[group].usual_time)
        return LAUNCH_MS + self._share_ms[group] * (1 - gained)

    def _moves(self, group: str, assignment: Assignment) -> Iterator[TimedPart]:
        for edge in self._model.edges:
            source = REFERENCE if edge.source is None else assignment[edge.source]
            if edge.target == group and source != assignment[group]:
                words = f"{source.label} to {assignment[group].label}"
                yield TimedPart(f"{edge.tensor} {words}", None, MOVES_MS * edge.elements / self._elements)


def _draw(seed: int, group: Group) -> tuple[float, float]:
    """Gain and sensitivity of a group: the same wherever it is drawn."""
    rng = np.random.default_rng(int(digest_of([seed, group.id, group.name])[:16], 16))
    return float(rng.uniform(_LEAST_GAIN, _MOST_GAIN)), float(np.exp(rng.normal(0.0, _SENSITIVITY_SPREAD)))
