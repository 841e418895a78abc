"""The labelled regression of the quickstart from the command line: a metric with a unit, a limit in it, no classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from evaluators.metrics.registry import get_metric
from tests.support.command_line import invoke, ok
from tests.support.docs_pages import blocks
from tests.support.networks import Net, finish, images, save
from tests.support.paths import ROOT


def example(page: str, word: str) -> str:
    [found] = [block for block in blocks(ROOT / "docs" / page, "python") if word in block]
    return found


def two_values() -> onnx.ModelProto:
    n = Net()
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    n.gemm(n.op("Flatten", [n.op("GlobalAveragePool", [x], "pool")], "flatten"), "fc", 8, 2)
    n.nodes[-1].output[0] = "point"
    return finish(n, {"image": [4, 3, 8, 8]}, {"point": [4, 2]})


@pytest.mark.slow
def test_two_values_are_searched_with_a_limit_in_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("point.py").write_text(example("quickstart.md", "def distance"), encoding="utf-8")
    save(two_values(), tmp_path / "model.onnx")
    labels = np.random.default_rng(0).standard_normal((60, 2)).astype(np.float32)
    np.savez("data.npz", allow_pickle=False, image=images(60, shape=(3, 8, 8)), labels=labels)
    given = ("model.onnx", "--data", "data.npz", "--metric", "point.py:distance", "--trials", 3)
    assert invoke("search", *given, "--accuracy-limit", "1%").exit_code == 2
    result = invoke("search", *given, "--max-drop", "0.05px")
    assert result.exit_code == 0, result.output
    for trial in range(3):
        assert "another class" not in ok("show", "model", trial)
    ok("report", "model", "--out", "report.html")
    assert "another class" not in Path("report.html").read_text(encoding="utf-8")


def test_the_worse_mean_of_two_outputs_is_held_against_the_spread_of_its_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **{"labels.price": np.array([0.0, 20.0]), "labels.demand": np.array([-1.0, 1.0])})
    (tmp_path / "worse_mean.py").write_text(example("metrics.md", "class WorseMean"))
    labels = np.zeros(4, [("price", np.float32), ("demand", np.float32)])
    signs = np.array([1, -1, 1, -1], np.float32)[:, None]
    state = get_metric(f"{tmp_path}/worse_mean.py:WorseMean").accumulator()
    state.update({"price": 5 * signs, "demand": 0.4 * signs}, labels, count=4)
    assert state.compute() == pytest.approx(0.5), "the price is off by half of its spread, the demand by less"
