"""From options to what a backend is given, and what is refused on the way."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from evaluators.process.keeper import EvaluatorProcess
from search.errors import ConfigError, TargetError
from studies.options.config import SearchConfig
from studies.options.read_options import read_config
from studies.run.session.backend_values import backend_options, check_backend_options, final_options
from studies.run.session.levels import START_LEVEL
from studies.run.session.study_rows import resolve_config
from tests.support.command_line import copy_finished, invoke, ok, tree, write_inputs

BASE = {"model": "m.onnx", "data": "d.npz"}
PLAIN = {
    "threads": 1, "typing": "auto", "workspace_bytes": 4 << 30, "optimization_level": START_LEVEL, "tf32": True,
    "sparsity": False, "native_instancenorm": True, "plugins": [], "build_threads": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(backend: str = "tensorrt", **options: Any) -> SearchConfig:
    return read_config({**BASE, "backend": backend, **options})


def test_what_tensorrt_is_given(here: Path) -> None:
    assert backend_options(config()) == {**PLAIN, "timing_cache": str(here / "bitfront.db.artifacts/timing-cache")}
    given = {
        "threads": "2", "typing": "strong", "workspace": "1GiB", "optimization-level": "1", "tf32": "off",
        "sparsity": True, "native-instancenorm": "off", "plugin": ["a.so", "/b.so"], "timing-cache": "times",
        "build-threads": "6",
    }  # fmt: skip
    assert backend_options(config(**given)) == {
        "threads": 2, "typing": "strong", "workspace_bytes": 1 << 30, "optimization_level": 1, "tf32": False,
        "sparsity": True, "native_instancenorm": False, "plugins": [str(here / "a.so"), "/b.so"],
        "timing_cache": str(here / "times"), "build_threads": 6,
    }  # fmt: skip
    assert json.loads(json.dumps(backend_options(config(**given)))) == backend_options(config(**given))
    assert backend_options(config(**{"timing-cache": "none"}))["timing_cache"] is None
    elsewhere = config(artifacts="/engines", storage="postgresql://me@host/db")
    assert backend_options(elsewhere)["timing_cache"] == "/engines/timing-cache"


def test_onnxruntime_is_given_none_of_it() -> None:
    assert backend_options(config("onnxruntime", threads="3")) == {"threads": 3}
    assert final_options(config("onnxruntime", threads="3")) == {"threads": 3}


def test_exports_may_be_built_at_another_level() -> None:
    found = config(**{"optimization-level": "1", "final-optimization-level": "5"})
    assert (backend_options(found)["optimization_level"], final_options(found)["optimization_level"]) == (1, 5)
    assert final_options(config(**{"optimization-level": "1"}))["optimization_level"] == 1
    assert final_options(config(**{"final-optimization-level": "0"})) == {
        **backend_options(config()),
        "optimization_level": 0,
    }


def test_stored_paths_hold_from_any_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(**{"plugin": ["a.so"], "timing-cache": "times"})
    stored = SearchConfig.from_json(json.loads(json.dumps(resolve_config(made))))
    options = backend_options(made)
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    told = (stored.builder_option("plugins"), stored.builder_option("timing_cache"))
    assert told == ((str(here / "a.so"),), str(here / "times"))
    assert backend_options(stored) == options
    assert resolve_config(config(**{"timing-cache": "none"}))["timing_cache"] == "none"


def test_a_configuration_from_before_these_options_gets_their_defaults(here: Path) -> None:
    stored = SearchConfig.from_json({"model": "m.onnx", "data": "d", "study": "s", "backend": "tensorrt"})
    assert backend_options(stored) == {**PLAIN, "timing_cache": str(here / "bitfront.db.artifacts/timing-cache")}
    assert stored.builder_option("final_optimization_level") is None


def test_options_of_another_backend_are_refused_all_at_once(here: Path) -> None:
    (here / "study.toml").write_text("tf32 = 'on'\nworkspace = '1GiB'\n")
    filed = read_config({**BASE, "backend": "onnxruntime", "sparsity": True}, here / "study.toml")
    with pytest.raises(ConfigError) as caught:
        check_backend_options(filed)
    assert str(caught.value) == (
        "--sparsity, --tf32, --workspace: expected only with backend tensorrt, got backend onnxruntime. "
        "Leave them out, or choose --backend tensorrt."
    )
    check_backend_options(config("onnxruntime", threads="2"))
    check_backend_options(SearchConfig.from_json(filed.to_json()))  # what is stored was not given now
    with pytest.raises(TargetError):
        check_backend_options(SearchConfig("m", "d", "s", backend="coreml"))


def test_files_that_tensorrt_options_name(here: Path) -> None:
    (here / "a.so").touch()
    check_backend_options(config(**{"plugin": ["a.so"], "timing-cache": "deep/times"}))
    for options, says in (
        ({"plugin": ["a.so", "none.so"]}, "--plugin none.so: there is no such file"),
        ({"plugin": [str(here)]}, "there is no such file"),
        ({"timing-cache": "a.so"}, "a.so is not a folder that can be written"),
        ({"timing-cache": "a.so/times"}, "--timing-cache"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_backend_options(config(**options))
    assert [path.name for path in here.iterdir()] == ["a.so"]


def test_layers_and_search_refuse_them_with_nothing_made(here: Path) -> None:
    write_inputs(here)
    (here / "study.toml").write_text("model = 'model.onnx'\ndata = 'data.npz'\ntf32 = false\n")
    before = sorted(path.name for path in here.iterdir())
    for arguments in (
        ("inspect", "model.onnx", "--typing", "weak"),
        ("search", "--config", "study.toml", "--backend", "onnxruntime"),
        ("search", "model.onnx", "--data", "data.npz", "--backend", "tensorrt", "--plugin", "none.so"),
    ):
        refused = invoke(*arguments)
        assert refused.exit_code == 2, refused.output
        assert sum(line.startswith("error: ") for line in refused.stderr.splitlines()) == 1
    assert sorted(path.name for path in here.iterdir()) == before


def test_where_a_check_refuses_the_process_that_has_started_meanwhile_is_ended(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(here)
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    prepare, started = EvaluatorProcess.prepare, []

    def noted(process: EvaluatorProcess) -> None:
        prepare(process)
        started.append(process.pid)

    monkeypatch.setattr(EvaluatorProcess, "prepare", noted)
    before = tree(here)
    refused = invoke("search", "model.onnx", "--data", "none.npz")
    assert refused.exit_code == 2, refused.output
    assert "none.npz" in refused.stderr
    assert len(started) == 1
    assert not psutil.pid_exists(started[0]) or psutil.Process(started[0]).status() == psutil.STATUS_ZOMBIE
    assert list(temporary.glob("*run*")) == []
    assert tree(here) == before


@pytest.mark.slow
def test_a_study_made_before_these_options_is_resumed(here: Path) -> None:
    import sqlite3

    copy_finished(here)
    connection = sqlite3.connect("bitfront.db")
    names = [*PLAIN, "final_optimization_level", "timing_cache"]
    for name in set(names) - {"threads"}:
        connection.execute(f"update bf_study set config = json_remove(config, '$.{name}')")
    connection.commit()
    connection.close()
    assert "5 evaluations are done" in ok("resume", "small", "--trials", 5)


METRICS = """
import numpy as np

