"""Evaluations that nobody measured: plausible numbers, of the size that real ones have in the database."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.random import Generator

from search.values import Accuracy, Assignment, AuditRow, Evaluation, Latency, Precision

SAMPLES = 2988  # of the example's search split
INFERENCES = 120  # of one latency measurement, and as many of the baseline
ENGINE_BYTES = 320_000


def evaluation(assignment: Assignment, rng: Generator, out: Path | None = None) -> Evaluation:
    """Latency falls and loss rises with every INT8 group, each with a weight of its own and a little noise."""
    groups = [precision is Precision.INT8 for precision in assignment.values()]
    weights = np.random.default_rng(7).exponential(size=(2, len(groups)))
    gain, cost = (weights @ groups) / weights.sum(axis=1)
    latency_ms = (4.6 - 2.6 * gain) * float(rng.normal(1, 0.005))
    loss = 0.1 * float(cost) + float(rng.normal(0, 0.001))
    scores = (rng.random(SAMPLES) < 0.96 - loss).astype(float)
    if out is not None:
        out.write_bytes(rng.bytes(ENGINE_BYTES))
    return Evaluation(
        assignment,
        audit=tuple(AuditRow(group, asked, asked, "QLinearConv") for group, asked in assignment.items()),
        latency=latency(latency_ms, rng),
        accuracy=Accuracy("top1", 0.96 - loss, loss, loss - 0.004, loss + 0.004, SAMPLES, SAMPLES, scores),
        size_bytes=ENGINE_BYTES,
        memory_bytes=6_000_000,
        build_s=0.2,
        total_s=1.5,
        artifact=None if out is None else str(out),
    )


def latency(value_ms: float, rng: Generator) -> Latency:
    times = value_ms * rng.normal(1.02, 0.02, INFERENCES)
    return Latency(value_ms, value_ms, 0.02, 4.6, times, rng.normal(4.6, 0.1, INFERENCES))


def random_assignment(groups: list[str], rng: Generator) -> Assignment:
    choices = rng.choice(2, len(groups), p=[0.4, 0.6])
    either = (Precision.FP32, Precision.INT8)
    return Assignment({group: either[choice] for group, choice in zip(groups, choices, strict=True)})
