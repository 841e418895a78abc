"""The calibration cache of an export is what a builder has to be told, and `ranges.json` is what was calibrated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from evaluators.calibration import cache as calibration_cache
from search.graph.model import load
from search.values import Precision, Ranges
from studies.export.folder import write_ranges
from tests.support.assignments import uniform
from tests.support.networks import Net, observed, save
from tests.support.study_rows import TARGET


def test_tensors_around_a_resize_have_one_range_in_the_cache(tmp_path: Path) -> None:
    n = Net(7)
    x = n.op("Relu", [n.conv("image", "first", 3, 16)], "first/relu")
    scales = n.const("scales", np.array([1, 1, 2, 2], np.float32))
    n.conv(n.op("Resize", [x, "", scales], "enlarged", mode="linear"), "maps", 16, 8)
    model = load(save(n.model([4, 3, 16, 16], "maps", [4, 8, 32, 32]), tmp_path / "net.onnx"))
    ranges = observed(model)
    write_ranges(tmp_path, ranges, TARGET, model, uniform(model, Precision.INT8))
    told = calibration_cache.read_file(tmp_path / "calibration.cache")
    known = {name: found.magnitude for name, found in ranges.tensors.items()}
    assert known["enlarged_out"] != known["first/relu_out"]
    assert told["enlarged_out"] == told["first/relu_out"]
    np.testing.assert_allclose(told["first/relu_out"], known["first/relu_out"], rtol=1e-6)
    np.testing.assert_allclose(told["maps"], known["maps"], rtol=1e-6)
    assert Ranges.from_json(json.loads((tmp_path / "ranges.json").read_text())).tensors == ranges.tensors
