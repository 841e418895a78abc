"""`import bitfront`: searching, stopping, going on, and what a study gives."""

from __future__ import annotations

import doctest
import importlib
import json
import logging
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import bitfront as bf
from search.errors import ConfigError, InputError, StudyError
from studies.judging.rounding import bounded_text
from studies.options.limits import MetricScale
from studies.store.store import Store
from tests.support.command_line import copy_finished, invoke, quick, three_layers, write_inputs
from tests.support.docs_pages import blocks
from tests.support.paths import ROOT

FAKE: dict[str, Any] = {"backend": "fake", "trials": 3, "progress": False}  # the uniform ones: nothing is proposed
URL = "sqlite:///bitfront.db"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model and its data, in which searches are quick."""
    write_inputs(tmp_path, samples=40)
    monkeypatch.chdir(tmp_path)
    with quick():
        yield tmp_path


@pytest.fixture
def small(here: Path) -> bf.Study:
    """A finished study, whose engines are real."""
    copy_finished(here)
    return bf.load("small")


def search(**options: Any) -> bf.Study:
    return bf.search("model.onnx", "data.npz", **{**FAKE, **options})


# -- searching ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_gives_its_study_and_tells_callbacks_and_the_log(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[int, int, str]] = []

    def remember(study: bf.Study, trial: bf.Trial) -> None:
        told.append((len(study), trial.number, trial.precisions["first"]))

    with caplog.at_level(logging.INFO, "bitfront"):
        study = search(max_drop=0.2, callbacks=[remember], study="mine")
    assert (study.name, len(study)) == ("mine", 3)
    assert told == [(1, 0, "fp32"), (2, 1, "int8"), (3, 2, "fp16")]
    lines = [record.getMessage() for record in caplog.records if record.name == "bitfront"]
    assert any(line.startswith("1/3 trial 0:") for line in lines)
    assert "3 evaluations are done" in lines


@pytest.mark.slow
def test_a_model_and_arrays_in_memory_are_searched_resumed_and_removed_with_the_study(here: Path) -> None:
    arrays = dict(np.load("data.npz"))
    given = (three_layers(), arrays)
    study = bf.search(*given, study="s", **FAKE)
    (files,) = (here / "bitfront.db.inputs").iterdir()
    assert (files / "model.onnx").exists()
    again = bf.search(*given, study="s", if_exists="resume", **{**FAKE, "trials": 4})
    assert (len(again), len(study.refresh())) == (4, 4)
    arrays["image"] = arrays["image"][::-1].copy()
    with pytest.raises(StudyError, match="expected the model and the data that it was made with"):
        bf.search(*given, study="s", if_exists="resume", **FAKE)
    assert invoke("delete", "s", "--yes").exit_code == 0
    assert not (here / "bitfront.db.inputs").exists()


@pytest.mark.slow
def test_what_is_refused_leaves_no_files(here: Path) -> None:
    with pytest.raises(bf.InputError, match="lacks the model's input"):
        bf.search(three_layers(), {"picture": np.zeros((40, 3, 8, 8), np.float32)}, **FAKE)
    assert not (here / "bitfront.db.inputs").exists()
    assert not (here / "bitfront.db").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_drop": "lots"}, "^max_drop: "),
        ({"tirals": 3}, "'tirals': there is no such option; did you mean trials"),
        ({"max_dorp": 3}, r"did you mean max_drop\?"),
        ({"recovery": None}, "'recovery': there is no such option"),
        ({"if_exists": "append"}, "if_exists: expected one of raise, resume, replace, got 'append'"),
        ({"progress": "loud"}, "progress: expected 'auto', True or False, got 'loud'"),
        ({"callbacks": ["stop"]}, "callbacks: expected functions of a study and a trial, got 'stop'"),
        ({"sampler": 3}, "sampler: expected a name or an Optuna sampler, got int"),
        ({"metric": 3}, "metric: expected a name, a function or a class, got int"),
        ({"metric": str.join}, "raised TypeError on samples 0 to 3"),
        ({"metric": int}, r"must have update\(outputs, labels\) and compute"),
    ],
)
def test_mistakes_are_named_before_anything_is_made(here: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(bf.InputError, match=says):
        search(**options)
    assert not (here / "bitfront.db").exists()


@pytest.mark.slow
def test_a_metric_is_a_function_of_a_module(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "own_metric.py").write_text(
        "import numpy as np\ndef least(outputs, labels):\n    return -np.abs(outputs['logits']).max(axis=1)\n"
    )
    monkeypatch.syspath_prepend(here)
    study = search(metric=importlib.import_module("own_metric").least)
    assert study["all-fp32"].metric.name == "own_metric:least"


@pytest.mark.slow
def test_any_optuna_sampler_is_taken_and_asked_for_again(here: Path) -> None:
    asked: list[int] = []

    class Own(optuna.samplers.RandomSampler):
        def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            asked.append(trial.number)
            super().before_trial(study, trial)

    study = search(sampler=Own(seed=1), trials=4)
    count = len(asked)
    assert count >= 4
    with pytest.raises(ConfigError, match="searched with a sampler object that was given in Python"):
        bf.resume(study, trials=5, progress=False)
    assert len(bf.resume(study, trials=5, sampler=Own(seed=2), progress=False)) == 5
    assert len(asked) > count


# -- ending and going on -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_callback_stops_the_search(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    def stop(study: bf.Study, trial: bf.Trial) -> None:
        if trial.number == 1:
            study.stop()

    with caplog.at_level(logging.INFO, "bitfront"):
        study = search(callbacks=[stop])
    assert len(study) == 2
    assert "stopped on request, with 2 of 3 evaluations done" in caplog.messages
    assert len(bf.resume(study, progress=False)) == 3
    with pytest.raises(StudyError, match=r"Call stop\(\) of the study that a callback receives"):
        study.stop()


@pytest.mark.slow
def test_an_error_of_a_callback_comes_out_and_the_study_goes_on(here: Path) -> None:
    def fail(study: bf.Study, trial: bf.Trial) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        search(callbacks=[fail])
    assert len(bf.load("model")) == 1
    assert len(bf.resume("model", progress=False)) == 3


@pytest.mark.slow
def test_ctrl_c_interrupts_and_the_study_goes_on(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt, match="the search was interrupted") as stopped:
        search(callbacks=[lambda study, trial: signal.raise_signal(signal.SIGINT)])
    shown = traceback.format_exception(stopped.value)
    assert [frame.name for frame in stopped.traceback][-2:] == ["search", "_run"]
    assert "studies" not in "".join(shown)
    assert "bitfront.resume('model') continues the study" in caplog.text
    assert len(bf.resume("model", progress=False)) == 3


@pytest.mark.slow
def test_how_to_continue_names_all_that_the_study_does_not_store(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    def own(outputs: Any, labels: Any) -> Any:
        return (outputs["logits"].argmax(1) == labels).astype(float)

    elsewhere = "sqlite:///else.db"
    with pytest.raises(KeyboardInterrupt):
        search(
            callbacks=[lambda study, trial: signal.raise_signal(signal.SIGINT)],
            metric=own,
            sampler=optuna.samplers.RandomSampler(seed=1),
            storage=elsewhere,
        )
    assert f"bitfront.resume('model', metric=own, sampler=…, storage='{elsewhere}') continues" in caplog.text


@pytest.mark.slow
def test_a_name_that_is_there_is_refused_resumed_or_replaced(here: Path) -> None:
    first = search()
    with pytest.raises(
        StudyError, match=r"there is already a study of this name in sqlite:///bitfront\.db.*if_exists='resume'"
    ):
        search()
    assert len(search(trials=4, max_drop="20%", if_exists="resume")) == 4
    with pytest.raises(StudyError, match="made with another seed"):
        search(seed=7, if_exists="resume")
    for wrong in (
        {"metric": "nosuch"},
        {"max_drop": "3dB"},
        {"keep": ["nolayer=fp32"]},
        {"calibration_data": "no.npz"},
    ):
        with pytest.raises(InputError):
            search(**wrong, if_exists="replace")
        assert len(bf.load(first.name)) == 4, "a mistake costs no study"
    assert len(search(seed=7, if_exists="replace")) == 3
    with Store.open(URL, write=False) as store:
        assert [each.name for each in store.studies.summaries()] == [first.name]
        assert store.studies.load(first.name).config["seed"] == 7


# -- a study -----------------------------------------------------------------------------------------------------------


def test_a_study_gives_trials_by_number_pick_and_precision(small: bf.Study) -> None:
    numbers = [trial.number for trial in small.trials]
    assert len(small) == len(numbers) == 4
    assert numbers == sorted(numbers)
    assert [trial.number for trial in small] == numbers
    assert small[np.int64(numbers[0])] == small[numbers[0]]
    assert (
        bf.load(small.name, max_drop=np.float64(0.5), accuracy_limit=np.float64(1.0), storage=small.storage) is not None
    )
    best = small.best
    assert best is not None
    assert "best" in best.picks
    assert small["best"] == small[best.number] == best == small.picks["best"]
    assert small["all-fp32"].speedup == 1.0
    assert small["INT8"] == small["int8"] == small["all-int8"]
    assert small["fp32"] == small["FP32"]
    assert set(small["all-int8"].precisions.values()) == {"int8"}
    assert small["score:0,1"].latency_ms == min(trial.latency_ms or np.inf for trial in small.trials if trial.feasible)
    assert [trial.latency_ms for trial in small.front] == sorted(trial.latency_ms or 0 for trial in small.front)
    for name, says in (
        (9, "no trial 9"),
        ("all-int4", "it has all-fp32, all-int8"),
        ("bets", "By name there are best"),
    ):
        with pytest.raises(KeyError, match=says):
            small[name]  # type: ignore[index]


def test_limits_of_load_judge_and_are_not_stored(small: bf.Study) -> None:
    strict = bf.load("small", latency_budget="1us")
    assert (strict.best, strict.front) == (None, [])
    assert bf.load("small").best is not None


def test_a_study_that_is_not_there_is_named(here: Path) -> None:
    with pytest.raises(StudyError, match=r"bitfront\.db"):
        bf.load("none")
    assert not (here / "bitfront.db").exists()


def test_a_study_is_shown_short_and_as_html(small: bf.Study) -> None:
    assert repr(small).startswith("<Study 'small' in sqlite:///bitfront.db: 4 trials, best is <Trial ")
    assert len(repr(small["all-int8"])) < 150
    best = small.best
    assert best is not None
    assert re.search(r"loss .*, final loss .*", repr(best))
    head, titles, *rows = str(small).splitlines()
    assert re.fullmatch(r"Study small: 4 trials, \d+ on the front:", head)
    assert titles.split()[:3] == ["pick", "trial", "latency"]
    assert rows[0].startswith("best")
    assert any("INT8" in row for row in rows)
    assert any("FP32" in row for row in rows)
    judged = bf.load("small", max_drop=0.5)
    assert judged["int8"].verdict in ("kept", "likely", "missed", "unseen")
    assert f"limits {judged['int8'].verdict}" in str(judged["int8"])
    page = small._repr_html_()
    assert page.count("<tr>") == 1 + len(
        {*(t.number for t in small.front), *(t.number for t in small.picks.values()), 0, 1}
    )
    assert "<script" not in bf.Trial._repr_html_(small.trials[0])


@pytest.mark.slow
def test_a_study_becomes_a_data_frame_and_a_figure(small: bf.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    frame = small.to_dataframe()
    assert list(frame["trial"]) == [trial.number for trial in small.trials]
    assert {"latency_ms", "loss", "mix", "on_front"} <= set(frame.columns)
    figure = small.plot_front()
    (baselines,) = (trace for trace in figure.data if (trace.name or "").startswith("baselines"))
    assert len(baselines.x) == 2
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        small.to_dataframe()


@pytest.mark.slow
def test_a_study_is_exported_and_reported(small: bf.Study, here: Path) -> None:
    done = small.export("engine", pick="fast")
    assert done.trial == small["fast"].number
    assert len(repr(done)) < 200
    final, metric = done.manifest["final"], MetricScale.of(done.manifest["metric"])
    assert final["loss_bound"] >= final["loss"]
    loss = bounded_text(final["loss"], final["loss_bound"], metric)
    verdict = final["verdict"]
    assert verdict in ("kept", "likely")
    assert repr(done) == f"<Export of trial {done.trial} to engine: final loss {loss}, limits {verdict}>"
    first, second, *_ = str(done).splitlines()
    assert first == f"exported trial {done.trial} to engine"
    assert second.startswith(f"on the final split: loss {loss}; ")
    assert f"the limits are {verdict}" in second
    assert (here / "engine/manifest.json").exists()
    assert small.report("report.html") == Path("report.html")
    assert "small" in (here / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_examples_in_docstrings_run(here: Path) -> None:
    """One after the other in one folder: the first makes the study that the others open."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for name in ("bitfront", "bitfront.study", "bitfront.searches"):
        names = {"bitfront": bf, "np": np}
        done = doctest.testmod(importlib.import_module(name), extraglobs=names, optionflags=options)
        assert done.attempted > 0
        assert done.failed == 0


