"""TensorRT's engines beside ONNX Runtime, on a GPU: `pytest -m gpu`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorrt")  # collected everywhere, run where TensorRT is

from evaluators.backends.tensorrt.builder import TensorRTBuilder
from evaluators.data import Batch
from evaluators.diagnose.compare import fall_db, held_in, inputs_db
from evaluators.diagnose.compare_run import compare_engine
from evaluators.measure.flips import count_flips
from search.values import Assignment, TensorRange
from tests.support.assignments import THREE
from tests.support.tensorrt.gpu_benches import QUICK, Bench, backend, bench

pytestmark = pytest.mark.gpu
FP32, FP16, INT8 = THREE


def falls(bed: Bench, builder: TensorRTBuilder, assignment: Assignment, out: Path) -> dict[str, float]:
    """By how many decibels each group falls below its inputs, in graph order."""
    builder.build(builder.lower(assignment), out)
    batches = [Batch(bed.inputs, None, bed.model.batch)]
    found = compare_engine(
        backend(),
        builder,
        bed.model,
        bed.ranges,
        out,
        assignment,
        lambda: batches,
        count_flips=lambda exact, other: count_flips(exact, other, None, np.arange(len(exact))),
        groups=True,
        done=lambda n: None,
    )
    assert not found.opened
    assert found.groups is not None
    levels = {row.name: row.by_pair["engine-emulated"].level_db for row in found.groups}
    edges = [edge for edge in bed.model.edges if edge.source is not None]
    sources = {group: [edge.source for edge in edges if edge.target == group] for group in levels}
    inputs, held = inputs_db(levels, sources), held_in(assignment, sources)
    found_falls = {group: fall_db(levels[group], inputs[group], held[group]) for group in levels}
    print(levels, found_falls)  # for whoever has to judge the ceilings
    return found_falls


@pytest.mark.parametrize("name", ["residual", "mobile"])
def test_good_engines_part_nowhere(name: str, tmp_path: Path) -> None:
    bed = bench(name) if name == "residual" else bench(name, **QUICK)
    for assignment in (bed.space.uniform(FP16), bed.space.uniform(INT8), bed.mix(1)):
        found = falls(bed, bed.builder, assignment, tmp_path / "x.plan")
        assert max(found.values()) <= 10, (assignment, found)


def test_a_wrong_range_is_located(tmp_path: Path) -> None:
    bed = bench("residual")
    assignment = bed.space.uniform(INT8)
    group = next(group for group in bed.model.groups if assignment[group.id] is INT8)
    narrow = {**bed.ranges.tensors, group.inputs[0]: TensorRange(-0.02, 0.02)}
    knobs = replace(backend().builder_knobs, **QUICK)
    builder = TensorRTBuilder(backend().trt, bed.model, replace(bed.ranges, tensors=narrow), knobs)
    found = falls(bed, builder, assignment, tmp_path / "x.plan")
    makers = {edge.source for edge in bed.model.edges if edge.target == group.id}  # whose output has that range
    assert next(name for name, fall in found.items() if fall > 10) in {group.id, *makers}
