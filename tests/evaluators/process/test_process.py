"""The evaluator process and its keeper: real processes, real signals, users' code that misbehaves."""

from __future__ import annotations

import gc
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from evaluators.process.child import Child, Watch
from evaluators.process.connection import CutOffError, ProcessDiedError, ProcessLimits
from evaluators.process.evaluator import Evaluator
from evaluators.process.job import StopLimits
from evaluators.process.keeper import EvaluatorProcess
from search.errors import (
    ArtifactError,
    BitfrontError,
    ConfigError,
    DataError,
    EvaluatorError,
    MetricError,
    RunError,
    TargetError,
)
from search.values import Evaluation, FailureKind, Precision, Stage
from tests.support.command_line import environment
from tests.support.evaluator_jobs import Case, case, write_ranges
from tests.support.forks.processes import fork_evaluators
from tests.support.networks import residual_cnn, save
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

INT8, FP32 = Precision.INT8, Precision.FP32
MIB = 2**20

# Does what the file `mode` beside it says, in the middle of an evaluation; and talks.
METRIC = '''
import ctypes, os, resource, subprocess, sys, time
from contextlib import suppress
from pathlib import Path
import numpy as np

HERE = Path(__file__).parent

def start_others():
    """One child of the process's session, and one that has left it; both hold on to whatever is inheritable."""
    pids = [subprocess.Popen(["sleep", "600"], close_fds=False, start_new_session=new).pid for new in (False, True)]
    (HERE / "pids").write_text(" ".join(map(str, pids)))

USED = []

def fork():
    if (pid := os.fork()) == 0:
        time.sleep(600)
    (HERE / "pids").write_text(str(pid))

def act(mode):
    if mode == "raise":
        raise ValueError("midway, größer")
    if mode == "exit":
        sys.exit(3)
    if mode == "slow":
        time.sleep(0.25)  # longer than between two signs of life
    if mode == "sleep":
        time.sleep(600)
    if mode == "hang":
        start_others()
        time.sleep(600)
    if mode == "allocate":
        hog = np.ones(2**25)
        time.sleep(600)
    if mode == "use up":
        resource.setrlimit(resource.RLIMIT_AS, (1, resource.RLIM_INFINITY))
        for size in (2**24, 2**20, 2**18, 2**16):
            with suppress(MemoryError):
                while True:
                    USED.append(np.ones(size, np.int8))
        del USED[-8:]  # enough to answer, too little for an engine
    if mode == "fork and fault":
        fork()
        ctypes.string_at(0)

def score(outputs, labels):
    print("noise \\u2192 {}\\n" * 3, '{"result": null}', flush=True)
    os.write(1, b'{"event": "stage", "value": "nonsense"}\\n\\xff\\n')
    logits = outputs["logits"]
    mode = (HERE / "mode").read_text()
    act(mode)
    return np.full(len(logits), np.nan) if mode == "nan" else (logits.argmax(1) == labels).astype(float)

score.ratio = True
'''


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A latency lock of our own, and quick measurements: nothing here depends on how long anything takes."""
    folder = str(tmp_path_factory.mktemp("locks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        patch.setenv("BITFRONT_TEST_REAL_CLOCK", "1")
        fork_evaluators(patch)
        yield


class Kept:
    """A keeper with a metric of the user's own."""

    def __init__(self, made: Case) -> None:
        self.case = made
        (made.folder / "own_metric.py").write_text(METRIC, encoding="utf-8")
        self.mode("fine")
        self.keeper = EvaluatorProcess(replace(made.job, metric="own_metric:score"), made.folder / "log")

    def mode(self, mode: str) -> None:
        (self.case.folder / "pids").unlink(missing_ok=True)
        (self.case.folder / "mode").write_text(mode)

    def evaluate(self, on_event: Callable[[str, Any], None] | None = None) -> Evaluation:
        return self.keeper.evaluate(self.case.uniform(INT8), self.case.out, StopLimits(), on_event)

    def started(self) -> list[int]:
        """Processes that the metric has started in this mode."""
        with suppress(FileNotFoundError):
            return [int(pid) for pid in (self.case.folder / "pids").read_text().split()]
        return []

    def hangs(self) -> bool:
        return len(self.started()) == 2


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """One process for all tests that leave it alive."""
    kept = Kept(case(tmp_path_factory.mktemp("kept")))
    with pytest.MonkeyPatch.context() as patch, kept.keeper:
        patch.chdir(kept.case.folder)
        assert kept.evaluate().ok  # FP32's results are there from now on
        yield kept


