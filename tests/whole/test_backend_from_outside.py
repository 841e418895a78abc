"""A backend that this package knows nothing of goes through a whole search: named by its class, and registered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from evaluators.backends.registry import BACKENDS, choose_backend, kind_named
from search.errors import TargetError
from studies.guard.guard import Guard
from studies.guard.options import GuardOptions
from tests.support.command_line import invoke, ok, write_inputs
from tests.support.extensions import toy_backend

pytestmark = pytest.mark.slow

REFERENCE = "toy_backend:ToyKind"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, its data, and the module of the backend."""
    write_inputs(tmp_path)
    shutil.copy(toy_backend.__file__, tmp_path / "toy_backend.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def install(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the toy a package that registers it as `my-engine`."""
    site = here / "site"
    (site / "toy-1.0.dist-info").mkdir(parents=True)
    shutil.move(here / "toy_backend.py", site / "toy_backend.py")
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (site / "toy-1.0.dist-info" / "entry_points.txt").write_text(f"[bitfront.backends]\nmy-engine = {REFERENCE}\n")
    monkeypatch.syspath_prepend(site)


def test_a_backend_named_by_its_class_goes_through_a_search(here: Path) -> None:
    given = ("--backend", REFERENCE, "--backend-option", "hurry-by=2", "--trials", 4)
    ok("search", "model.onnx", "--data", "data.npz", "--study", "s", *given, "--quiet")
    ok("resume", "s", "--trials", 5, "--quiet")
    front = json.loads(ok("front", "s", "--json"))
    assert front["target"]["backend"] == "toy-engine"
    assert front["target"]["options"] == {"hurry": "2"}
    latencies = {}
    for trial in range(5):
        shown = json.loads(ok("show", "s", trial, "--json"))
        assert {group["kernel"] for group in shown["groups"]} == {"toy kernel"}
        latencies[shown["role"]] = shown["latency"]["value_ms"]
    assert latencies["baseline:fp32"] == 1.5  # three groups, twice as quick
    assert latencies["baseline:int8"] < 1.5
    ok("export", "s", "--out", "engine", "--trial", 1)
    assert (here / "engine/model.onnx").is_file()
    gate = ("gate", "engine", "--against", "s", "--data", "data.npz", "--max-drop", "99%")
    refused = invoke(*gate)
    assert (refused.exit_code, f"--backend {REFERENCE}" in refused.stderr) == (2, True), refused.stderr
    gated = invoke(*gate, "--backend", REFERENCE, "--json")
    assert gated.exit_code in (0, 1, 3), gated.stderr
    assert json.loads(gated.stdout)["candidate"]["backend"] == REFERENCE


def test_a_backend_in_a_file_is_found_from_any_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    option = ("--backend", "toy_backend.py:ToyKind")
    ok("search", "model.onnx", "--data", "data.npz", "--study", "s", *option, "--trials", 2, "--quiet")
    database = f"sqlite:///{next(here.glob('*.db'))}"
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "another-user"))
    refused = invoke("export", "s", "--out", "engine", "--trial", 1, "--storage", database)
    assert (refused.exit_code, "name it again" in refused.stderr) == (2, False), "no command of a study takes --backend"
    assert f"--backend {here / 'toy_backend.py'}:ToyKind" in refused.stderr
    ok("export", "s", "--out", "engine", "--trial", 1, "--storage", database, "--trust-functions")
    assert "Nothing was doubtful" not in (here / "elsewhere/engine/README.md").read_text(), (
        "nobody here knows its clock"
    )


def test_the_doctor_and_layers_take_it_too(here: Path) -> None:
    result = invoke("doctor", "--backend", REFERENCE, "--json")
    lines = {row["name"]: row for row in json.loads(result.stdout)["checks"]}
    assert result.exit_code == 0
    assert lines["toy"]["found"] == "runs wherever onnx does"
    assert "native precisions: fp32, int8" in lines["backend toy-engine on cpu"]["found"]
    assert "on toy-engine (any machine)" in ok("inspect", "model.onnx", "--backend", REFERENCE)


def test_an_installed_package_registers_one_under_a_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(here, monkeypatch)
    assert "my-engine" in BACKENDS.names()
    assert choose_backend("auto") != "my-engine"
    ok("search", "model.onnx", "--data", "data.npz", "--study", "s", "--backend", "my-engine", "--trials", 3, "--quiet")
    named = ("--target", "toy-engine", "--json")
    assert json.loads(ok("front", "s", *named))["target"]["backend"] == "toy-engine"
    Path("next.toml").write_text('backend = "my-engine"\nbackend_option = ["hurry_by=4"]\n', encoding="utf-8")
    ok("search", "model.onnx", "--data", "data.npz", "--study", "t", "--config", "next.toml", "--trials", 3, "--quiet")
    assert json.loads(ok("front", "t", *named))["target"]["options"] == {"hurry": "4"}


def test_what_is_done_with_engines_is_done_by_the_backend(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export, report, gate, guard and inspect ask the kind, which an installed package registers."""
    install(here, monkeypatch)
    ok("search", "model.onnx", "--data", "data.npz", "--study", "s", "--backend", "my-engine", "--trials", 3, "--quiet")
    ok("export", "s", "--out", "fast", "--trial", 1)
    ok("export", "s", "--out", "safe", "--trial", 0)
    assert (here / "fast/toy.txt").read_text() == "toy"
    assert "| `toy.txt` | a word about toys |" in (here / "fast/README.md").read_text()
    ok("report", "s", "--out", "report.html")
    assert "run_toy(&#39;engine&#39;)" in (here / "report.html").read_text()
    judged = invoke("gate", "fast", "--against", "safe", "--data", "data.npz", "--max-drop", "99%", "--json")
    assert judged.exit_code in (0, 1), judged.stderr
    assert json.loads(judged.stdout)["candidate"]["backend"] == "my-engine"
    images = np.load(here / "data.npz")
    batch = {"image": images[next(iter(images.files))][:4].astype(np.float32)}
    with Guard.open(here / "fast", here / "safe", GuardOptions(share=1.0)) as guard:
        assert guard.run(batch).keys() == {"logits"}
    shutil.copy(here / "fast/model.onnx", here / "engine.toy")
    assert json.loads(ok("inspect", "engine.toy", "--json"))["kind"] == "a toy's engine"


def test_what_is_no_backend_is_refused_with_what_was_expected(here: Path) -> None:
    (here / "wrong.py").write_text(
        "from evaluators.backends.kind import BackendKind\n"
        "class NoName(BackendKind):\n    engine_file = 'e'\n    def open(self, device, options): ...\n"
        "class Spaced(NoName):\n    name = 'my engine'\n"
        "class NoOpen(BackendKind):\n    name = engine_file = 'e'\n"
        "def function(): ...\n"
    )
    for name, says in (
        ("wrong:NoName", "does not define name"),
        ("wrong:Spaced", "Spaced is named 'my engine', expected letters, digits, '-', '_' and '.'. Rename it"),
        ("wrong:NoOpen", "cannot be made"),
        ("wrong:function", "expected a subclass of BackendKind"),
    ):
        with pytest.raises(TargetError, match=says):
            kind_named(name)
    for name in ("wrong:function", "wrong:Nothing", "absent:Kind"):
        refused = invoke("search", "model.onnx", "--data", "data.npz", "--backend", name)
        assert (refused.exit_code, "Traceback" in refused.stderr) == (2, False), refused.stderr
    assert not (here / "bitfront.db").exists()
