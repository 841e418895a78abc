"""The time limit: counted from the start of the command, with enough kept for the finalists."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from bitfront import verbs
from studies import run_clock
from studies.events import Quiet
from studies.judging.standing import Standing, read_standing
from studies.options.limits import Limits
from studies.options.read_options import read_config
from studies.run import finalists
from studies.run.pace import Pace
from studies.run.search_result import SearchResult
from studies.run.stop import UnreachableLimitError
from studies.store.database.tables import AS_GIVEN
from studies.store.records import REOPEN, StoredEvaluation
from studies.store.store import Store, default_url
from tests.support.command_line import DATABASE, child, environment, ok, quick, run_sql, write_inputs
from tests.support.networks import mobile_cnn
from tests.support.quantized_files import quantized
from tests.support.time_limit_clock import Clock

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with inputs of a network that has more mixes than a test evaluates."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in", mobile_cnn())
    return tmp_path


def search(clock: Quiet, **more: str) -> SearchResult:
    options = {"model": "in/model.onnx", "data": "in/data.npz", "study": "s", "sampler": "random", "trials": "40"}
    with quick():
        return verbs.search(read_config({**options, **more}), clock)


def finals() -> int:
    return int(run_sql("select count(*) from bf_score where split = 'final'")[0][0])


def standing_after(trials: int) -> tuple[Standing, StoredEvaluation]:
    """Where a study of so many evaluations stands, and the last of them."""
    search(Quiet(), trials=str(trials))
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        study = store.studies.load("s")
        [target] = store.targets.of_study(study.id)
        now = read_standing(store, study, target, Limits())
        return now, store.evaluations.load(int(now.table.id[-1]))


def test_nothing_is_begun_that_would_not_end_in_time_by_what_others_took(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, evaluation_s=100)
    found = search(clock, **{"time-limit": "1000s"})
    # The tenth would end after 1000 s, and nothing would be left to end in.
    assert found.reason == "the time limit is reached with 9 of 40 evaluations done"
    assert finals() >= 1
    assert not any("not confirmed" in note for note in clock.notes)


def test_a_limit_within_the_baselines_ends_in_time_and_can_be_resumed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, evaluation_s=100)
    found = search(clock, **{"time-limit": "150s"})
    (advice,) = (note for note in clock.notes if "an evaluation takes about 1m40s here" in note)
    assert "leaves no time for more" in advice
    assert "leaves time for the 39 that are left" in advice
    assert found.reason == "the time limit is reached with 1 of 40 evaluations done"
    assert run_sql("select latency_band from bf_study_target") == [(None,)]
    assert "5 evaluations are done" in ok("resume", "s", "--time-limit", "none", "--trials", 5)


def test_a_calibration_that_takes_all_the_time_leaves_nothing_evaluated(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))  # ranges that another test kept need no calibration
    with pytest.raises(UnreachableLimitError, match="--time-limit 2m is too short to evaluate anything"):
        search(Clock(monkeypatch, 1, calibrating=200.0), **{"time-limit": "120s"})
    assert run_sql("select count(*) from bf_evaluation") == [(0,)]
    assert run_sql("select state from bf_study") == [("interrupted",)]
    assert "3 evaluations are done" in ok("resume", "s", "--time-limit", "none", "--trials", 3)


def test_finalists_that_do_not_fit_are_left_out_and_confirmed_later(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, evaluation_s=1)
    monkeypatch.setattr(Pace, "finalists_in_time", lambda self, now, lacking: 0)
    search(clock, trials="8")
    assert finals() == 0
    assert sum("not confirmed on the final samples; `bitfront resume s` confirms" in note for note in clock.notes) == 1
    monkeypatch.undo()
    monkeypatch.chdir(here)
    ok("resume", "s")
    assert finals() >= 1


@pytest.mark.parametrize(("count", "left_out"), [(3, ""), (5, "2 finalists are not confirmed")])
def test_while_there_is_time_for_one_finalist_whoever_comes_first_then_is_confirmed(
    here: Path, monkeypatch: pytest.MonkeyPatch, count: int, left_out: str
) -> None:
    clock = Clock(monkeypatch, 1.0)
    monkeypatch.setattr(Pace, "finalists_in_time", lambda self, now, lacking: 1)
    monkeypatch.setattr(finalists, "finalist_rows", lambda now: list(range(count)))
    search(clock, trials="6", **{"time-limit": "1h"})
    assert sum(note.startswith("measuring one finalist") for note in clock.notes) == 3
    assert finals() == 3
    told = [note for note in clock.notes if "not confirmed" in note]
    assert len(told) == bool(left_out)
    assert left_out in " ".join(told)


def test_what_is_kept_for_the_finalists_follows_what_was_measured(here: Path) -> None:
    now, record = standing_after(4)
    latency = record.evaluation.latency
    assert latency is not None
    quiet = replace(latency, wall_ms=latency.raw_ms)
    slow = replace(record.evaluation, latency=quiet, stage_s={"load": 1.0, "run": 6.0, "score": 4.0})
    made = Pace(1000.0, time.monotonic(), {"search": 100, "final": 50})
    made.note(slow, 30.0)
    assert made.evaluation_s(now) == 30.0
    # Loading each, timing them and the baseline side by side, scoring them and FP32 on half as many samples.
    timing_s = 3 * (0.2 + 1.5 * 20 * 0.02)  # to warm up, and 20 blocks of 20 ms, with some repeated
    assert made.finalists_s(now, 2) == pytest.approx(2 * 1.0 + 3 * 10.0 / 2 + timing_s)
    assert made.finalists_in_time(now, [False] * 6) == 6
    assert made.reserve_s(now) == made.finalists_s(now, 2), "to confirm the best and the next in line, no more"
    tight = Pace(60.0, time.monotonic(), {"search": 100, "final": 500})
    tight.note(slow, 30.0)
    assert tight.reserve_s(now) == pytest.approx(60.0 / 3), "of a short limit a third at most"
    late = Pace(1000.0, time.monotonic() - 999.0, {"search": 100, "final": 50})
    late.note(slow, 30.0)
    assert (late.finalists_in_time(now, [False] * 6), late.allows_evaluation(now)) == (0, False)
    assert Pace().finalists_in_time(now, [True] * 6) == 6
    assert Pace().allows_evaluation(now)
    busy = Pace(1000.0, time.monotonic(), {"search": 100, "final": 50})
    for _ in range(10):
        busy.note(replace(slow, latency=replace(quiet, wall_ms=6 * quiet.raw_ms)), 30.0)
    assert busy.timing_s(now, 2) == pytest.approx(6 * timing_s), "processor time takes longer on the wall"


def test_the_limit_holds_for_the_whole_command(here: Path) -> None:
    """Without it there would be hours of evaluations."""
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 2, "--sampler", "random")
    ended = child("resume", "s", "--trials", 100_000, "--time-limit", "3s", cwd=here)
    assert ended.returncode == 0, ended.stderr
    assert "the time limit is reached with" in ended.stdout


def test_a_limit_too_short_for_anything_says_so(here: Path) -> None:
    inputs = ("in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 4)
    ended = child("search", *inputs, "--time-limit", "10ms", cwd=here)
    assert ended.returncode == 1
    said = ended.stderr.partition("error: ")[2]
    assert "--time-limit 0.01s is too short to evaluate anything" in said
    assert said.endswith("bitfront resume s --time-limit TIME\n")
    assert said.count("\n") == 1
    assert "4 evaluations are done" in ok("resume", "s", "--time-limit", "none")


def test_a_command_began_with_its_process_and_a_function_when_it_was_called() -> None:
    code = (
        "import time; time.sleep(0.5); from studies import run_clock; now = time.monotonic()\n"
        "for _ in range(2):\n"
        "    with run_clock.clocked_run(): print(run_clock.limit_start() - now)\n"
        "    run_clock.note_command()\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    ).stdout.split()
    called, whole = map(float, said)
    assert whole < -0.4 < 0 <= called


def test_workers_count_from_the_start_of_their_parents_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_clock.clocked_run():
        told = run_clock.for_workers()
        began = run_clock.limit_start()
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with run_clock.clocked_run():
        assert run_clock.limit_start() == began


def test_a_mix_is_not_expected_to_take_what_the_first_builds_took(here: Path) -> None:
    now, record = standing_after(2)
    learning = Pace(480.0, time.monotonic(), {"search": 100, "final": 100}, later_builds=0.25)
    for build_s in (47.0, 76.0):
        evaluation = replace(record.evaluation, build_s=build_s, stage_s={"build": build_s, "run": 1.0})
        learning.note(evaluation, build_s + 4.0, uniform=True)
    assert learning.evaluation_s(now) == pytest.approx(4.0 + 0.25 * 76.0, rel=0.06)
    assert not learning.allows_repeat(now, lambda _: REOPEN), "mixes come before repeatability"
    for took_s in (20.0, 8.0, 9.0):
        learning.note(record.evaluation, took_s)
    assert learning.evaluation_s(now) < 20.0, "once there are mixes they alone say how long the next one takes"
    built_before = replace(record.evaluation, build_s=128.0, stage_s={"build": 0.01, "run": 1.0})
    learning.note(built_before, 4.0, uniform=True)
    assert learning.as_given_s(now) > 76.0 + 0.8 * (128.0 - 76.0), "the file as given is new to the builder"


def test_builds_that_can_be_cut_off_are_begun_though_the_first_mixes_took_long(here: Path) -> None:
    """Builders learn from their first mixes, and a build that does not end in time costs nothing."""
    now, record = standing_after(5)
    made = Pace(480.0, time.monotonic() - 370.0, {"search": 100, "final": 100}, later_builds=0.25)
    for took_s in (113.0, 117.0):
        made.note(record.evaluation, took_s)
    assert not made.allows_evaluation(now)
    made.cuts_builds = True
    assert made.allows_evaluation(now)
    made.began -= 90.0
    assert not made.allows_evaluation(now), "not even as quick as the next one may be would it end"


def test_the_last_mixes_alone_say_how_long_the_next_one_takes(here: Path) -> None:
    now, record = standing_after(3)
    made = Pace(480.0, time.monotonic(), {"search": 100, "final": 100}, later_builds=0.25)
    for took_s in (113.0, 117.0, 9.0, 8.0, 7.0):
        made.note(record.evaluation, took_s)
    assert made.evaluation_s(now) < 10.0


def test_without_time_for_its_build_the_file_as_given_is_left_to_a_later_run(here: Path) -> None:
    write_inputs(here / "in")
    path = quantized(onnx.load(here / "in/model.onnx"), here)
    with pytest.MonkeyPatch.context() as patched:
        clock = Clock(patched, 1.0)
        patched.setattr(Pace, "as_given_s", lambda pace, now: 1e9)
        search(clock, model=str(path), trials="2", **{"time-limit": "1h"})
    assert any("no time to measure the file as it was given" in note for note in clock.notes)
    assert "The file as given takes" not in ok("front", "s")
    ok("resume", "s")
    printed = ok("front", "s")
    assert "The file as given takes" in printed
    assert "surely more accurate" not in printed
    with Store.open(default_url()) as store:
        (target,) = store.targets.of_study(store.studies.load("s").id)
        figures = {"loss": -0.5, "loss_low": -0.6, "loss_high": -0.4}
        store.targets.add_details(target.id, **{AS_GIVEN: target.details[AS_GIVEN] | figures})
    assert "so it is surely more accurate than the FP32 made of it" in " ".join(ok("front", "s").split())
