"""A database of somebody else names functions: none runs before this machine's user has allowed it."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import bitfront
from bitfront.verbs import searches
from search.errors import ConfigError
from tests.support.command_line import DATABASE, copy_finished, invoke, ok, write_inputs

STRANGER = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
import numpy as np

def load():
    return dict(np.load(Path(__file__).with_name("data.npz")))

def score(outputs, labels):
    return (outputs["logits"].argmax(1) == labels).astype(float)

score.ratio = True
"""
FIELDS = {
    "data": "--data",
    "calibration_data": "--calibration-data",
    "final_data": "--final-data",
    "metric": "--metric",
    "decode": "--decode",
    "preprocess": "--preprocess",
    "sampler": "--sampler",
    "backend": "--backend",
    "recover": "--recover",
}
RUNNING = {
    "resume": ("--trials", "5"),
    "worker": ("--trials", "5"),
    "export": ("--trial", "1", "--out", "out"),
    "profile": ("1", "--profile", "--again"),
    "remeasure": ("--remeasure", "1"),
    "compare": ("1",),
    "sensitivity": ("--again",),
    "drift": ("--data", "data.npz"),
    "renew": ("--data", "data.npz", "--as", "new"),
}
MODES = {"profile": "show", "remeasure": "resume", "renew": "resume"}  # of verbs
READING = (("front",), ("front", "--all"), ("show", "1"), ("status",), ("report", "--out", "report.html"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of a finished study, a module beside it that leaves `ran` where it is imported, and a user of no trust."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    copy_finished(tmp_path)
    write_inputs(tmp_path)
    (tmp_path / "stranger.py").write_text(STRANGER)
    yield tmp_path
    sys.modules.pop("stranger", None)


def plant(here: Path, field: str, name: str) -> None:
    with sqlite3.connect(here / DATABASE) as database:
        ((stored,),) = database.execute("select config from bf_study where name = 'small'")
        config = {**json.loads(stored), field: name}
        database.execute("update bf_study set config = ? where name = 'small'", [json.dumps(config)])


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
def test_no_verb_runs_a_function_that_only_the_database_names(here: Path, field: str) -> None:
    name = f"{here / 'stranger.py'}:load" if field != "recover" else "stranger:load"
    plant(here, field, name)
    for verb, more in RUNNING.items():
        if field in ("calibration_data", "final_data") and verb in ("drift", "renew"):
            continue  # these leave the study's own out
        if field == "data" and verb in ("drift", "renew"):
            continue  # and take these
        result = invoke(MODES.get(verb, verb), "small", *more)
        assert result.exit_code == 2, (verb, result.output)
        assert f"{FIELDS[field]} {name}" in " ".join(result.stderr.split()), verb
        assert not (here / "ran").exists(), verb


@pytest.mark.slow
def test_verbs_that_read_run_none_and_need_no_trust(here: Path) -> None:
    for field in FIELDS:
        plant(here, field, "stranger:load")
    for verb, *more in READING:
        ok(verb, "small", *more)
    assert not (here / "ran").exists()


def test_libraries_of_plugins_are_code_too(here: Path) -> None:
    (here / "evil.so").touch()
    plant(here, "plugins", [str(here / "evil.so")])  # type: ignore[arg-type]
    result = invoke("resume", "small")
    assert result.exit_code == 2
    assert f"--plugin {here / 'evil.so'}" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_what_is_named_here_is_allowed_from_then_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = ("search", "model.onnx", "--data", "stranger.py:load", "--metric", "stranger.py:score")
    ok(*search, "--study", "own", "--backend", "fake", "--trials", 3, "--quiet")
    ok("resume", "own", "--trials", 4, "--quiet")
    ok("export", "own", "--trial", 1, "--out", "first", "--quiet")
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "other"))  # as another user, or on another machine
    refused = invoke("export", "own", "--trial", 1, "--out", "second")
    assert refused.exit_code == 2
    assert "--data" in refused.stderr
    assert "--metric" in refused.stderr
    # Naming one of them again leaves the other.
    refused = invoke("resume", "own", "--trials", 5, "--data", "stranger.py:load")
    assert refused.exit_code == 2
    assert "--data" not in refused.stderr
    both = ("--data", "stranger.py:load", "--metric", f"{here}/stranger.py:score")
    ok("export", "own", "--trial", 1, "--out", "named", *both, "--quiet")
    assert invoke("resume", "own", "--trials", 5).exit_code == 2  # that was for one export
    ok("export", "own", "--trial", 1, "--out", "third", "--trust-functions", "--quiet")
    assert invoke("resume", "own", "--trials", 5).exit_code == 2  # that was for one export
    ok("resume", "own", "--trials", 5, "--trust-functions", "--quiet")
    ok("resume", "own", "--trials", 6, "--quiet")


