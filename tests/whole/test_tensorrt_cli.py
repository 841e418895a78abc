"""What a user types with `--backend tensorrt`, from the search to the export, without a GPU.

Evaluator processes find the project's fakes in place of `tensorrt` and `cuda.bindings.runtime`; all else is real. Every
engine gives ones and takes 0.25 ms, so what is told of speed and accuracy says nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.options import TensorRTOptions
from tests.support.command_line import invoke, ok, write_inputs
from tests.support.tensorrt.stand_in import V8, V10, V11, found_pixels, standing_in

pytestmark = pytest.mark.slow

SEARCH = ("--data", "in/data.npz", "--study", "s", "--backend", "tensorrt", "--trials", 4)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and data, where TensorRT of the version that is asked for seems to be installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITFRONT_TEST_TENSORRT", request.param)
    write_inputs(tmp_path / "in")
    return tmp_path


@pytest.mark.parametrize(("folder", "typing"), [(V8, "weak"), (V11, "strong")], indirect=["folder"])
def test_from_a_search_to_an_export(folder: Path, typing: str) -> None:
    ok("search", "in/model.onnx", *SEARCH, "--max-drop", "20%", "--keep-engines", "all", "--quiet")
    rows = json.loads(ok("front", "s", "--json"))["rows"]
    trial = next(row["trial"] for row in rows if row["role"] == "baseline:int8")
    groups = json.loads(ok("show", "s", trial, "--json"))["groups"]
    assert {group["answer"] for group in groups} == {"obeyed"}
    assert groups[0]["details"]["beside"].startswith("relu: ")
    ok("export", "s", "--trial", trial, "--out", "engine")
    names = {path.name for path in Path("engine").iterdir()}
    assert {"model.plan", "model.onnx", "manifest.json", "calibration.cache", "trtexec.txt"} <= names
    assert json.loads(Path("engine/manifest.json").read_text(encoding="utf-8"))["knobs"]["typing"] == typing
    shipped = {node.op_type for node in onnx.load("engine/model.onnx").graph.node}
    assert ("QuantizeLinear" in shipped) == (typing == "strong")
    written = invoke("export", "s", "--trial", trial, "--out", "twin", "--typing", "strong")
    if typing == "strong":
        assert (written.exit_code, Path("twin").exists()) == (2, False)
        assert "model.onnx of its exports has the mix already" in " ".join(written.stderr.split())
    else:
        told = json.loads(Path("twin/manifest.json").read_text(encoding="utf-8"))["explicit"]
        assert told["file"] in Path("twin/README.md").read_text(encoding="utf-8")
        assert 10 < told["sqnr_db"] < 60  # as much as INT8 loses, in ONNX Runtime
        kinds = {node.op_type for node in onnx.load("twin/model.strong.onnx").graph.node}
        assert "QuantizeLinear" in kinds
    assert "g000" in ok("show", "s", trial, "--profile")
    assert "ENGINE" in ok("compare", "s", trial).upper()
    limits = ("--data", "in/data.npz", "--max-drop", "90%", "--max-slowdown", "50%", "--processes", 3)
    gated = json.loads(ok("gate", "engine", "--against", "s", "--against-trial", trial, *limits, "--json"))
    assert {gated[side]["backend"] for side in ("candidate", "baseline", "target")} == {"tensorrt"}
    assert ok("gate", "engine/model.plan", "--against", "engine", *limits).startswith("holds: ")
    refused = invoke("gate", "engine/model.onnx", "--against", "engine/model.onnx", *limits, "--backend", "tensorrt")
    assert refused.exit_code == 2
    assert "expected engines of one backend" in refused.stderr
    Path("older.plan").write_bytes(Path("engine/model.plan").read_bytes()[:40])
    refused = invoke("gate", "older.plan", "--against", "engine", *limits)
    assert refused.exit_code == 2
    assert "older.plan cannot be loaded" in refused.stderr


@pytest.mark.parametrize("folder", [V10], indirect=True)
def test_an_output_whose_size_the_data_decide_is_the_users_to_mend(folder: Path) -> None:
    found_pixels(folder / "in")
    done = invoke("search", "in/net.onnx", *SEARCH, "--metric", "sqnr")
    assert done.exit_code == 2, done.output
    assert "'pixels' depends on the data" in " ".join(done.output.split())
    assert not Path("bitfront.db").exists()


@pytest.mark.parametrize("folder", [V10], indirect=True)
def test_a_timing_cache_that_cannot_be_used_ends_no_search(folder: Path) -> None:
    with standing_in(V10):
        file = TensorRTBackend("cuda", TensorRTOptions(timing_cache="times")).builder_knobs.timing_cache
    assert file is not None
    Path(file).mkdir(parents=True)
    ok("search", "in/model.onnx", *SEARCH, "--sampler", "random", "--timing-cache", "times", "--quiet")
    for trial in range(4):
        shown = json.loads(ok("show", "s", trial, "--json"))
        notes = [note for note in shown["notes"] if note.startswith("timing-cache: ")]
        assert len(notes) == 1
        assert notes[0].startswith("timing-cache: not read: ")
        assert file in notes[0]
