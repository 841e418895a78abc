"""What a run says of the time that it takes, and what comes first where little of it is left."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bitfront import verbs
from studies.judging.search_events import RunTime
from studies.judging.standing import Standing
from studies.run.hooks import announcements
from studies.run.noise.remeasurement import settle_doubts
from studies.run.pace import Pace
from studies.run.stop import limit_advice
from studies.show import progress_display
from studies.show.progress_display import Lines
from studies.show.terminal import run_text
from studies.store.records import PROCESS, REBUILD, REOPEN, StoredEvaluation
from studies.store.store import Store
from tests.support.study_rows import add, evaluated, fresh_url, make_study

SPLITS = {"search": 100, "final": 100}


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Standing, StoredEvaluation]:
    """A study of which only FP32 was measured, which took a minute."""
    url = fresh_url("sqlite", tmp_path)
    with Store.open(url, create=True) as store:
        target = make_study(store, trials="16")
        add(store, target, 0, evaluated((0, 0), 44.28, 0.0, 0.004, total_s=60.0), "baseline:fp32")
        record = store.trials.load(target, 0)
    return verbs.front("s", storage=url).standing, record


def test_a_second_evaluation_comes_before_confirming_fp32(begun: tuple[Standing, StoredEvaluation]) -> None:
    now, _ = begun
    assert Pace(70.0, splits=SPLITS).allows_evaluation(now)
    assert not Pace(59.0, splits=SPLITS).allows_evaluation(now)


def test_a_doubtful_fp32_is_not_measured_again_while_nothing_else_was(begun: tuple[Standing, StoredEvaluation]) -> None:
    def refuse(*_: object) -> None:
        raise LookupError("the doubts are looked up, to be measured again")

    now, _ = begun
    measurements = SimpleNamespace(doubts=refuse)
    ledger = SimpleNamespace(read_standing=lambda: now, store=SimpleNamespace(measurements=measurements))
    work: Any = SimpleNamespace(ledger=ledger, pace=Pace(70.0))
    settle_doubts(work)
    work.pace = Pace()
    with pytest.raises(LookupError):
        settle_doubts(work)


def test_a_time_limit_that_is_over_says_which_one_is_enough(begun: tuple[Standing, StoredEvaluation]) -> None:
    """Three minutes of evaluations after half a minute at the start, and a third of the limit for the finalists."""
    now, _ = begun
    pace = Pace(70.0, splits=SPLITS)
    pace.start_s = 30.0
    work: Any = SimpleNamespace(pace=pace, problem=SimpleNamespace(config=SimpleNamespace(storage=None)))
    assert limit_advice(work, now, 3) == (
        "an evaluation takes about 1m here; to resume with --time-limit 6m leaves time for the 3 that are left"
    )


def test_waiting_for_others_counts_in_the_time_of_finalists(begun: tuple[Standing, StoredEvaluation]) -> None:
    now, _ = begun
    pace = Pace(70.0, splits=SPLITS)
    before_s = pace.timing_s(now, 2)
    pace.note(evaluated((0, 0), 44.28, 0.0, 0.004, stage_s={"wait": 40.0}), 60.0)
    assert pace.timing_s(now, 2) == pytest.approx(before_s + 40.0)


def test_the_time_left_follows_from_how_often_mixes_end(
    begun: tuple[Standing, StoredEvaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sixteen evaluations one is done each time that it is asked; of closing the search nothing is known."""
    now, baseline = begun
    mix, moment, told = baseline.with_values(role=""), [1000.0], list[RunTime]()
    monkeypatch.setattr(announcements, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    target = SimpleNamespace(target=SimpleNamespace(relative=False))
    work: Any = SimpleNamespace(
        pace=Pace(),
        events=SimpleNamespace(report_time=told.append),
        crew=SimpleNamespace(others=dict),
        ledger=SimpleNamespace(target=target),
        problem=SimpleNamespace(config=SimpleNamespace(patience="auto")),
    )
    monkeypatch.setattr(announcements.Closing, "expected_s", lambda self, now, repeats: 30.0)
    stop: Any = SimpleNamespace(trials=16)
    hook = announcements.Remaining(work, stop, SimpleNamespace(repeats_left={}))  # type: ignore[arg-type]

    def left_s(record: StoredEvaluation, passed_s: float) -> float | None:
        moment[0] += passed_s
        hook.follow(record, now)
        return None if told[-1].ends is None else told[-1].ends - moment[0]

    assert left_s(baseline, 100.0) is None, "the first build of a GPU says nothing of mixes"
    assert left_s(mix, 500.0) == pytest.approx(15 * 60 + 30), "sensitivities came before it; it took 60 s itself"
    assert left_s(mix, 80.0) == pytest.approx(15 * 70 + 30), "with what came between: 60 s and 80 s"
    assert told[-1].may_end, "it may find that nothing more is to be had"
    work.problem.config.patience = None
    work.pace.limit_s = work.pace.passed_s + 200.0
    assert left_s(mix, 70.0) == pytest.approx(200.0, abs=5.0), "the limit comes first"
    assert not told[-1].may_end
    work.crew.others = lambda: {"another": "searching"}
    work.pace.limit_s = None
    assert left_s(mix, 70.0) == pytest.approx(15 * 70 / 2 + 30)


def test_a_pipe_is_told_the_time_left_at_first_where_it_was_far_off_and_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = [0.0]
    clock = SimpleNamespace(monotonic=lambda: moment[0])
    for module in (progress_display, run_text):
        monkeypatch.setattr(module, "time", clock)
    said = io.StringIO()
    lines = Lines(Console(file=said, width=300))
    lines.report_time(RunTime(0.0))
    for passed_s, left_s in ((60, 900), (10, 880), (10, 870), (20, 2400), (40, 2350), (1000, 1300), (30, 1270)):
        moment[0] += passed_s
        lines.report_time(RunTime(0.0, None, moment[0] + left_s))
    assert [line.split(";")[0] for line in said.getvalue().splitlines()] == [
        "1:00, about 15m left",
        "1:40, about 40m left",
        "2:20, about 39m left",
        "19:00, about 22m left",
    ]
    assert "--time-limit" in said.getvalue().splitlines()[0]
    assert "--time-limit" not in said.getvalue().splitlines()[1]
    short = io.StringIO()
    Lines(Console(file=short, width=300)).report_time(RunTime(moment[0], 60.0, moment[0] + 20.0))
    assert short.getvalue() == "", "what is over so soon needs no estimate"


def test_what_is_only_timed_again_takes_no_time_for_scoring(begun: tuple[Standing, StoredEvaluation]) -> None:
    now, _ = begun
    pace = Pace(70.0, splits=SPLITS)
    assert pace.repeat_s(now, REBUILD) == pytest.approx(60.0)
    scored = evaluated((0, 0), 44.28, 0.0, 0.004, stage_s={"run": 1.0, "score": 39.0})
    pace.note(scored, 60.0)
    assert pace.repeat_s(now, REBUILD) == pytest.approx(20.0)
    pace.note_repeat(3.0, REBUILD)  # the builder had kept what it learnt
    assert pace.repeat_s(now, REBUILD) == pytest.approx(3.0)
    left = {"rebuild": 2, "process": 3}
    assert pace.repeats_s(now, left, 12.0) == pytest.approx(2 * 3 + 3 * (3 + 12 / 3)), "a fresh process has to start"
    pace.note_repeat(9.0, "process")
    pace.note_repeat(2.0, "rebuild")
    assert pace.repeats_s(now, left, 12.0) == pytest.approx(2 * 2.9 + 3 * 9), "each kind takes what it took"


def test_opening_an_engine_says_nothing_about_building_it(begun: tuple[Standing, StoredEvaluation]) -> None:
    now, _ = begun
    pace = Pace(70.0, splits=SPLITS)
    pace.note_repeat(1.0, REOPEN)
    assert pace.repeat_s(now, PROCESS) == pytest.approx(1.0)
    assert pace.repeat_s(now, REBUILD) == pytest.approx(60.0)
