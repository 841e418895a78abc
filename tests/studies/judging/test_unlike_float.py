"""An FP32 engine that is another function than the float model is told of: losses against it would say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.command_line import invoke, ok
from tests.support.networks import Net, finish, images, save

pytestmark = pytest.mark.slow


def network(noise: float) -> onnx.ModelProto:
    """Four numbers per image; with noise they are drawn anew in every run, which is as good as a wrong engine."""
    n = Net()
    x = n.op("Flatten", [n.op("GlobalAveragePool", [n.conv("image", "first", 3, 8)], "pool")], "flatten")
    weight = n.rng.standard_normal((4, 8)).astype(np.float32)
    y = n.op("Gemm", [x, n.const("fc.w", weight)], "fc", transB=1)
    if noise:
        n.op("Add", [y, n.op("RandomNormalLike", [y], "noise", scale=noise)], "sum")
    n.nodes[-1].output[0] = "y"
    return finish(n, {"image": [4, 3, 8, 8]}, {"y": [4, 4]})


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(("noise", "level"), [(0.0, None), (0.003, None), (10.0, "dB")])
def test_fp32_that_is_unlike_the_float_model_is_told_of(
    backend: str, noise: float, level: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(network(noise), tmp_path / "model.onnx")
    np.savez("data.npz", image=images(80, shape=(3, 8, 8)))
    searched = invoke(
        *("search", "model.onnx", "--data", "data.npz", "--study", "s", "--backend", backend),
        *("--metric", "agreement", "--max-drop", "50%", "--trials", 2),
    )
    assert searched.exit_code == 0, searched.output
    told = [text for text in json.loads(ok("front", "s", "--json"))["warnings"] if "unlike the float model" in text]
    assert searched.stderr.count("WARNING: all FP32 on this target") == 2 * len(told), "at once, and at the end"
    assert len(told) == (level is not None)
    if level is not None:
        assert level in told[0]
        assert "compare s 0" in told[0]
        assert "Best within the limits" not in searched.output, "that trial is said to miss them"
        assert "best of the search, which misses the limits" in searched.output.lower()
