"""A whole study with TensorRT on a GPU, as a user runs it: `pytest -m gpu`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorrt")

from networks import NETWORKS
from searched import invoke, ok, write_inputs

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
        assert "g001" in ok("profile", "s", trial)


def test_the_engine_is_compared_with_onnx_runtime(study):
    assert ok("compare", "s", "2", "--groups", "--samples", "8")


def test_an_export_holds_the_very_plan_and_what_it_takes_to_build_it_again(study):
    ok("export", "s", "--out", "engine", "--triton", "net")
    names = {path.name for path in Path("engine").rglob("*")}
    assert {"model.plan", "model.onnx", "manifest.json", "calibration.cache", "trtexec.txt", "config.pbtxt"} <= names
    manifest = json.loads(Path("engine/manifest.json").read_text())
    assert manifest["knobs"]["typing"] == "weak"


def test_another_optimization_level_is_a_new_evaluation(study):
    ok("export", "s", "--trial", "1", "--optimization-level", "1", "--out", "other")
    manifest = json.loads(Path("other/manifest.json").read_text())
    assert manifest["knobs"]["optimization_level"] == "1"


def test_strong_typing_is_refused_where_the_version_has_none(study):
    result = invoke(
        *("search", "in/model.onnx", "--data", "in/data.npz", "--study", "t", "--backend", "tensorrt"),
        *("--typing", "strong"),
    )
    assert result.exit_code == 2
    assert "no strongly typed networks" in result.output
