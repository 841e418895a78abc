"""`bitfront gate` on real engines: verdicts, exit codes, files, and what it refuses. Latencies are planted ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bitfront import verbs
from studies.gate.check import GateVerdict
from tests.support.command_line import copy_finished, finished, invoke, ok, three_layers, write_inputs
from tests.support.networks import save

pytestmark = pytest.mark.slow

FEW = ("--processes", 3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network and data that it is right on, networks that differ from it, and one export. Read only."""
    folder = tmp_path_factory.mktemp("gate")
    write_inputs(folder, samples=400)
    save(three_layers(seed=1), folder / "other.onnx")
    save(with_weights(three_layers(), np.nan), folder / "broken.onnx")
    save(three_layers(batch=2), folder / "two.onnx")
    save(three_layers(batch="n"), folder / "open.onnx")
    save(with_spare_weights(three_layers()), folder / "slow.onnx")
    (folder / "text.onnx").write_text("no network")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        copy_finished(folder)
        ok("export", "small", "--trial", 1, "--out", "engine", "--quiet")
    return folder


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def with_weights(network: onnx.ModelProto, value: float) -> onnx.ModelProto:
    """The network with one weight replaced."""
    first = network.graph.initializer[0]
    array = numpy_helper.to_array(first).copy()
    array.flat[0] = value
    first.CopyFrom(numpy_helper.from_array(array, first.name))
    return network


def with_spare_weights(network: onnx.ModelProto) -> onnx.ModelProto:
    """The network with weights that nothing reads: on the planted clock it takes longer, and gives the same."""
    network.graph.initializer.append(numpy_helper.from_array(np.zeros(20_000, np.float32), "spare"))
    return network


def words(candidate: str, *more: Any, against: str = "model.onnx") -> list[Any]:
    return ["gate", candidate, "--against", against, "--data", "data.npz", *more]


def test_equal_engines_hold(here: Path) -> None:
    said = invoke(*words("model.onnx", "--max-drop", "5%", "--max-slowdown", "5%", *FEW))
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith("holds: model.onnx against model.onnx\n")
    assert "the drop is at most 1.316 %," in said.stdout, "Clopper's and Pearson's bound: 1 - 0.005 ** (1 / 400)"
    assert "0.5 % for each bound of each check" in said.stdout


def test_a_worse_network_fails_and_files_say_so(here: Path, tmp_path: Path) -> None:
    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    said = invoke(*words("other.onnx", "--max-drop", "5%", "--json", "--junit", junit, "--markdown", markdown))
    assert said.exit_code == 1, said.output
    found = json.loads(said.stdout)
    (check,) = found["checks"]
    assert (found["verdict"], check["verdict"], check["level"]) == ("fails", "fails", 0.01)
    assert check["low"] > 0.05
    assert check["smallest_detectable"] > 0.05
    assert found["values"]["baseline"] == 1.0
    suite = ElementTree.parse(junit).getroot()[0]
    assert suite.attrib["failures"] == "1"
    assert suite[0][0].tag == "failure"
    assert "❌ bitfront gate: fails" in markdown.read_text(encoding="utf-8")


def test_a_slower_engine_fails_and_the_same_as_baseline_holds(here: Path) -> None:
    limit = ("--max-slowdown", "5%", *FEW)
    assert invoke(*words("slow.onnx", *limit)).exit_code == 1
    assert invoke(*words("model.onnx", *limit, against="slow.onnx")).exit_code == 0


def test_what_the_samples_cannot_tell_is_not_judged(here: Path, tmp_path: Path) -> None:
    junit = tmp_path / "gate.xml"
    said = invoke(*words("model.onnx", "--max-drop", "0.1%", "--junit", junit))
    assert said.exit_code == 3, said.output
    assert "more samples would give a narrower interval" in said.stdout
    assert ElementTree.parse(junit).getroot()[0].attrib["skipped"] == "1"


def test_outputs_that_are_not_finite_fail(here: Path) -> None:
    said = invoke(*words("broken.onnx", "--max-drop", "5%"))
    assert said.exit_code == 1
    assert "outputs hold NaN or infinite values" in said.stdout
    refused = invoke(*words("model.onnx", "--max-drop", "5%", against="broken.onnx"))
    assert refused.exit_code == 2
    assert "scoring the baseline" in refused.stderr


def test_studies_and_exports_are_compared_by_their_engines(here: Path) -> None:
    found = verbs_gate("engine", "small", max_drop=0.5, max_slowdown=0.9, processes=3, against_trial=0)
    assert found.candidate.name == "engine (trial 1)"
    assert found.baseline.name == "small (trial 0)"
    assert found.candidate.target == found.baseline.target == found.target
    assert [check.name for check in found.checks] == ["loss", "latency"]
    assert found.verdict in GateVerdict


