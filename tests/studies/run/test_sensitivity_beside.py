"""The sensitivity pass of a target on a GPU: beside the uniform assignments' builds, in a process of its own."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from bitfront import verbs
from evaluators.process.connection import ProcessDiedError
from evaluators.process.keeper import EvaluatorProcess
from search.errors import EvaluatorError
from studies.events import Quiet
from studies.options.read_options import read_config
from studies.run.guidance import sensitivity_beside
from studies.run.noise.background import BackgroundCall
from studies.trials.proposals import Proposals
from tests.support.command_line import DATABASE, evaluator_processes, quick, write_inputs
from tests.support.evaluator_jobs import case
from tests.support.requests import Asked, watch_requests

pytestmark = pytest.mark.slow

ROWS = 5  # three groups in two lower precisions, and the last, a narrow product, not in INT8


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Searches with a TensorRT that is not there, quickly."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    with quick():
        monkeypatch.setenv("BITFRONT_TEST_TENSORRT", "8.6.1")
        given = {"model": "in/model.onnx", "data": "in/data.npz", "study": "s", "backend": "tensorrt"}
        yield lambda *more, **events: verbs.search(read_config({**given, **dict(more)}), **events)


class Notes(Quiet):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


class Order:
    """What began and ended, in order, and in which thread and process it ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.jobs: list[Any] = []
        self.pids: list[int | None] = []
        evaluate, guide = EvaluatorProcess.measure, Proposals.guide

        def called(asked: Asked) -> Any:
            if asked.name != "measure_sensitivity":
                return asked.make()
            self.jobs.append(asked.keeper.job)
            self.events.append("begun")
            try:
                return asked.make()
            finally:
                self.pids.append(asked.keeper.pid)
                self.events.append("ended")

        def evaluated(keeper: EvaluatorProcess, *args: Any, **options: Any) -> Any:
            self.events.append("evaluated")
            return evaluate(keeper, *args, **options)

        def guided(proposals: Proposals, informed: Any) -> None:
            guide(proposals, informed)
            sampler: Any = proposals.study.sampler
            if sampler.guidance.noise is not None:  # before, it is only told how many trials are left
                self.events.append("guided")

        watch_requests(monkeypatch, called)
        monkeypatch.setattr(EvaluatorProcess, "measure", evaluated)
        monkeypatch.setattr(Proposals, "guide", guided)


def stored() -> int:
    connection = sqlite3.connect(DATABASE)
    try:
        return int(connection.execute("select count(*) from bf_sensitivity").fetchone()[0])
    finally:
        connection.close()


def test_it_begins_with_the_first_build_and_is_there_for_the_first_mix(
    searched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Order(monkeypatch)
    searched(("trials", "5"))
    assert order.events[0] == "begun", "before the first uniform assignment"
    assert order.events.index("ended") < order.events.index("guided")
    assert order.events[: order.events.index("guided")].count("evaluated") == 3, "then the first mix is proposed"
    [job] = order.jobs
    assert (job.backend, job.device) == ("onnxruntime", "cpu"), "the GPU is left alone"
    assert stored() == ROWS
    assert evaluator_processes() == []


def test_what_is_not_there_in_time_joins_later(searched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first mixes are proposed without it."""
    go_on = threading.Event()
    store = sensitivity_beside.SensitivityBeside._store

    def held(beside: Any, found: Any) -> Any:
        go_on.wait(300)
        return store(beside, found)

    monkeypatch.setattr(sensitivity_beside.SensitivityBeside, "_store", held)
    monkeypatch.setattr(sensitivity_beside, "GRACE_S", 0.0)
    order = Order(monkeypatch)
    real = EvaluatorProcess.measure

    def fifth(keeper: EvaluatorProcess, *args: Any, **options: Any) -> Any:
        if order.events.count("evaluated") == 4:
            go_on.set()
            deadline = time.monotonic() + 300
            while not stored() and time.monotonic() < deadline:
                time.sleep(0.02)
        return real(keeper, *args, **options)

    monkeypatch.setattr(EvaluatorProcess, "measure", fifth)
    searched(("trials", "8"))
    before = order.events[: order.events.index("guided")].count("evaluated")
    assert before == 5, order.events
    assert stored() == ROWS


def test_an_interrupted_search_leaves_no_process_and_a_later_one_measures_again(
    searched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Order(monkeypatch).events

    def interrupted(*args: Any, **options: Any) -> Any:
        while "begun" not in begun:
            time.sleep(0.01)
        raise KeyboardInterrupt

    real = EvaluatorProcess.measure
    monkeypatch.setattr(EvaluatorProcess, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        searched(("trials", "5"), ("sensitivity-time", "600s"))
    monkeypatch.setattr(EvaluatorProcess, "measure", real)
    assert evaluator_processes() == []
    verbs.resume("s")
    assert stored() == ROWS


def test_a_search_goes_on_without_a_pass_that_fails(searched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With mixes that are proposed without it, and it is told once."""

    def failed(beside: Any, found: Any) -> Any:
        raise EvaluatorError("ONNX Runtime refuses the graph")

    monkeypatch.setattr(sensitivity_beside.SensitivityBeside, "_store", failed)
    order = Order(monkeypatch)
    notes = Notes()
    searched(("trials", "6"), events=notes)
    assert order.events.count("evaluated") == 6
    assert order.events.count("begun") == 1, "it is not tried again"
    assert "guided" not in order.events
    [told] = [note for note in notes.told if "goes on without it" in note]
    assert told.startswith("measuring the sensitivity of the groups failed")
    assert "ONNX Runtime refuses the graph" in told
    assert evaluator_processes() == []


def test_the_first_mix_waits_a_share_of_what_the_mixes_will_take(
    searched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth, within the time limit, and 10 s at least."""
    seen = []
    beside = sensitivity_beside.SensitivityBeside

    def waited(self: Any, now: Any) -> bool:
        pace: Any = self._work.pace
        with monkeypatch.context() as patched:
            patched.setattr(type(pace), "evaluation_s", lambda pace, now: 30.0)
            for limit_s in (None, 130.5, 60.5):
                self._grace_ends = None
                patched.setattr(pace, "limit_s", limit_s)
                patched.setattr(type(pace), "passed_s", property(lambda pace: 0.0))
                began = time.monotonic()
                real(self, now)
                seen.append(self._grace_ends - began)
        return True

    real = beside.wait
    monkeypatch.setattr(beside, "_is_over", lambda self: True)
    monkeypatch.setattr(beside, "wait", waited)
    searched(("trials", "8"))
    assert seen[:3] == pytest.approx([15.0, 13.0, 10.0], abs=0.5)


def test_a_process_that_is_canceled_ends_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a request, from another thread; nothing is started again."""
    made = case(tmp_path)
    process = EvaluatorProcess(made.job, tmp_path / "log")
    call = BackgroundCall(process, lambda line: line.diagnoses.measure_sensitivity(600.0))
    deadline = time.monotonic() + 300
    while process.pid is None and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = process.pid
    assert pid is not None
    call.close()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    with pytest.raises((EvaluatorError, ProcessDiedError)):
        call.result()
    with pytest.raises(EvaluatorError, match="its answer is no longer needed"):
        process.ask().setup.knobs()
    assert process.pid is None
