"""Step `threads` by TensorRT's own calls, on a fake made from the listing of its bindings."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.h200 import tables, threads
from evaluators.job import Job
from networks import ranged, residual_cnn, save
from search.values import Precision
from test_tensorrt_api import V8, standing_in


def test_every_setting_builds_three_mixes(tmp_path: Path) -> None:
    model, ranges = save(residual_cnn(), tmp_path / "net.onnx"), tmp_path / "ranges.json"
    ranges.write_text(json.dumps(ranged("residual").to_json()))
    job = Job(str(model), "", str(tmp_path), backend="tensorrt", device="cuda", ranges=str(ranges))
    with standing_in(V8):
        found = list(threads.measured(job, (1, 2), tmp_path / "out.plan"))
    assert [each["build_threads"] for each in found] == [2, 1, 2, 2]
    assert [each["warm"] for each in found] == [False, True, True, True]
    assert found[-1]["optimization_level"] == threads.LOWER_LEVEL
    assert all(len(each["builds_s"]) == len(each["ms"]) == 3 for each in found)
    assert all(each["again_s"] > 0 for each in found)
    shown = tables.threads([{"network": "resnet18", "threads": {"measured": found}}])
    assert shown.count("\n") == 4, "without the first, which loads kernels"
    assert "ResNet-18, 2 threads, level 2" in shown


def test_the_mixes_differ_and_hold_both_precisions(tmp_path: Path) -> None:
    from evaluators.backends.tensorrt import TensorRTBackend
    from networks import loaded
    from search.space.choices import make_space

    with standing_in(V8):
        capability = TensorRTBackend("cuda").capability()
    found = threads.mixes(make_space(loaded("residual"), capability, ranged("residual")))
    assert len(set(found)) == 3
    assert all({Precision.INT8, Precision.FP16} <= set(mix.values()) for mix in found)
