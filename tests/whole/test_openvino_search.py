"""What a user types with `--backend openvino`, from the search to the gate, with the real OpenVINO."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from studies.guard.guard import Guard
from studies.guard.options import GuardOptions
from tests.support.command_line import invoke, ok, write_inputs
from tests.support.networks import images, residual_cnn

pytest.importorskip("openvino")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study `s`, with the export of its INT8 engine in `engine`."""
    folder = tmp_path_factory.mktemp("openvino")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_inputs(folder, residual_cnn(batch=4))
        given = ("--backend", "openvino", "--trials", 5, "--keep-engines", "all")
        ok("search", "model.onnx", "--data", "data.npz", "--study", "s", *given, "--max-drop", "50%", "--quiet")
        ok("export", "s", "--trial", 1, "--out", "engine")
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_groups_of_every_trial_run_as_asked_or_it_is_told() -> None:
    front = json.loads(ok("front", "s", "--all", "--json"))
    assert front["target"]["backend"] == "openvino"
    assert front["target"]["clock"] == "thread"
    trials = {row["trial"]: row["role"] for row in front["rows"]}
    assert {"baseline:fp32", "baseline:int8"} <= set(trials.values())
    for trial, role in trials.items():
        groups = json.loads(ok("show", "s", trial, "--json"))["groups"]
        disobeyed = [group["node"] for group in groups if group["answer"] != "obeyed"]
        assert disobeyed in ([], ["block.1/down"])
        assert not (role and disobeyed)
    assert "jit_avx2_I8" in ok("show", "s", 1) or "_I8" in ok("show", "s", 1)
    assert "Convolution" in ok("show", "s", 1, "--profile")


def test_an_export_runs_by_its_script_and_in_a_guard(capsys: pytest.CaptureFixture[str]) -> None:
    assert "QuantizeLinear" in {node.op_type for node in onnx.load("engine/model.onnx").graph.node}
    samples = images(8, seed=3)
    np.savez("some.npz", image=samples)
    words = ["run.py", "--data", "some.npz", "--out", "out.npz", "--repeat", "3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        runpy.run_path("engine/run.py", run_name="__main__")
    said = capsys.readouterr().out
    assert "output logits: shape 8x10, float32" in said
    assert re.search(r"processor time, of 3 runs \(OpenVINO 20\d\d\.\d+\.\d+, 1 thread\)", said)
    ok("export", "s", "--trial", 0, "--out", "safe")
    with Guard.open("engine", "safe", GuardOptions(share=0.0)) as guard:
        logits = guard.run({"image": samples[:4]})["logits"]
    np.testing.assert_allclose(logits, np.load("out.npz")["logits"][:4], rtol=1e-5, atol=1e-5)


def test_what_reads_engines_and_studies_knows_it() -> None:
    listed = ok("inspect", "engine")
    assert "engine of openvino" in listed
    assert "block.0/conv1" in listed
    assert "on openvino (" in ok("inspect", "model.onnx", "--backend", "openvino")
    ok("report", "s", "--out", "r.html")
    assert "import openvino as ov" in Path("r.html").read_text(encoding="utf-8")
    compared = ok("compare", "s", 1, "--groups", "--samples", 8)
    assert "the engine agrees with its emulation" in compared
    readme = Path("engine/README.md").read_text(encoding="utf-8")
    assert "openvino" in readme
    assert json.loads(Path("engine/manifest.json").read_text(encoding="utf-8"))["target"]["versions"].keys() == {
        "openvino"
    }


def test_a_gate_takes_its_exports_and_files() -> None:
    limits = ("--against", "s", "--against-trial", 1, "--data", "data.npz", "--max-drop", "90%")
    for candidate, given in (("engine", ()), ("engine/model.onnx", ("--backend", "openvino"))):
        gated = json.loads(ok("gate", candidate, *limits, *given, "--json"))
        assert {gated[side]["backend"] for side in ("candidate", "baseline", "target")} == {"openvino"}
    refused = invoke("gate", "engine/model.onnx", *limits)
    assert refused.exit_code == 2
    assert "got onnxruntime and openvino" in refused.stderr


def test_the_doctor_knows_it() -> None:
    rows = json.loads(ok("doctor", "--backend", "openvino", "--json"))["checks"]
    line = next(row for row in rows if row["name"] == "backend openvino on cpu")
    assert line["good"]
    assert "native precisions: fp32, int8" in line["found"] or "bf16" in line["found"]
    assert "openvino 20" in line["found"]
