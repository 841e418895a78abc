"""Several evaluations in flight: processes that only build, beside the one that measures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess
from search.errors import BitfrontError
from search.values import Assignment, Precision
from studies.judging.search_events import SearchEvents
from studies.options.read_options import read_config
from studies.run.pace import Pace
from studies.run.pipeline import build_hold
from studies.run.pipeline.build_hold import BuilderProcess, BuildHold
from studies.run.pipeline.parallel import ParallelPipeline, choose_builder
from studies.run.session.builders import make_builders
from studies.run.session.setup import check_inputs
from studies.run.work import Bench
from studies.trials.ledger import Ledger
from tests.support.command_line import DATABASE, command, environment, evaluator_processes, invoke, ok, write_inputs
from tests.support.crashes.kill_and_resume import rows, untold
from tests.support.forks.processes import evaluators_of, popen
from tests.support.networks import mobile_cnn

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals"), pytest.mark.slow]

SEARCH = ("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--quiet")
LEFT = "select (select count(*) from bf_lease), (select count(*) from bf_evaluation where status = 'running')"
OPEN = "select count(*) from trials where state in ('RUNNING', 'WAITING')"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in", mobile_cnn())
    return tmp_path


def check_whole(folder: Path, trials: int) -> None:
    """So many distinct evaluations, each told, and nothing left open."""
    assert rows(folder, "select count(*), count(distinct digest) from bf_evaluation") == [(trials, trials)]
    assert rows(folder, LEFT) == [(0, 0)]
    assert rows(folder, OPEN) == [(0,)]
    assert untold(folder) == []


@pytest.mark.parametrize("sampler", ["guided", "random"])
def test_a_search_with_builders_has_several_in_flight_and_evaluates_each_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    in_flight: list[int] = []
    start = ParallelPipeline.start

    def started(pipeline: ParallelPipeline, claim: Any) -> None:
        start(pipeline, claim)
        in_flight.append(rows(here, "select count(*) from bf_evaluation where status = 'running'")[0][0])

    monkeypatch.setattr(ParallelPipeline, "start", started)
    ok(*SEARCH, "--trials", 9, "--builders", 2, "--sampler", sampler)
    assert max(in_flight) > 2
    check_whole(here, 9)
    assert rows(here, "select distinct status from bf_evaluation") == [("ok",)]


def test_ctrl_c_gives_back_all_that_is_in_flight(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok(*SEARCH, "--trials", 4, "--sampler", "random")
    wait, calls = ParallelPipeline.wait_finished, 0

    def interrupted(pipeline: ParallelPipeline) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            assert rows(here, LEFT)[0][0] >= 2
            raise KeyboardInterrupt
        return wait(pipeline)

    with monkeypatch.context() as patched:
        patched.setattr(ParallelPipeline, "wait_finished", interrupted)
        assert invoke("resume", "s", "--trials", 12, "--builders", 2, "--quiet").exit_code == 130
    assert rows(here, LEFT) == [(0, 0)]
    assert evaluator_processes() == []
    ok("resume", "s", "--quiet")
    check_whole(here, 12)


def test_builds_that_outlast_the_time_limit_are_given_back_and_best_is_confirmed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(*SEARCH, "--backend", "fake", "--trials", 4, "--sampler", "random", "--time-limit", "1h")
    held, in_flight = here / "held", []
    held.mkdir()
    (held / "build").touch()
    cut = ParallelPipeline._cut_builds

    def cut_off(pipeline: ParallelPipeline) -> None:
        in_flight.append(rows(here, LEFT)[0][1])
        cut(pipeline)

    with monkeypatch.context() as patched:
        patched.setenv("BITFRONT_TEST_HELD", str(held))
        patched.setattr(ParallelPipeline, "_cut_builds", cut_off)
        patched.setattr(Pace, "build_s", lambda pace, now: 0.1)
        patched.setattr(Pace, "allows_evaluation", lambda pace, now, uniform=False: not in_flight)
        told = ok("resume", "s", "--trials", 12, "--builders", 2)
    assert in_flight[0] >= 2
    assert "the time limit is reached with 4 of 12 evaluations done" in told
    assert rows(here, "select count(*), count(distinct digest) from bf_evaluation") == [(4, 4)]
    assert rows(here, LEFT) == [(0, 0)]
    assert rows(here, "select count(*) > 0 from bf_score where split = 'final'") == [(1,)]
    assert evaluator_processes() == []
    ok("resume", "s", "--quiet")
    check_whole(here, 12)


@pytest.mark.parametrize("victim", ["run", "builder", "measurer"])
def test_a_kill_loses_no_more_than_what_is_in_flight(here: Path, victim: str) -> None:
    words = command(*SEARCH, "--trials", 14, "--builders", 2, "--sampler", "random")
    with (here / "out").open("wb") as out:
        process = popen(words, cwd=here, env=environment(), stdout=out, stderr=out, start_new_session=True)
    children = wait_for_builders(here, process)
    if victim == "run":
        done = rows(here, "select count(*) from bf_evaluation where status != 'running'")[0][0]
        process.kill()
        process.wait()
        wait_until(lambda: not any(child.is_running() for child in children))
        assert rows(here, "select count(*) from bf_evaluation where status != 'running'")[0][0] >= done
        ok("resume", "s", "--quiet")
    else:
        # The first one that was started measures.
        chosen = children[0] if victim == "measurer" else children[1]
        chosen.kill()
        assert process.wait(300) == 0, (here / "out").read_text()
    check_whole(here, 14)


def wait_for_builders(folder: Path, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The three evaluator processes of a run, oldest first, once evaluations are finished and others are in flight."""
    found: list[psutil.Process] = []

    def there() -> bool:
        nonlocal found
        found = evaluators_of(process.pid)
        begun = (folder / DATABASE).exists() and len(found) >= 3
        counted = rows(folder, "select count(*) from bf_evaluation where status = 'ok'") if begun else []
        return bool(counted) and counted[0][0] >= 4

    wait_until(there)
    return found