def test_metrics_that_compare_outputs_have_a_reference(here: Path) -> None:
    agreement = verbs_gate("other.onnx", "model.onnx", max_drop=0.05, changes={"metric": "agreement"})
    assert agreement.verdict is GateVerdict.FAILS
    assert agreement.values["baseline"] == 1.0
    noise = verbs_gate(
        "engine/model.onnx", "other.onnx", max_drop=0.5, changes={"metric": "sqnr"}, reference=Path("model.onnx")
    )
    assert noise.verdict is GateVerdict.HOLDS
    assert noise.values["candidate"] > noise.values["baseline"]


def test_an_open_batch_takes_the_one_that_is_given(here: Path) -> None:
    found = verbs_gate("open.onnx", "model.onnx", max_drop=0.05, changes={"batch": 4})
    assert found.verdict is GateVerdict.HOLDS


def verbs_gate(candidate: str, baseline: str, **more: Any) -> Any:
    from tests.support.command_line import quick

    with quick():
        return verbs.gate(candidate, baseline, "data.npz", **more)


def altered_export(folder: Path, **target: str) -> str:
    """A copy of the export, made for another target."""
    shutil.copytree("engine", folder / "elsewhere")
    path = folder / "elsewhere" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["target"].update(target)
    path.write_text(json.dumps(manifest))
    return str(folder / "elsewhere")


def test_a_baseline_of_another_target_is_refused(here: Path, tmp_path: Path) -> None:
    elsewhere = altered_export(tmp_path, device="another processor")
    said = invoke(*words("engine", "--max-drop", "5%", against=elsewhere))
    assert said.exit_code == 2
    assert "belongs to another target than this host: device: another processor against" in said.stderr
    assert "model.onnx" in said.stderr


def test_engines_of_two_backends_are_refused(here: Path, tmp_path: Path) -> None:
    (tmp_path / "engine.plan").write_bytes(b"")
    said = invoke(*words("engine", "--max-drop", "5%", against=str(tmp_path / "engine.plan")))
    assert said.exit_code == 2
    assert "expected engines of one backend, got onnxruntime and tensorrt" in said.stderr


def test_an_engine_that_was_changed_since_its_export_is_refused(here: Path, tmp_path: Path) -> None:
    shutil.copytree("engine", tmp_path / "changed")
    shutil.copy("other.onnx", tmp_path / "changed" / "model.onnx")
    said = invoke(*words(str(tmp_path / "changed"), "--max-drop", "5%"))
    assert said.exit_code == 2
    assert "was changed after the export" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (words("model.onnx"), "expected --max-drop, --max-slowdown or both"),
        (words("model.onnx", "--max-drop", "-1%"), "a drop of zero or more"),
        (words("model.onnx", "--max-drop", "1dB"), "its values are shares of one"),
        (words("model.onnx", "--max-slowdown", "3%", "--processes", 2), "expected at least 3"),
        (words("model.onnx", "--max-slowdown", "fast"), "--max-slowdown: expected a share"),
        (words("missing.onnx", "--max-drop", "1%"), "missing.onnx: there is no such file"),
        (words("nobody", "--max-drop", "1%"), "nobody"),
        (words("model.onnx", "--max-drop", "1%", "--trial", 1), "only a study has trials"),
        (words("small", "--max-drop", "1%", "--trial", 99), "--trial 99"),
        (words("text.onnx", "--max-drop", "1%"), "text.onnx"),
        (words("two.onnx", "--max-drop", "1%"), "expected the same inputs"),
        (words("open.onnx", "--max-drop", "1%"), "Give --batch"),
        (words("model.onnx", "--max-drop", "1%", "--metric", "sqnr"), "Give --reference"),
        (words("model.onnx", "--max-drop", "1%", "--reference", "nothing.onnx"), "--reference nothing.onnx"),
        (words("model.onnx", "--max-drop", "1%", "--backend", "tensorrt"), "expected engines of one backend"),
        (words("model.onnx", "--max-drop", "1%", "--junit", "nowhere/gate.xml"), "nowhere/gate.xml"),
        (["gate", "model.onnx", "--against", "model.onnx", "--max-drop", "1%"], "--data"),
        (["gate", "model.onnx", "--against", ".", "--data", "data.npz", "--max-drop", "1%"], "expected a folder that"),
    ],
    ids=str,
)
def test_bad_input_has_one_message(here: Path, arguments: list[Any], said: str) -> None:
    before = set(here.iterdir())
    refused = invoke(*arguments)
    assert refused.exit_code == 2, refused.output
    assert refused.stderr.count("error: ") == 1
    assert said in refused.stderr
    assert set(here.iterdir()) == before


def test_an_engine_that_was_not_kept_has_to_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    shutil.rmtree(tmp_path / "bitfront.db.artifacts")
    said = invoke("gate", "small", "--against", "small", "--data", str(finished() / "in/data.npz"), "--max-drop", "9%")
    assert said.exit_code == 2
    assert "`bitfront export small --trial" in said.stderr
