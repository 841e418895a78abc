"""A metric that only the calling process has: searched with, gone on with, exported, and refused elsewhere."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bitfront as bf
from search.errors import BitfrontError, ConfigError, StudyError
from studies.run.pace import Pace
from tests.support.command_line import invoke, quick, write_inputs

OPTIONS: dict[str, Any] = {"trials": 3, "progress": False, "max_drop": 0.5}
SEEN = SimpleNamespace(processes=set())  # no plain value, so that it is no part of the metric


def make_metric(weight: float = 1.0) -> Any:
    """A function that has no name in any module, as a notebook would define it."""

    def balanced(outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> NDArray[Any]:
        SEEN.processes.add(os.getpid())
        return (outputs["logits"].argmax(axis=1) == labels) * weight

    balanced.ratio = True  # type: ignore[attr-defined]
    return balanced


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with one finished study `own`."""
    folder = tmp_path_factory.mktemp("own")
    write_inputs(folder)
    with pytest.MonkeyPatch.context() as patch, quick():
        patch.chdir(folder)
        bf.search("model.onnx", "data.npz", metric=make_metric(), study="own", **OPTIONS)
        yield folder


@pytest.mark.slow
def test_a_study_is_scored_in_this_process(here: Path) -> None:
    study = bf.load("own")
    assert {os.getpid()} == SEEN.processes
    assert study["all-fp32"].metric.name.startswith("balanced@")
    assert study["all-fp32"].value == 1.0, "labels are what the float model says"
    best = study.best
    assert best is not None
    assert best.final_loss is not None, "the final split is scored too"


@pytest.mark.slow
def test_it_is_gone_on_with_by_the_same_code_alone(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected the Python function balanced.*bitfront\.resume\(study, metric="):
        bf.resume("own", trials=4, progress=False)
    with pytest.raises(StudyError, match=r"expected its metric balanced@.*got balanced@.*Its code, or a number"):
        bf.resume("own", trials=4, metric=make_metric(0.5), progress=False)
    with pytest.raises(StudyError, match=r"expected its metric balanced@.*got top1"):
        bf.load("own", metric="top1")
    with pytest.raises(StudyError, match="made with another metric"):
        bf.search("model.onnx", "data.npz", metric=make_metric(0.5), study="own", if_exists="resume", **OPTIONS)
    more = {**OPTIONS, "trials": 4}
    assert len(bf.resume("own", trials=4, metric=make_metric(), progress=False)) == 4
    again = bf.search("model.onnx", "data.npz", metric=make_metric(), study="own", if_exists="resume", **more)
    assert len(bf.resume(again, progress=False)) == 4, "the study has its metric"


def test_an_export_needs_the_metric_too(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"bitfront\.load\(study, metric=balanced\)"):
        bf.load("own").export("refused")
    assert not (here / "refused").exists()
    done = bf.load("own", metric=make_metric()).export("engine", pick="fast")
    assert (here / "engine/manifest.json").exists()
    assert np.isfinite(done.trial)


@pytest.mark.parametrize("words", [("resume", "own"), ("worker", "own"), ("export", "own", "--out", "engines")])
def test_the_command_line_says_what_to_do(here: Path, words: tuple[str, ...]) -> None:
    done = invoke(*words)
    assert done.exit_code == 2, done.output
    assert "bitfront.resume(study, metric=balanced)" in " ".join(done.output.split())


@pytest.mark.parametrize("words", [("front", "own"), ("show", "own", "0"), ("report", "own", "--out", "own.html")])
def test_what_scores_nothing_needs_no_metric(here: Path, words: tuple[str, ...]) -> None:
    done = invoke(*words)
    assert done.exit_code == 0, done.output


def test_an_interrupted_search_says_what_goes_on_with_it(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    interrupt = [lambda study, trial: signal.raise_signal(signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt):
        bf.search("model.onnx", "data.npz", metric=make_metric(), study="cut", callbacks=interrupt, **OPTIONS)
    assert "bitfront.resume('cut', metric=balanced) continues the study" in caplog.text


@pytest.mark.slow
def test_messages_say_how_to_resume_with_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Pace, "finalists_in_time", lambda self, now, wanted: 0)
    with caplog.at_level("INFO", logger="bitfront"):
        bf.search("model.onnx", "data.npz", metric=make_metric(), study="late", **OPTIONS)
    assert "not confirmed on the final samples; `bitfront.resume('late', metric=balanced)` confirms" in caplog.text
    with pytest.raises(
        BitfrontError, match=r"more time: bitfront\.resume\('m', metric=balanced, time_limit='\.\.\.'\)$"
    ):
        bf.search("model.onnx", "data.npz", metric=make_metric(), study="m", time_limit="10ms", **OPTIONS)


def test_an_interruption_inside_the_metric_ends_the_search(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first call comes before the study is made."""
    with pytest.raises(KeyboardInterrupt):
        bf.search("model.onnx", "data.npz", metric=interrupt_itself, study="never", **OPTIONS)
    assert "interrupted; nothing was stored yet" in caplog.text
    with pytest.raises(StudyError, match="never"):
        bf.load("never")


def interrupt_itself(outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> NDArray[Any]:
    signal.raise_signal(signal.SIGINT)
    raise AssertionError("the signal is handled first")


interrupt_itself.__module__ = "__main__"  # as where a script or a notebook defines it


def test_several_workers_refuse_it(here: Path) -> None:
    with pytest.raises(ConfigError, match="expected a metric that every worker process can import, got balanced@"):
        bf.search("model.onnx", "data.npz", metric=make_metric(), study="crew", workers=2, **OPTIONS)
    with pytest.raises(StudyError, match="crew"):
        bf.load("crew")


SCRIPT = """
def balanced(outputs, labels):
    return outputs["logits"].argmax(axis=1) == labels
balanced.ratio = True
"""


def run_as_script(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function `balanced` as the script itself has it while it runs."""
    main = ModuleType("__main__")
    main.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), path, "exec", dont_inherit=True), main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main.__dict__["balanced"]


@pytest.mark.slow
def test_the_function_of_a_script_may_be_imported_from_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = here / "run_search.py"
    path.write_text(SCRIPT, encoding="utf-8")
    monkeypatch.syspath_prepend(here)
    with monkeypatch.context() as script:
        own = run_as_script(path, script)
        bf.search("model.onnx", "data.npz", metric=own, study="script", **OPTIONS)
    imported = importlib.import_module("run_search").balanced
    more = {**OPTIONS, "trials": 4}
    assert len(bf.resume("script", trials=4, metric=imported, progress=False)) == 4
    bf.load("script", metric=imported).export("of_script", pick="fast")
    found = bf.search("model.onnx", "data.npz", metric=imported, study="script", if_exists="resume", **more)
    assert found["fp32"].metric.name.startswith("balanced@")
    imported.ratio = False
    with pytest.raises(StudyError, match=r"got balanced@\w+ of run_search\. Its code, or a number"):
        bf.load("script", metric=imported)


@pytest.mark.slow
def test_an_imported_function_may_be_given_by_its_script(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = here / "scores.py"
    path.write_text(SCRIPT, encoding="utf-8")
    monkeypatch.syspath_prepend(here)
    imported = importlib.import_module("scores").balanced
    bf.search("model.onnx", "data.npz", metric=imported, study="imported", **OPTIONS)
    own = run_as_script(path, monkeypatch)
    assert len(bf.resume("imported", trials=4, metric=own, progress=False)) == 4