def wait_until(condition: Any, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# -- builds stand still ------------------------------------------------------------------------------------------------


def test_a_mix_goes_to_the_builder_that_knows_most_of_it_unless_another_has_less_to_do() -> None:
    groups = [f"g{number:03d}" for number in range(5)]
    known = [Assignment(dict.fromkeys(groups, precision)) for precision in (Precision.INT8, Precision.FP16)]
    builders = [BuilderProcess(cast(EvaluatorProcess, None), {each}) for each in known]
    mostly_fp16 = known[1].replace({"g001": Precision.INT8})
    assert choose_builder(builders, [], mostly_fp16) == 1
    assert choose_builder(builders, [], known[0].replace({"g001": Precision.FP32})) == 0
    assert choose_builder(builders, [1], mostly_fp16) == 0
    assert choose_builder([*builders, BuilderProcess(cast(EvaluatorProcess, None))], [0, 1], mostly_fp16) == 2
    builders[1].learns_mix = True
    assert choose_builder(builders, [], mostly_fp16) == 0


def test_no_claim_waits_for_a_builder_that_still_learns_unless_nothing_else_is_under_way() -> None:
    """Of a search on an H200 the second mix waited 50 s so, and every later one was expected to take that."""
    builders = tuple(BuilderProcess(cast(EvaluatorProcess, None)) for _ in range(2))
    bench = Bench(cast(EvaluatorProcess, None), Path(), "model.engine", builders)
    pipeline = ParallelPipeline(bench, cast(Ledger, None), cast(SearchEvents, None))
    pipeline._in_flight, pipeline._building = {1}, {1: 1}
    assert pipeline.free
    builders[0].learns_mix = True
    assert not pipeline.free
    pipeline._in_flight, pipeline._building = set(), {}
    builders[1].learns_mix = True
    assert pipeline.free


def test_builds_stand_still_while_a_latency_is_measured(tmp_path: Path) -> None:
    """A process that is held is stopped by the kernel, and goes on when the last holder leaves."""
    hold, process = BuildHold(), subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        builder: Any = type("Builder", (), {"pid": process.pid})()
        hold.add(builder)
        state = psutil.Process(process.pid)
        with hold:
            wait_until(lambda: state.status() == psutil.STATUS_STOPPED)
            with hold:
                assert state.status() == psutil.STATUS_STOPPED
            assert state.status() == psutil.STATUS_STOPPED
        wait_until(lambda: state.status() == psutil.STATUS_SLEEPING)
    finally:
        process.kill()
        process.wait()


def test_no_build_stands_still_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold what the measurement waits for, which would then last until its time limit."""
    planned: list[threading.Timer] = []
    monkeypatch.setattr(threading.Timer, "start", lambda timer: planned.append(timer))
    hold, process = BuildHold(), subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        builder: Any = type("Builder", (), {"pid": process.pid})()
        hold.add(builder)
        state = psutil.Process(process.pid)
        with hold:
            wait_until(lambda: state.status() == psutil.STATUS_STOPPED)
            assert [timer.interval for timer in planned] == [build_hold.LONGEST_S]
            planned[0].function(*planned[0].args)
            wait_until(lambda: state.status() == psutil.STATUS_SLEEPING)
    finally:
        process.kill()
        process.wait()


def test_builders_take_no_turn_for_the_device_that_a_measurement_would_wait_for(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []
    build = EvaluatorProcess.build

    def noted(keeper: EvaluatorProcess, *args: Any) -> Any:
        jobs.append(keeper.job)
        return build(keeper, *args)

    monkeypatch.setattr(EvaluatorProcess, "build", noted)
    ok(*SEARCH, "--trials", 3, "--builders", 1, "--sampler", "random")
    assert {(job.only_builds, job.beside) for job in jobs} == {(True, False)}


def test_processes_that_build_start_while_the_inputs_are_checked_and_end_with_a_refusal(here: Path) -> None:
    options = {"model": "in/model.onnx", "data": "in/data.npz", "builders": "2"}
    with check_inputs(read_config(options), builds=True) as good:
        mine = [psutil.Process(process.pid) for process in good.builders]
        built, measured = make_builders(good.builders, good.keeper), good.keeper.job
        for number, builder in enumerate(built):
            assert builder.process.job == replace(measured, folder=builder.process.job.folder, only_builds=True)
            assert Path(builder.process.job.folder) == good.folder / f"builder{number}"
            builder.process.open()
        assert [builder.process.pid for builder in built] == [each.pid for each in mine]
        assert all(each.is_running() for each in mine)
    assert not any(each.is_running() for each in mine)
    children = set(psutil.Process().children())
    with pytest.raises(BitfrontError), check_inputs(read_config({**options, "metric": "nothing"}), builds=True):
        pass
    assert set(psutil.Process().children()) <= children


def test_a_process_that_has_ended_is_no_trouble_to_hold() -> None:
    hold = BuildHold()
    hold.add(EvaluatorProcess(Job("m", "d", "f"), Path("log")))
    with hold:
        pass


def test_a_stopped_builder_ends_with_the_run_that_started_it(here: Path) -> None:
    """It reads nothing while it is stopped, and would stay for ever."""
    words = command(*SEARCH, "--trials", 40, "--builders", 2, "--sampler", "random")
    with (here / "out").open("wb") as out:
        process = popen(words, cwd=here, env=environment(), stdout=out, stderr=out, start_new_session=True)
    builder = wait_for_builders(here, process)[1]  # the first one that was started measures
    os.kill(builder.pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    wait_until(lambda: not builder.is_running() or builder.status() == psutil.STATUS_ZOMBIE, 30)
