"""A whole study with TensorRT on a GPU, as a user runs it: `pytest -m gpu`."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import onnx
import pytest

pytest.importorskip("tensorrt")

from tests.support.command_line import invoke, ok, run_sql, write_inputs
from tests.support.networks import NETWORKS

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("study")
    write_inputs(found / "in", NETWORKS["residual"]())
    return found


@pytest.fixture(scope="module")
def study(folder: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        printed = ok(
            *("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--backend", "tensorrt"),
            *("--trials", "6", "--max-drop", "50%", "--keep-engines", "all"),
            *("--optimization-level", "1"),  # nothing here is about speed, and it builds sooner
            "--verbose",
        )
        assert "obeyed" in printed
        yield folder


def test_the_front_and_an_evaluation_are_shown(study):
    front = json.loads(ok("front", "s", "--json"))
    assert front
    shown = json.loads(ok("show", "s", "2", "--json"))
    text = json.dumps(shown)
    for word in ("sm_clock_mhz", "host_to_device", "moves_ms", "tactic"):
        assert word in text


def test_a_baseline_s_profile_is_stored_and_another_is_measured(study):
    for trial in ("0", "4"):
        assert "g001" in ok("show", "s", trial, "--profile")


def test_the_engine_is_compared_with_onnx_runtime(study):
    assert ok("compare", "s", "2", "--groups", "--samples", "8")


def test_an_export_holds_the_very_plan_and_what_it_takes_to_build_it_again(study):
    trial = next(row["trial"] for row in json.loads(ok("front", "s", "--json"))["rows"] if "int8" in row["role"])
    ok("export", "s", "--trial", trial, "--out", "engine", "--triton", "net")
    folder = Path("engine")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert {"model.plan", "model.onnx", "manifest.json", "calibration.cache", "trtexec.txt"} <= names
    assert {"triton/net/config.pbtxt", "triton/net/1/model.plan"} <= names
    plan = sha256((folder / "model.plan").read_bytes()).hexdigest()
    assert plan == run_sql("select artifact from bf_evaluation where role = 'baseline:int8'")[0][0]
    onnx.checker.check_model(folder / "model.onnx")
    assert json.loads((folder / "manifest.json").read_text())["knobs"]["typing"] == "weak"
    command = (folder / "trtexec.txt").read_text()
    for option in ("--calib=calibration.cache", "--layerPrecisions=", "--builderOptimizationLevel=1"):
        assert option in command


def test_another_optimization_level_is_a_new_evaluation(study):
    said = invoke("export", "s", "--trial", "1", "--optimization-level", "0", "--out", "other")
    assert said.exit_code == 0, said.output
    assert "not built at optimization level 0" in said.output
    rebuilt = json.loads(Path("other/manifest.json").read_text(encoding="utf-8"))
    assert (rebuilt["evaluation"]["rebuilt"], rebuilt["knobs"]["optimization_level"]) == (True, "0")
    assert rebuilt["groups"]


def test_strong_typing_is_refused_where_the_version_has_none(study):
    result = invoke(
        *("search", "in/model.onnx", "--data", "in/data.npz", "--study", "t", "--backend", "tensorrt"),
        *("--typing", "strong"),
    )
    assert result.exit_code == 2
    assert "no strongly typed networks" in result.output
