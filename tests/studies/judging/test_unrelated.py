"""An engine whose outputs have nothing in common with FP32's is told of loudly wherever it is picked, by any metric."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from studies.judging.sentences.cautions import MARK
from tests.support.command_line import invoke, ok
from tests.support.networks import Net, finish, images, save

pytestmark = pytest.mark.slow

METRICS = """
import numpy as np

def always(outputs, labels):
    return np.ones(len(outputs["y"]))

def small(outputs, labels):
    return 1 - np.minimum(1, np.abs(outputs["y"][:, 0]))

for metric in (always, small):
    metric.ratio, metric.needs_labels = True, False
"""


def outlier() -> onnx.ModelProto:
    """One number per image. One channel is huge and counts for nothing, so that INT8 has one step for all others.

    With the second convolution or the Gemm in INT8 the output is the same for every image. The first one may be INT8.
    """
    n = Net()
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    weight = n.rng.standard_normal((8, 8, 3, 3)) / 6
    weight[0] = 0
    bias = np.zeros(8)
    bias[0] = 1e5
    wanted = [n.const("second.w", weight.astype(np.float32)), n.const("second.b", bias.astype(np.float32))]
    x = n.op("Conv", [x, *wanted], "second", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = n.op("Flatten", [n.op("GlobalAveragePool", [x], "pool")], "flatten")
    column = n.rng.standard_normal((1, 8))
    column[0, 0] = 0
    n.op("Gemm", [x, n.const("fc.w", column.astype(np.float32))], "fc", transB=1)
    n.nodes[-1].output[0] = "y"
    return finish(n, {"image": [4, 3, 8, 8]}, {"y": [4, 1]})


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder with a study `s` of all eight mixes; what the search printed, and what of it on stderr."""
    folder = tmp_path_factory.mktemp("unrelated")
    save(outlier(), folder / "model.onnx")
    (folder / "blind_metrics.py").write_text(METRICS, encoding="utf-8")
    scale = np.linspace(0.2, 3, 80, dtype=np.float32)[:, None, None, None]
    np.savez(folder / "data.npz", image=scale * images(80, shape=(3, 8, 8)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = invoke(
            *("search", "model.onnx", "--data", "data.npz", "--study", "s", "--metric", "blind_metrics:small"),
            *("--trials", 8, "--max-drop", "1%", "--quiet"),
        )
    assert result.exit_code == 0, result.output
    return folder, result.stdout, result.stderr


@pytest.fixture
def here(searched: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(searched[0])
    return searched[0]


def accurate() -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads(ok("front", "s", "--json"))["rows"]
    return next(row for row in rows if "accurate" in row["picks"])


def test_a_search_warns_of_its_pick_even_when_quiet(searched: tuple[Path, str, str], here: Path) -> None:
    pick = accurate()
    assert searched[1] == "", "or this is not quiet"
    assert f"WARNING: trial {pick['trial']} ({', '.join(pick['picks'])})" in searched[2]
    assert "its outputs have nothing in common with FP32's (correlation 0.00" in searched[2]
    assert f"bitfront compare s {pick['trial']}" in searched[2]


def test_front_and_show_tell_it(here: Path) -> None:
    pick = accurate()
    assert (pick["resemblance"], pick["unrelated"], pick["loss"] < 0) == (0.0, True, True)
    result = invoke("front", "s")
    assert MARK in result.stdout
    assert "WARNING" in result.stderr
    assert json.loads(ok("front", "s", "--json"))["warnings"]
    whole = json.loads(ok("front", "s", "--json"))["rows"]
    fp32 = next(row for row in whole if row["role"] == "baseline:fp32")
    assert (fp32["resemblance"], fp32["unrelated"]) == (pytest.approx(1.0), False)
    assert "WARNING: trial" in ok("show", "s", pick["trial"])
    assert "correlation with FP32's outputs 0.00" in ok("show", "s", pick["trial"])
    shown = json.loads(ok("show", "s", pick["trial"], "--json"))
    assert shown["accuracy"]["resemblance"] == shown["final"]["resemblance"] == 0.0
    assert "nothing in common" in shown["warnings"][0]
    assert json.loads(ok("show", "s", fp32["trial"], "--json"))["warnings"] == []


def test_status_tells_it(here: Path) -> None:
    assert MARK in ok("status", "s")
    [target] = json.loads(ok("status", "s", "--json"))["targets"]
    assert target["picks"]["accurate"]["unrelated"] is True


def test_an_export_of_it_never_just_holds(here: Path, tmp_path: Path) -> None:
    pick = accurate()
    result = invoke("export", "s", "--pick", "accurate", "--out", tmp_path / "engine")
    assert result.exit_code == 0, result.output
    assert f"WARNING: trial {pick['trial']} ({', '.join(pick['picks'])})" in result.stderr
    assert re.search(f"the limits are .*; {MARK}, see the warning", result.stdout)
    manifest = json.loads((tmp_path / "engine/manifest.json").read_text())
    assert manifest["unrelated_to_fp32"] is True
    assert "nothing in common" in manifest["warnings"][0]
    assert (manifest["search"]["resemblance"], manifest["final"]["resemblance"]) == (0.0, 0.0)
    fp32 = next(row for row in json.loads(ok("front", "s", "--json"))["rows"] if row["role"] == "baseline:fp32")
    result = invoke("export", "s", "--trial", fp32["trial"], "--out", tmp_path / "fp32")
    assert "WARNING" not in result.stderr
    assert MARK not in result.stdout
    manifest = json.loads((tmp_path / "fp32/manifest.json").read_text())
    assert (manifest["unrelated_to_fp32"], manifest["warnings"]) == (False, [])


def test_the_report_tells_it(here: Path, tmp_path: Path) -> None:
    ok("report", "s", "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "WARNING: Trial" in page
    assert "Its outputs are unrelated to FP32" in page


def test_a_metric_that_gives_one_always_hides_nothing(here: Path, tmp_path: Path) -> None:
    """Everything loses 0 then, so the broken INT8 keeps every limit, on the final split too."""
    storage = f"sqlite:///{tmp_path / 'always.db'}"
    ok("search", "model.onnx", "--data", "data.npz", "--study", "a", "--metric", "blind_metrics:always",
       "--trials", 2, "--max-drop", "1%", "--storage", storage)  # fmt: skip
    rows = json.loads(ok("front", "a", "--storage", storage, "--json"))["rows"]
    int8 = next(row for row in rows if row["role"] == "baseline:int8")
    assert (int8["loss"], int8["feasible"], int8["resemblance"], int8["unrelated"]) == (0.0, True, 0.0, True)
    result = invoke("export", "a", "--trial", int8["trial"], "--out", tmp_path / "engine", "--storage", storage)
    assert "WARNING" in result.stderr
    assert re.search(f"the limits are .*; {MARK}", result.stdout)


def test_the_default_metric_sees_what_a_blind_one_does_not(here: Path, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'default.db'}"
    ok("search", "model.onnx", "--data", "data.npz", "--study", "d", "--trials", 2, "--storage", storage)
    rows = json.loads(ok("front", "d", "--storage", storage, "--json"))["rows"]
    int8 = next(row for row in rows if row["role"] == "baseline:int8")
    assert int8["metric"] < 10, "dB"