@pytest.fixture
def kept(warm: Kept, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.chdir(warm.case.folder)
    warm.mode("fine")
    warm.keeper.limits = ProcessLimits()
    yield warm
    warm.mode("fine")


@pytest.fixture
def really_started(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started as outside of tests, and not forked from one that has imported everything."""
    monkeypatch.setattr("evaluators.process.child.subprocess", subprocess)
    kept.keeper.close()


class Clock:
    """What limits are held against: it stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("evaluators.process.child.time", clock)
    return clock


@pytest.fixture
def late_when_it_hangs(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any limit is soon over once the metric hangs, and not before; what was told before may be heard after that."""
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 10_000.0 * next(looks) if kept.hangs() else 0.0)
    monkeypatch.setattr("evaluators.process.child.time", clock)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 300
    while alive := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"{alive} still run"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def killing(kept: Kept, event: str, value: Any, times: int = 1, number: int = signal.SIGKILL) -> Any:
    """An event handler that sends a signal to the evaluator process at one event; after the last, all is fine."""
    pids: list[int] = []

    def on_event(what: str, told: Any) -> None:
        pid = kept.keeper.pid
        assert pid is not None
        if (what, told) == (event, value) and len(pids) < times:
            pids.append(pid)
            os.kill(pid, number)
            if len(pids) == times:
                kept.mode("fine")

    return on_event, pids


# -- one process, many requests ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("really_started")
def test_an_evaluation_arrives_whole_over_a_noisy_process(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under an environment that would rather not print."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("PYTHONPATH", str(kept.case.folder / "nowhere"), prepend=os.pathsep)
    stages: list[Any] = []
    kept.keeper.ask().setup.try_out()
    pid = kept.keeper.pid
    found = kept.evaluate(lambda event, value: stages.append((event, value)))
    assert found.ok
    assert stages == [("stage", stage.value) for stage in Stage]
    assert kept.keeper.pid == pid
    assert found.attempts == 1
    assert found.latency is not None
    assert found.latency.samples_ms.dtype == np.float64
    assert found.accuracy is not None
    assert found.accuracy.complete
    assert found.artifact == str(kept.case.out)
    assert kept.case.engines() == ["candidate.engine"]
    assert "noise → {}" in kept.keeper.log_tail()


@pytest.mark.usefixtures("really_started")
def test_an_engine_gives_the_same_outputs_in_a_fresh_process(kept: Kept) -> None:
    kept.keeper.ask().builds.rebuild(kept.case.uniform(INT8), kept.case.out)
    outputs = []
    for _ in range(2):
        outputs.append(kept.keeper.ask().scores.run_final(kept.case.out)["logits"])
        kept.keeper.close()
    np.testing.assert_array_equal(outputs[0], outputs[1])
    here = Evaluator(replace(kept.case.job, metric=None), lambda event, value: None)
    np.testing.assert_array_equal(outputs[0], here.scores.run_final(kept.case.out)["logits"])


def test_fp32s_results_are_kept_for_the_next_process(kept: Kept) -> None:
    manifest = kept.case.folder / "work" / "reference-search" / "reference.json"
    before = written(manifest)
    kept.keeper.close()
    assert kept.evaluate().ok
    assert written(manifest) == before


def written(path: Path) -> tuple[int, int]:
    """Another one where a file was written again."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


@pytest.mark.parametrize(
    ("mode", "words"),
    [("raise", "ValueError on samples 0 to 3: midway, größer"), ("nan", "gave nan on sample 0")],
)
def test_a_metric_that_fails_midway_ends_the_run_and_not_the_process(kept: Kept, mode: str, words: str) -> None:
    kept.keeper.ask().setup.try_out()
    pid = kept.keeper.pid
    kept.mode(mode)
    with pytest.raises(MetricError, match=words):
        kept.evaluate()
    assert kept.case.engines() == []
    kept.mode("fine")
    kept.keeper.ask().setup.try_out()
    assert kept.keeper.pid == pid


def test_a_metric_that_exits_is_told_as_such(kept: Kept) -> None:
    kept.keeper.ask().setup.try_out()
    pid = kept.keeper.pid
    kept.mode("exit")
    with pytest.raises(EvaluatorError, match="SystemExit: 3"):
        kept.keeper.ask().setup.try_out()
    kept.mode("fine")
    kept.keeper.ask().setup.try_out()
    assert kept.keeper.pid == pid


def test_a_refusal_keeps_the_process(kept: Kept) -> None:
    kept.keeper.ask().setup.try_out()
    pid, out = kept.keeper.pid, kept.case.folder / "text.engine"
    out.write_text("no engine")
    line = kept.keeper.ask()
    asked: list[tuple[Callable[[], object], str]] = [
        (lambda: line.scores.run_final(out), "running the engine text.engine"),
        (lambda: line.timings.time_engine(out), "timing the engine text.engine"),
        (lambda: line.scores.score_finalists({"1": out}, rounds=1), "measuring the finalists"),
    ]
    for ask, doing in asked:
        with pytest.raises(EvaluatorError, match=f"^{doing}: it cannot be loaded or run here: "):
            ask()
    kept.keeper.ask().setup.try_out()
    assert kept.keeper.pid == pid
    out.unlink()


def test_messages_may_be_larger_than_any_pipe(kept: Kept) -> None:
    long = "ü" * 2_000_000
    with pytest.raises(ConfigError) as caught:
        kept.keeper.ask().calibrations.calibrate(long)
    assert long in str(caught.value)
    assert len(kept.keeper.ask().calibrations.find_key(long)) == 64


def test_ctrl_c_is_the_keepers_to_handle(kept: Kept) -> None:
    kept.keeper.ask().setup.try_out()
    pid = kept.keeper.pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    kept.keeper.ask().setup.try_out()
    assert kept.keeper.pid == pid
    assert os.getsid(pid) == pid  # a terminal's Ctrl-C goes to another session


def test_adopting_needs_no_restart_and_survives_one(kept: Kept) -> None:
    job = kept.keeper.job
    with EvaluatorProcess(replace(job, ranges=None, metric="top1"), kept.case.folder / "log2") as keeper:
        with pytest.raises(RunError, match="not been calibrated"):
            keeper.evaluate(kept.case.uniform(INT8), kept.case.out, StopLimits())
        told: list[Any] = []
        found = keeper.ask(on_progress=lambda done, total: told.append((done, total))).calibrations.calibrate("minmax")
        assert told == [(done + 1, 12) for done in range(12)]
        pid = keeper.pid
        keeper.adopt(ranges=write_ranges(kept.case.folder / "found.json", found.ranges))
        keeper.ask().builds.rebuild(kept.case.uniform(INT8), kept.case.out)
        assert keeper.pid == pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until_gone([pid])
        keeper.adopt(metric="top1")  # dead already, and nobody has noticed
        latency = keeper.ask().timings.time_again(kept.case.uniform(INT8), kept.case.out, 500.0)
        assert keeper.pid not in (pid, None)
        assert latency.value_ms == pytest.approx(latency.raw_ms * 500.0 / latency.baseline_ms)


# -- built in one process, measured in another ------------------------------------------------------------------------


@pytest.fixture
def builder(kept: Kept, tmp_path: Path) -> Iterator[EvaluatorProcess]:
    """A process that only builds; it is not even told of data that exist."""
    job = replace(kept.keeper.job, only_builds=True, data=str(tmp_path / "nowhere.npz"), folder=str(tmp_path / "work"))
    with EvaluatorProcess(job, tmp_path / "builder.log") as keeper:
        yield keeper


def test_a_candidate_is_built_in_one_process_and_measured_in_another(kept: Kept, builder: EvaluatorProcess) -> None:
    stages: list[Any] = []
    built = builder.build(kept.case.uniform(INT8), kept.case.out, lambda event, value: stages.append(value))
    assert stages == ["lower", "build", "audit"]
    assert built.engine == kept.case.out
    assert built.evaluation.audit
    assert built.evaluation.latency is built.evaluation.artifact is None
    found = kept.keeper.measure(built, StopLimits(), lambda event, value: stages.append(value))
    assert stages == [stage.value for stage in Stage]
    assert found.ok
    assert (found.attempts, found.deaths) == (1, ())
    assert found.artifact == str(kept.case.out)
    whole = kept.evaluate()
    assert found.audit == whole.audit
    assert found.accuracy is not None
    assert whole.accuracy is not None
    np.testing.assert_array_equal(found.accuracy.scores, whole.accuracy.scores)
    assert found.build_s is not None
    assert found.total_s is not None
    assert built.evaluation.total_s is not None
    assert found.build_s <= built.evaluation.total_s <= found.total_s
    assert found.stage_s.keys() >= {"lower", "build", "audit", "load", "latency", "run"}


def test_a_process_that_only_builds_has_no_data_and_says_so(kept: Kept, builder: EvaluatorProcess) -> None:
    assert builder.description.data is builder.description.metric is None
    assert builder.description.target == kept.keeper.description.target
    assert builder.ask().setup.knobs() == kept.keeper.ask().setup.knobs()
    line = builder.ask()
    builder.ask().builds.rebuild(kept.case.uniform(FP32), kept.case.out)
    for ask in (line.setup.try_out, lambda: line.timings.time_engine(kept.case.out)):
        with pytest.raises(EvaluatorError, match="opened for building alone and has no data"):
            ask()
    assert not list(Path(builder.job.folder).glob("reference*"))


def test_a_build_that_fails_is_a_finished_evaluation(kept: Kept, builder: EvaluatorProcess, tmp_path: Path) -> None:
    ranges = json.loads(Path(str(kept.case.job.ranges)).read_text(encoding="utf-8"))
    ranges["tensors"].clear()
    builder.adopt(ranges=write_ranges(tmp_path / "spoilt.json", ranges))
    built = builder.build(kept.case.uniform(INT8), kept.case.out)
    assert built.engine is None
    failure = built.evaluation.failure
    assert failure is not None
    assert (failure.stage, failure.kind) == (Stage.LOWER, FailureKind.ERROR)
    assert kept.keeper.measure(built, StopLimits()) is built.evaluation
    assert kept.case.engines() == []


def test_a_process_that_dies_over_a_measurement_leaves_the_engine_to_the_next(
    kept: Kept, builder: EvaluatorProcess
) -> None:
    built = builder.build(kept.case.uniform(INT8), kept.case.out)
    before = kept.case.out.read_bytes()
    kept.mode("sleep")
    on_event, pids = killing(kept, "stage", "accuracy")
    found = kept.keeper.measure(built, StopLimits(), on_event)
    assert found.ok
    assert (found.attempts, [death.stage for death in found.deaths]) == (2, [Stage.ACCURACY])
    assert kept.case.out.read_bytes() == before
    kept.mode("sleep")
    on_event, pids = killing(kept, "stage", "accuracy", times=2)
    found = kept.keeper.measure(built, StopLimits(), on_event)
    assert found.failure is not None
    assert found.attempts == len(found.deaths) == len(pids) == 2
    assert found.audit == built.evaluation.audit
    assert kept.case.engines() == []


def test_a_builder_that_dies_builds_once_more(kept: Kept, builder: EvaluatorProcess) -> None:
    def kill(event: str, value: Any) -> None:
        if value == "build" and not killed:
            assert builder.pid is not None
            killed.append(builder.pid)
            os.kill(builder.pid, signal.SIGKILL)

    killed: list[int] = []
    built = builder.build(kept.case.uniform(INT8), kept.case.out, kill)
    assert built.engine is not None
    assert (built.evaluation.attempts, len(built.evaluation.deaths)) == (2, 1)
    kept.mode("fine")
    found = kept.keeper.measure(built, StopLimits())
    assert found.ok
    assert found.attempts == 2


def test_a_measurement_has_the_time_that_the_build_left(kept: Kept, builder: EvaluatorProcess, clock: Clock) -> None:
    built = builder.build(kept.case.uniform(INT8), kept.case.out)
    long = replace(built, evaluation=replace(built.evaluation, total_s=590.0))
    found = kept.keeper.measure(long, StopLimits(), lambda event, value: setattr(clock, "now", clock.now + 11.0))
    assert found.failure is not None
    assert (found.failure.kind, found.failure.message) == (FailureKind.TIMEOUT, "measure took longer than 10 s")


# -- other content than before -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "what"), [("data.npz", "the data"), ("model.onnx", "the model")])
def test_a_replacement_that_finds_other_content_is_refused(tmp_path: Path, name: str, what: str) -> None:
    made = case(tmp_path)
    path = tmp_path / name
    good = path.read_bytes()
    with EvaluatorProcess(made.job, tmp_path / "log") as keeper:
        keeper.ask().setup.try_out()
        change(path)
        keeper.ask().setup.try_out()  # it has read them
        assert keeper.pid is not None
        os.kill(keeper.pid, signal.SIGKILL)
        for ask in (
            lambda: keeper.ask().setup.try_out(),
            lambda: keeper.evaluate(made.uniform(INT8), made.out, StopLimits()),
        ):
            with pytest.raises(EvaluatorError, match=f"^opening model and data again, .*: {what} changed while"):
                ask()
            assert keeper.pid is None
        path.write_bytes(good)
        assert keeper.evaluate(made.uniform(INT8), made.out, StopLimits()).ok


def change(path: Path) -> None:
    """Other content of the same form."""
    if path.suffix == ".npz":
        with np.load(path) as stored:
            arrays = dict(stored)
        np.savez(path, allow_pickle=False, **{**arrays, "image": -arrays["image"]})
    else:
        save(residual_cnn(seed=1, channels=8), path)


def test_other_options_may_make_another_target_and_other_data_may_not_come_with_them(tmp_path: Path) -> None:
    made = case(tmp_path)
    with EvaluatorProcess(made.job, tmp_path / "log") as keeper:
        keeper.ask().setup.try_out()
        before = keeper.description.target
        keeper.reopen(options={"threads": 2})
        keeper.ask().setup.try_out()
        assert keeper.description.target != before
        change(tmp_path / "data.npz")
        keeper.reopen(options={"threads": 1})
        with pytest.raises(EvaluatorError, match="the data changed"):
            keeper.ask().setup.try_out()


@pytest.mark.parametrize("survives", [True, False])
def test_a_process_may_start_before_it_is_known_what_it_opens(kept: Kept, *, survives: bool) -> None:
    keeper, job = kept.keeper, kept.keeper.job
    keeper.close()
    keeper.job = replace(job, model="", data="")
    keeper.prepare()
    first = keeper.pid
    assert first is not None
    if not survives:
        os.kill(first, signal.SIGKILL)
        wait_until_gone([first])
    keeper.job = job
    assert keeper.ask().setup.knobs() == keeper.description.knobs
    assert (keeper.pid == first) is survives
    assert kept.evaluate().ok


def test_a_backend_that_cannot_be_prepared_is_refused_when_it_is_opened(kept: Kept, tmp_path: Path) -> None:
    job = replace(kept.case.job, device="abacus")
    with EvaluatorProcess(job, tmp_path / "log") as keeper:
        keeper.prepare()
        with pytest.raises(TargetError, match="abacus"):
            keeper.open()
        assert keeper.pid is None


def test_a_request_that_is_cut_off_is_no_death_and_a_fresh_process_answers_the_next(kept: Kept) -> None:
    kept.mode("sleep")
    cut: list[int | None] = []

    def cut_off(event: str, value: Any) -> None:
        if (event, value) == ("stage", "accuracy"):
            cut.append(kept.keeper.pid)
            kept.keeper.cut_off()

    with pytest.raises(CutOffError, match="nobody waits"):
        kept.evaluate(cut_off)
    assert kept.case.engines() == []
    kept.mode("fine")
    assert kept.evaluate().attempts == 1
    assert len(cut) == 1
    assert kept.keeper.pid not in cut


# -- deaths ------------------------------------------------------------------------------------------------------------


def test_a_process_killed_once_goes_on(kept: Kept) -> None:
    kept.mode("sleep")
    on_event, pids = killing(kept, "stage", "accuracy")
    found = kept.evaluate(on_event)
    assert found.ok
    assert found.attempts == 2
    assert kept.keeper.pid not in pids
    assert kept.case.engines() == ["candidate.engine"]


def test_a_process_killed_at_every_attempt_is_a_failure_with_its_stage(kept: Kept) -> None:
    kept.mode("sleep")  # or the evaluation may be over before the signal comes
    on_event, pids = killing(kept, "stage", "accuracy", times=2)
    found = kept.evaluate(on_event)
    assert found.failure is not None
    assert (found.failure.stage, found.failure.kind) == (Stage.ACCURACY, FailureKind.CRASHED)
    assert "SIGKILL" in found.failure.message
    assert found.attempts == len(set(pids)) == 2
    assert kept.keeper.pid is None
    assert kept.case.engines() == []  # half an engine was there when it died


def test_a_request_is_made_again_after_a_crash(kept: Kept) -> None:
    on_event, pids = killing(kept, "progress", (2, 12))
    line = kept.keeper.ask(on_progress=lambda *told: on_event("progress", told))
    assert line.calibrations.calibrate("minmax").ranges.samples == 48
    assert len(pids) == 1


def test_a_stopped_process_is_a_timeout_whoever_has_the_word(kept: Kept) -> None:
    kept.keeper.ask().setup.try_out()
    kept.keeper.limits = ProcessLimits(timeout_s=0.5)
    pid = kept.keeper.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessDiedError, match=r"find_key took longer than 0.5 s") as caught:
        kept.keeper.ask().calibrations.find_key("x" * MIB)  # more than the pipe holds: it stops at writing
    assert caught.value.kind is FailureKind.TIMEOUT
    assert not is_running(pid)


def test_an_answer_that_came_while_its_reader_was_stopped_counts(kept: Kept, clock: Clock) -> None:
    def stop(done: int, total: int) -> None:
        child = kept.keeper._child
        assert child is not None
        if done == total == 12:
            while not child.has_more():
                time.sleep(0.01)
            clock.now += 10_000

    assert kept.keeper.ask(on_progress=stop).calibrations.calibrate("minmax").ranges.samples == 48
    assert clock.now == 10_000


def test_a_long_request_that_gets_on_is_not_held_to_the_limit_of_an_evaluation(kept: Kept, clock: Clock) -> None:
    limit_s = kept.keeper.limits.timeout_s

    def tell(done: int, total: int) -> None:
        clock.now += 0.8 * limit_s

    assert kept.keeper.ask(on_progress=tell).calibrations.calibrate("minmax").ranges.samples == 48
    assert clock.now > 9 * limit_s


def test_finalists_tell_with_every_batch_that_they_get_on(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def confirm(on_progress: Callable[[int, int], None] | None = None) -> Any:
        line = kept.keeper.ask(on_progress=on_progress)
        return line.scores.score_finalists({"1": kept.case.out}, rounds=1).accuracy["1"]

    kept.keeper.ask().builds.rebuild(kept.case.uniform(INT8), kept.case.out)
    confirm()  # FP32's results are there from now on
    kept.mode("slow")
    heard: list[Watch] = []
    told: list[int] = []
    monkeypatch.setattr(Watch, "heard", lambda watch: heard.append(watch))

    def scoring(done: int, total: int) -> None:
        told.append(done)
        heard.clear()

    found = confirm(scoring)
    kept.case.out.unlink()
    assert found.complete
    assert told == [1]
    assert len(heard) >= found.samples / kept.case.model.batch - 1  # the last is told by the answer


@pytest.mark.usefixtures("late_when_it_hangs")
def test_finalists_that_hang_are_a_timeout(kept: Kept) -> None:
    kept.keeper.ask().builds.rebuild(kept.case.uniform(INT8), kept.case.out)
    kept.mode("hang")
    with pytest.raises(ProcessDiedError, match=r"score_finalists (made no progress for|took longer than) 600 s"):
        kept.keeper.ask().scores.score_finalists({"1": kept.case.out}, rounds=1)
    kept.case.out.unlink()
    wait_until_gone(kept.started())


def test_an_evaluation_is_held_to_its_limit_however_well_it_gets_on(kept: Kept, clock: Clock) -> None:
    def tell(event: str, value: Any) -> None:
        clock.now += 0.3 * kept.keeper.limits.timeout_s

    kept.mode("slow")
    found = kept.evaluate(tell)
    assert found.failure is not None
    assert (found.failure.kind, found.failure.message) == (FailureKind.TIMEOUT, "evaluate took longer than 600 s")
    kept.mode("fine")
    assert kept.evaluate().ok


def test_an_evaluation_that_hangs_twice_is_a_timeout(kept: Kept, clock: Clock) -> None:
    kept.mode("sleep")
    stop, pids = killing(kept, "stage", "build", times=2, number=signal.SIGSTOP)

    def on_event(event: str, value: Any) -> None:
        stop(event, value)
        clock.now += 10_000 * (value == "build")

    found = kept.evaluate(on_event)
    assert found.failure is not None
    assert found.failure.kind is FailureKind.TIMEOUT
    assert found.attempts == 2
    assert kept.case.engines() == []
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.usefixtures("really_started")
def test_starting_again_is_not_held_to_the_limit_of_an_evaluation(kept: Kept) -> None:
    kept.keeper.ask().setup.try_out()
    kept.keeper.limits = ProcessLimits(timeout_s=0.2)  # a process takes longer than that to import anything
    kept.mode("sleep")
    found = kept.evaluate()
    assert found.failure is not None
    assert found.failure.kind is FailureKind.TIMEOUT
    assert found.failure.message.startswith("evaluate took longer")
    assert found.attempts == 2
    kept.mode("fine")
    kept.keeper.limits = ProcessLimits()
    assert kept.evaluate().ok


@pytest.mark.usefixtures("late_when_it_hangs")
def test_a_hang_takes_all_it_started_with_it(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """However soon the process sees that its line is closed, and ends itself."""
    close = Child._close_pipes

    def seen_at_once(child: Child) -> None:
        close(child)
        child.process.wait(300)

    monkeypatch.setattr(Child, "_close_pipes", seen_at_once)
    kept.keeper.ask().setup.try_out()
    pid = kept.keeper.pid
    assert pid is not None
    kept.mode("hang")
    with pytest.raises(ProcessDiedError, match="took longer"):
        kept.keeper.ask().setup.try_out()
    wait_until_gone([pid, *kept.started()])


def test_a_fault_in_native_code_leaves_its_trace_and_no_orphan(kept: Kept) -> None:
    kept.mode("fork and fault")
    with pytest.raises(ProcessDiedError, match="SIGSEGV") as caught:
        kept.keeper.ask().setup.try_out()  # the fork holds the line open, and yet the death is seen
    assert caught.value.kind is FailureKind.CRASHED
    assert "own_metric.py" in caught.value.log
    assert "in act" in caught.value.log
    wait_until_gone(kept.started())


def test_more_memory_than_allowed(kept: Kept) -> None:
    kept.keeper.ask().setup.try_out()
    kept.mode("allocate")
    kept.keeper.limits = ProcessLimits(memory_bytes=psutil.Process(kept.keeper.pid).memory_info().rss + 128 * MIB)
    with pytest.raises(ProcessDiedError, match=r"try_out took \d+ MiB of memory, more than the limit of \d+ MiB") as e:
        kept.keeper.ask().setup.try_out()
    assert e.value.kind is FailureKind.OUT_OF_MEMORY
    assert kept.keeper.pid is None


@pytest.mark.usefixtures("really_started")
def test_a_process_that_gets_no_memory_wants_to_be_replaced(kept: Kept) -> None:
    kept.keeper.ask().setup.try_out()
    pid = kept.keeper.pid
    assert pid is not None
    kept.mode("use up")
    kept.keeper.ask().setup.try_out()
    kept.mode("fine")
    found = kept.evaluate()
    assert found.ok, found.failure
    assert found.attempts == 2
    assert kept.keeper.pid != pid


def test_again_and_again_is_the_end_of_the_run(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluators.process.keeper._HOPELESS", 1)
    kept.mode("sleep")
    on_event, pids = killing(kept, "stage", "lower", times=3)
    found = kept.evaluate(on_event)
    assert found.failure is not None
    assert found.failure.kind is FailureKind.CRASHED
    with pytest.raises(EvaluatorError, match=r"3 evaluator processes in a row died .* Try again"):
        kept.evaluate(on_event)
    assert len(set(pids)) == 3
    assert kept.evaluate().ok  # when the cause is mended


def test_a_process_that_cannot_even_start_is_no_fault_of_the_candidate(kept: Kept) -> None:
    kept.keeper.close()
    kept.keeper.limits = ProcessLimits(memory_bytes=1)
    with pytest.raises(EvaluatorError, match="open took") as caught:
        kept.evaluate()
    assert isinstance(caught.value, ProcessDiedError)


def test_what_the_listener_raises_is_no_death(kept: Kept) -> None:
    def closed(event: str, value: Any) -> None:
        raise BrokenPipeError("the user has closed less")

    with pytest.raises(BrokenPipeError, match="closed less"):
        kept.evaluate(closed)
    assert kept.keeper.pid is None
    assert kept.case.engines() == []


# -- a full disk -------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_no_fault_of_the_candidate(kept: Kept, tmp_path: Path) -> None:
    out, assignment = tmp_path / "x.engine", kept.case.uniform(FP32)
    with EvaluatorProcess(replace(kept.keeper.job, metric="top1"), tmp_path / "log") as keeper:
        keeper.ask().builds.rebuild(assignment, out)
        pid, size = keeper.pid, out.stat().st_size
        assert pid is not None
        # A limit on the size of files answers like a full disk. The engine fits into the second, not into the first;
        # what ONNX Runtime writes beside it, with padded channels, fits into neither.
        for most, words in ((size // 2, "File too large.* Make room"), (size + 1, "the builder said.* Make room")):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            with pytest.raises(ArtifactError, match=words):
                keeper.evaluate(assignment, out, StopLimits())
            assert not list(tmp_path.glob("x.engine*"))
        with pytest.raises(ArtifactError, match="Make room"):
            keeper.ask().builds.rebuild(assignment, out)
        assert not list(tmp_path.glob("x.engine*"))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        keeper.ask().builds.rebuild(assignment, out)
        assert keeper.pid == pid


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_is_really_full(kept: Kept) -> None:
    disk = kept.case.folder / "disk"
    disk.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr!r}")
    try:
        with pytest.raises(ArtifactError, match="No space left on device"):
            kept.keeper.evaluate(kept.case.uniform(INT8), disk / "x.engine", StopLimits())
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# -- starting and ending -----------------------------------------------------------------------------------------------


def test_errors_of_the_child_arrive_as_what_they_are(kept: Kept, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", image=np.full((10, 3, 16, 16), np.nan, np.float32))
    job = replace(kept.case.job, metric=None)
    wrong: list[tuple[type[BitfrontError], str, dict[str, Any]]] = [
        (DataError, "NaN or Inf", {"data": str(tmp_path / "bad.npz")}),
        (TargetError, "cuda:N", {"device": "tpu"}),
    ]
    for error, words, changes in wrong:
        with EvaluatorProcess(replace(job, **changes), tmp_path / "log") as keeper:
            with pytest.raises(error, match=words) as caught:
                keeper.ask().setup.try_out()
            assert type(caught.value) is error
            assert keeper.pid is None  # one that has opened nothing is of no use


@pytest.mark.usefixtures("really_started")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('libonnx.so: cannot open')", r"not installed .*libonnx.so.* Install it: pip install"),
        ("raise RuntimeError('half an installation')", "starting backend onnxruntime: RuntimeError: half an inst"),
    ],
    ids=["missing", "broken"],
)
def test_a_backend_that_cannot_be_imported(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    (tmp_path / "onnxruntime.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with (
        EvaluatorProcess(replace(kept.case.job, metric=None), tmp_path / "log") as keeper,
        pytest.raises(TargetError, match=words),
    ):
        keeper.ask().setup.try_out()


@pytest.mark.usefixtures("really_started")
def test_the_current_folder_shadows_nothing(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("search", "studies", "evaluators", "json", "queue", "onnx", "onnxruntime", "psutil"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('shadowed')")
    for name in ("data", "wire", "process", "metrics"):
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    own = "import data, wire, process, metrics\nassert data.MINE and wire.MINE and process.MINE and metrics.MINE\n"
    (tmp_path / "users_metric.py").write_text(own + METRIC)
    (tmp_path / "mode").write_text("fine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH")  # what makes measurements quick imports ours before all others
    with EvaluatorProcess(replace(kept.case.job, metric="users_metric:score"), tmp_path / "log") as keeper:
        keeper.ask().setup.try_out()
        assert keeper.description.metric is not None
        assert keeper.description.metric.name == "users_metric:score"


@pytest.mark.usefixtures("really_started")
def test_the_current_folder_may_be_gone(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with EvaluatorProcess(replace(kept.case.job, metric=None), tmp_path / "log") as keeper:
        keeper.ask().setup.try_out()


@pytest.mark.usefixtures("really_started")
def test_many_starts_leave_no_descriptor_and_no_zombie(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluators.process.connection._OPEN_S", 0)
    kept.keeper.limits = ProcessLimits(timeout_s=0)
    gc.collect()  # what is left of earlier tests may have files open
    before = os.listdir("/proc/self/fd")
    for _ in range(15):
        with pytest.raises(ProcessDiedError, match="open took longer"):
            kept.keeper.ask().setup.try_out()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    mine = [p for p in psutil.Process().children() if "evaluators.process.server" in " ".join(p.cmdline())]
    assert mine == []
    assert [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE] == []


@pytest.mark.usefixtures("really_started")
def test_a_thousand_open_files_are_no_obstacle(kept: Kept) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"only {hard} open files are allowed here")
    kept.keeper.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (1200, hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        kept.keeper.ask().setup.try_out()
    finally:
        for fd in opened:
            os.close(fd)
        kept.keeper.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_log_that_cannot_be_opened_leaves_nothing_open(kept: Kept, tmp_path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    keeper = EvaluatorProcess(kept.case.job, tmp_path)
    with pytest.raises(IsADirectoryError):
        keeper.ask().setup.try_out()
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_twice_and_asking_again(kept: Kept) -> None:
    kept.keeper.close()
    kept.keeper.close()
    assert kept.keeper.pid is None
    kept.keeper.ask().setup.try_out()
    assert kept.keeper.pid is not None


PARENT = """
import json, sys
from pathlib import Path
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess

with EvaluatorProcess(Job(**json.load(sys.stdin)), Path(sys.argv[1])) as keeper:
    keeper.ask().calibrations.find_key("minmax")
    print(keeper.pid, flush=True)
    try:
        keeper.ask().setup.try_out()
    except KeyboardInterrupt:
        print("interrupted", keeper.pid, flush=True)
"""


@pytest.fixture
def parent(kept: Kept, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A keeper in a process (and a process group) of its own, whose evaluator process hangs in the user's metric."""
    kept.mode("hang")
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write(json.dumps(asdict(kept.keeper.job)))
        process.stdin.close()
        child = int(process.stdout.readline())
        deadline = time.monotonic() + 300
        while not kept.hangs():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process, child
        if process.poll() is None:
            process.kill()
    for pid in kept.started():
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def test_the_process_ends_when_its_keeper_is_killed(kept: Kept, parent: tuple[subprocess.Popen[str], int]) -> None:
    process, child = parent
    assert is_running(child)
    process.kill()
    wait_until_gone([child, kept.started()[0]])  # the other one has a session of its own


def test_ctrl_c_ends_the_process_through_its_keeper(kept: Kept, parent: tuple[subprocess.Popen[str], int]) -> None:
    process, child = parent
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=400) == 0
    assert process.stdout is not None
    assert process.stdout.read() == "interrupted None\n"
    wait_until_gone([child, *kept.started()])