def error(outputs, labels):
    return np.abs(outputs["logits"].max(axis=1) - labels)

error.unit, error.higher_is_better = "EUR", False
"""
LOADERS = """
import numpy as np

def load():
    with np.load("data.npz") as found:
        yield dict(found)
"""


@pytest.mark.slow
def test_files_of_functions_are_compared_by_their_path_and_not_by_how_it_was_written(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(here)
    (here / "metrics.py").write_text(METRICS)
    (here / "loaders.py").write_text(LOADERS.replace('"data.npz"', repr(f"{here}/data.npz")))
    storage = ("--storage", f"sqlite:///{here}/s.db")
    own = ("--data", "loaders.py:load", "--metric", "metrics.py:error", "--max-drop", "9")
    ok("search", "model.onnx", *own, *storage, "--study", "s", "--trials", 2, "--backend", "fake")
    ok("resume", "s", *storage, "--trials", 3)
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    ok("resume", "s", *storage, "--trials", 4)
    ok("export", "s", *storage, "--trial", 0, "--out", "engine")
    (here / "metrics.py").write_text(METRICS.replace("EUR", "USD"))
    for words in (("resume", "s", "--trials", 5), ("export", "s", "--trial", 0, "--out", "other")):
        said = invoke(*words, *storage)
        assert said.exit_code == 2
        assert "opening study 's': what it was made of has changed:" in said.stderr
        assert f"the metric {here}/metrics.py:error has another unit, direction or kind" in said.stderr
