"""What a run says of the time that it takes, and what comes first where little of it is left."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from studies import verbs
from studies.judging.standing import Standing
from studies.run.noise.remeasurement import settle_doubts
from studies.run.pace import Pace
from studies.run.unreachable_limits import limit_advice
from studies.show import progress_display
from studies.show.progress_display import Lines
from studies.store.records import EvaluationRecord
from studies.store.store import Store
from tests.support.study_rows import add, evaluated, fresh_url, make_study

SPLITS = {"search": 100, "final": 100}


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Standing, EvaluationRecord]:
    """A study of which only FP32 was measured, which took a minute."""
    url = fresh_url("sqlite", tmp_path)
    with Store.open(url, create=True) as store:
        target = make_study(store, trials="16")
        add(store, target, 0, evaluated((0, 0), 44.28, 0.0, 0.004, total_s=60.0), "baseline:fp32")
        record = store.trials.load(target, 0)
    return verbs.front("s", storage=url).standing, record


def test_a_second_evaluation_comes_before_confirming_fp32(begun: tuple[Standing, EvaluationRecord]) -> None:
    now, _ = begun
    assert Pace(70.0, splits=SPLITS).allows_evaluation(now)
    assert not Pace(59.0, splits=SPLITS).allows_evaluation(now)


def test_a_doubtful_fp32_is_not_measured_again_while_nothing_else_was(begun: tuple[Standing, EvaluationRecord]) -> None:
    def refuse(*_: object) -> None:
        raise LookupError("the doubts are looked up, to be measured again")

    now, _ = begun
    ledger = SimpleNamespace(standing=lambda: now, store=SimpleNamespace(measurements=SimpleNamespace(doubts=refuse)))
    work: Any = SimpleNamespace(ledger=ledger, pace=Pace(70.0))
    settle_doubts(work)
    work.pace = Pace()
    with pytest.raises(LookupError):
        settle_doubts(work)


def test_a_time_limit_that_is_over_says_which_one_is_enough(begun: tuple[Standing, EvaluationRecord]) -> None:
    """Three minutes of evaluations after half a minute at the start, and a third of the limit for the finalists."""
    now, _ = begun
    pace = Pace(70.0, splits=SPLITS)
    pace.start_s = 30.0
    work: Any = SimpleNamespace(pace=pace, problem=SimpleNamespace(config=SimpleNamespace(storage=None)))
    assert limit_advice(work, now, 3) == (
        "an evaluation takes about 1m here; `bitfront resume s --time-limit 6m` leaves time for the 3 that are left"
    )


def test_waiting_for_others_counts_in_the_time_of_finalists(begun: tuple[Standing, EvaluationRecord]) -> None:
    now, _ = begun
    pace = Pace(70.0, splits=SPLITS)
    before_s = pace.timing_s(now, 2)
    pace.note(evaluated((0, 0), 44.28, 0.0, 0.004, stage_s={"wait": 40.0}), 60.0)
    assert pace.timing_s(now, 2) == pytest.approx(before_s + 40.0)


def test_a_pipe_is_told_how_long_the_search_takes_and_again_where_that_was_far_off(
    begun: tuple[Standing, EvaluationRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, record = begun
    moment = [0.0]
    monkeypatch.setattr(progress_display, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    said = io.StringIO()
    lines = Lines(Console(file=said, width=300))
    for took_s in (0, 60, 60, 500, 10):
        moment[0] += took_s
        lines.evaluation(record, now, 16)  # one is finished each time, so that 15 are left
    told = [line for line in said.getvalue().splitlines() if "left for all 16 trials" in line]
    assert [line.split(",")[0] for line in told] == [
        "about 15m left for all 16 trials",
        "about 42m30s left for all 16 trials",
    ], "60 s each at first, as it turns out for three; then 680 s for four"
    short = io.StringIO()
    Lines(Console(file=short, width=300)).evaluation(record, now, 1)
    assert "about" not in short.getvalue()


def test_what_is_only_timed_again_takes_no_time_for_scoring(begun: tuple[Standing, EvaluationRecord]) -> None:
    now, _ = begun
    pace = Pace(70.0, splits=SPLITS)
    assert pace.repeat_s(now) == pytest.approx(60.0)
    scored = evaluated((0, 0), 44.28, 0.0, 0.004, stage_s={"run": 1.0, "score": 39.0})
    pace.note(scored, 60.0)
    assert pace.repeat_s(now) == pytest.approx(20.0)
    pace.note_repeat(3.0)  # the builder had kept what it learnt
    assert pace.repeat_s(now) == pytest.approx(3.0)