@pytest.mark.parametrize("verb", ["resume", "worker", "export"])
def test_another_function_than_the_studys_is_refused_before_it_runs(here: Path, verb: str) -> None:
    more = ("--out", "out") if verb == "export" else ("--trials", 5)
    for option in ("metric", "decode", "preprocess", "sampler"):
        refused = invoke(verb, "small", *more, f"--{option}", "stranger:load")
        assert refused.exit_code == 2, refused.output
        assert f"--{option} stranger:load: study 'small' was made with" in " ".join(refused.stderr.split())
    assert not (here / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["resume", "worker"])
def test_names_that_are_given_again_run_and_stay_as_they_are_stored(
    here: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = ("search", "model.onnx", "--data", "data.npz", "--metric", "stranger.py:score", "--study", "own")
    ok(*search, "--backend", "fake", "--trials", 3, "--quiet")
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "other"))
    assert invoke(verb, "own", "--trials", 4).exit_code == 2
    ok(verb, "own", "--trials", 4, "--metric", "stranger.py:score", "--sampler", "guided", "--quiet")
    ok(verb, "own", "--trials", 5, "--quiet")  # it was remembered
    with sqlite3.connect(here / DATABASE) as database:
        ((stored,),) = database.execute("select config from bf_study where name = 'own'")
    assert json.loads(stored)["metric"] == f"{here / 'stranger.py'}:score"


@pytest.mark.slow
def test_trust_is_for_one_study_of_one_database(here: Path) -> None:
    search = ("search", "model.onnx", "--data", "data.npz", "--metric", "stranger.py:score", "--backend", "fake")
    ok(*search, "--study", "own", "--trials", 3, "--quiet")
    plant(here, "metric", f"{here / 'stranger.py'}:score")
    assert invoke("resume", "small", "--trials", 5).exit_code == 2
    (here / "elsewhere").mkdir()
    (here / DATABASE).rename(here / "elsewhere" / DATABASE)
    moved = f"sqlite:///{here / 'elsewhere' / DATABASE}"
    assert invoke("resume", "own", "--trials", 4, "--storage", moved).exit_code == 2


@pytest.mark.slow
def test_in_python_a_call_that_names_the_function_again_allows_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"backend": "fake", "study": "own", "metric": str(here / "stranger.py:score"), "progress": False}
    bitfront.search("model.onnx", "data.npz", trials=3, **arguments)  # type: ignore[arg-type]
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "other"))
    study = bitfront.load("own")
    with pytest.raises(ConfigError, match=r"metric .*stranger\.py:score(.|\n)*trust_functions"):
        study.export("out", trial=1)
    assert len(bitfront.search("model.onnx", "data.npz", trials=4, if_exists="resume", **arguments)) == 4  # type: ignore[arg-type]
    study.export("out", trial=1)
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "third"))
    study.export("again", trial=1, trust_functions=True)


@pytest.mark.slow
def test_a_folder_for_state_that_cannot_be_written_stops_no_search(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "taken").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "taken"))
    result = invoke("search", "model.onnx", "--data", "data.npz", "--metric", "stranger.py:score", "--study", "own",
                    "--backend", "fake", "--trials", 3)  # fmt: skip
    assert result.exit_code == 0
    assert "set XDG_STATE_HOME" in " ".join(result.stderr.split())
    assert invoke("resume", "own", "--trials", 4).exit_code == 2


@pytest.mark.slow
def test_a_gate_imports_no_backend_that_a_manifest_or_a_database_names(here: Path) -> None:
    ok("export", "small", "--trial", 1, "--out", "out", "--quiet")
    manifest = json.loads((here / "out/manifest.json").read_text())
    manifest["backend"] = "stranger:Backend"
    (here / "out/manifest.json").write_text(json.dumps(manifest))
    plant(here, "backend", "stranger:Backend")
    for side in (("out",), ("small", "--trial", "1")):
        result = invoke("gate", *side, "--against", "model.onnx", "--data", "data.npz", "--max-drop", "1%")
        assert result.exit_code == 2
        assert "--backend stranger:Backend" in " ".join(result.stderr.split())
    assert not (here / "ran").exists()


def test_a_damaged_list_allows_nothing(here: Path) -> None:
    plant(here, "metric", "stranger:score")
    (here / "state/bitfront").mkdir(parents=True)
    url, name = f"sqlite:///{here / DATABASE}", "stranger:score"
    lines = [
        "",
        "null",
        "[1, 2, 3, 4]",
        '"small"',
        "{",
        json.dumps([url, "small", name]),
        json.dumps([url, "other", "metric", name]),
    ]
    (here / "state/bitfront/allowed-functions.jsonl").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="has not allowed"):
        searches.resume("small", {"trials": 5})
    assert not (here / "ran").exists()
    assert np.load(here / "data.npz")["image"].shape[0] == 60