@pytest.mark.slow
def test_examples_of_the_page_run(small: bf.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a search that is quick, and objects that the page leaves to its reader."""
    monkeypatch.setattr(bf, "search", partial(bf.search, backend="fake", trials=3, progress=False, if_exists="replace"))
    monkeypatch.setattr(bf, "resume", partial(bf.resume, progress=False))
    arrays = dict(np.load("data.npz"))
    pairs = [(arrays["image"], arrays["labels"])]
    names = {"bf": bf, "model": three_layers(), "images": pairs[0][0], "classes": pairs[0][1], "loader": pairs}
    names["dataset"] = [{"image": x, "label": y} for x, y in pairs]  # test_columns.py has data sets of Hugging Face
    found = blocks(ROOT / "docs/python.md", "python")
    assert len(found) >= 4
    for block in found:
        exec(block.replace("trials=61", "trials=4"), names)
    assert len(names["table"]) == 3  # type: ignore[arg-type]


@pytest.mark.long
def test_the_notebook_runs_from_top_to_bottom(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells one after the other in one namespace, with the searches of tests, which measure less."""
    cells = json.loads((ROOT / "examples/notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells)
    names: dict[str, Any] = {}
    for cell in code:
        exec(compile(cell, "notebook.ipynb", "exec"), names)
    assert len(names["study"]) == 6
    assert {"manifest.json", "model.onnx"} <= {path.name for path in (here / "bitfront-notebook/fast").iterdir()}
    assert (here / "bitfront-notebook/report.html").exists()
    assert capsys.readouterr().out.splitlines()[-1].startswith("safe answers: ")
