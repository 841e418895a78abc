"""What remains at the end of a search is told before it begins, and `status` names the step with the time left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from studies.judging.standing import read_standing
from studies.judging.status.study_status import study_status
from studies.options.limits import Limits, MetricScale
from studies.run.hooks.closing import Closing, Step
from studies.run.pace import Pace
from studies.show.status_text import facts, rate_text
from studies.store.store import Store
from tests.support.study_rows import add, evaluated, fresh_url, make_study


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = make_study(store, **{"max-drop": "1%"})
        for trial, (latency_ms, loss) in enumerate([(4.0, 0.0), (1.0, 0.001), (2.0, 0.0)]):
            role = {0: "baseline:fp32", 1: "baseline:int8"}.get(trial, "")
            add(store, target, trial, evaluated((trial, 2), latency_ms, loss, 0.0005, total_s=20.0), role)
        yield store


def closing(store: Store, told: list[str], limit_s: float | None = None) -> tuple[Closing, Any]:
    study = store.studies.load("s")
    target = store.targets.of_study(study.id)[0]
    now = read_standing(store, study, target, Limits(max_drop=0.01))
    ledger = SimpleNamespace(store=store, target=target)
    pace = Pace(limit_s, splits={"search": 100, "final": 100})
    events = SimpleNamespace(note=told.append, report_time=lambda run: None)
    work: Any = SimpleNamespace(ledger=ledger, pace=pace, events=events)
    return Closing(work), now


def test_what_remains_is_told_with_its_time(store: Store) -> None:
    told: list[str] = []
    end, now = closing(store, told)
    band, doubts, finalists = end.announce(now, {"rebuild": 3})
    assert (band.seconds, doubts.seconds) == (60.0, 0.0)
    assert finalists.seconds > 100, "two are scored, and FP32 beside them, in 20 s each; then one and FP32 again"
    [text] = told
    assert text.startswith("what remains takes about ")
    assert text.endswith(": measuring repeatability, then measuring and scoring 2 finalists on the final samples")


def test_what_the_time_limit_cuts_is_told_instead_of_a_sum_that_is_not_spent(store: Store) -> None:
    told: list[str] = []
    end, now = closing(store, told, limit_s=95.0)
    band, _, finalists = end.announce(now, {"rebuild": 3})
    assert 60 < finalists.seconds < 75, "two finalists come first"
    assert band.seconds == 20.0, "one repetition of the three fits in the rest"
    [text] = told
    assert ": measuring repeatability with 1 of 3 repetitions, then measuring and scoring 2 finalists" in text
    assert text.endswith("the time limit leaves no time for 2 of the 3 repetitions that measure repeatability")
    short, now = closing(store, told, limit_s=50.0)
    band, _, finalists = short.announce(now, {"rebuild": 3})
    assert (band.seconds, finalists.left_out) == (0.0, "confirming one finalist")
    assert finalists.seconds <= 50
    none, now = closing(store, told, limit_s=1.0)
    assert sum(step.seconds for step in none.announce(now, {"rebuild": 3})) == 0
    assert told[-1].startswith("the time limit leaves no time for ")
    assert "confirming 2 finalists" in told[-1]


def test_status_names_the_step_while_a_worker_is_at_it(store: Store) -> None:
    end, now = closing(store, [])
    end.begin(Step("measuring one doubtful latency again", 30.0), Step("more", 60.0))
    assert study_status(store, "s").targets[0].closing_step is None, "nobody is at it"
    name = store.workers.join(now.target.id, host="here", device="cpu", pid=1, state="finishing")
    assert store.tasks.take(now.target.id, "finalists", name, 60.0)
    target = study_status(store, "s").targets[0]
    assert target.may_end, "as every search without --patience none"
    assert target.closing_step is not None
    assert target.closing_step[0] == "measuring one doubtful latency again"
    assert 80 < target.closing_step[1] <= 90
    assert rate_text(replace(target, limit_left_s=60.0)).endswith("; at most 1m left")
    assert rate_text(replace(target, limit_left_s=60.0, may_end=False)).endswith("; about 1m left")
    told = dict(facts(target, MetricScale.of(now.study.metric)))["at the end"]
    assert told.startswith("measuring one doubtful latency again; about 1m")
    assert target.to_json()["closing"]["step"] == "measuring one doubtful latency again"
