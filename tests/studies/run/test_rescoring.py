"""What limits stopped early, when other limits may let it stand: named, and scored to the end once."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search.values import Accuracy, Failure, FailureKind, Precision, Stage
from studies.judging.sentences.no_pick import nearest_text, regained_text
from studies.judging.standing import Standing, read_standing
from studies.options.limits import Limits
from studies.run.finalists import finalist_rows
from studies.run.search_result import Mixes
from studies.show.front_rows import front_json
from studies.store.records import LostEvaluationError
from studies.store.store import Store
from tests.support.command_line import command, environment, invoke, ok, run_sql, write_inputs
from tests.support.crashes.kill_and_resume import untold
from tests.support.crashes.worker_processes import Workers
from tests.support.forks.processes import run_python
from tests.support.servers.databases import postgresql_url
from tests.support.study_rows import add, evaluated, make_study, scored

NOTHING = {"leases": 0, "tasks": 0, "running": 0, "open": 0, "untold": 0, "loose": 0, "twice": 0}


def early(loss: float, half: float, samples: int = 4) -> Accuracy:
    """Of as many of 8 samples."""
    return scored(loss, half, samples)


def judged(store: Store, limits: Limits) -> Standing:
    study = store.studies.load("s")
    return read_standing(store, study, store.targets.of_study(study.id)[0], limits)


def trials(now: Standing, rows: Any) -> list[int]:
    return [int(trial) for trial in now.table.trial[rows]]


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Store]:
    """A study with a baseline, a complete evaluation and six that were stopped early, each in its own way."""
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        target = make_study(store)
        add(store, target, 0, evaluated((2, 2, 2), 4.0, 0.0, 0.001), "baseline:fp32")
        add(store, target, 1, evaluated((1, 1, 1), 3.0, 0.01, 0.002))
        stopped = [(2.0, 0.0, 0.01, {}), (2.2, 0.05, 0.02, {}), (2.4, 0.05, 0.001, {}), (2.6, 0.0, 0.01, {})]
        stopped += [(2.0, 0.0, 0.01, {"memory_bytes": 9999}), (2.0, 0.0, 0.01, {"got": Precision.FP16.id})]
        for trial, (latency_ms, loss, half, changes) in enumerate(stopped, 2):
            codes = tuple(int(bit) for bit in f"{trial:05b}")
            add(store, target, trial, evaluated(codes, latency_ms, loss, half, **changes, accuracy=early(loss, half)))
        yield store


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (Limits(latency_budget_ms=1.9), []),
        (Limits(latency_budget_ms=2.0), [2, 6]),
        (Limits(latency_budget_ms=2.5), [2, 3, 4, 6]),
        (Limits(latency_budget_ms=2.5, max_drop=0.035), [2, 3, 6]),  # 3: 3 to 7 % so far
        (Limits(latency_budget_ms=2.5, max_drop=0.02), [2, 6]),
        (Limits(latency_budget_ms=2.5, accuracy_limit=0.865), [2, 3, 6]),  # FP32 has 0.9
        (Limits(latency_budget_ms=2.5, max_memory_bytes=2000), [2, 3, 4]),
        (Limits(), [2, 3, 4, 5, 6]),  # 7 does not run in what was asked
    ],
)
def test_regained_is_what_was_stopped_and_may_keep_the_limits(filled: Store, limits: Limits, wanted: list[int]) -> None:
    now = judged(filled, limits)
    assert trials(now, now.judgement.regainable) == wanted
    assert not (now.judgement.regainable & now.judgement.front).any()


def test_the_nearest_may_have_been_stopped_early_where_only_the_latency_is_missed(filled: Store) -> None:
    now = judged(filled, Limits(latency_budget_ms=1.9))
    assert [nearest_text(now, near) for near in now.judgement.nearest()] == [
        "trial 2: latency is 1.05 × the budget of 1.9 ms (stopped early)",
        "trial 6: latency is 1.05 × the budget of 1.9 ms (stopped early)",
        "trial 3: latency is 1.16 × the budget of 1.9 ms (stopped early)",
    ]
    texts = [nearest_text(now, near) for near in now.judgement.nearest(early=False)]
    assert texts == [
        "trial 1: latency is 1.58 × the budget of 1.9 ms",
        "trial 0: latency is 2.1 × the budget of 1.9 ms",
    ]
    assert trials(now, finalist_rows(now)) == [1, 0]
    now = judged(filled, Limits(latency_budget_ms=1.9, max_drop=0.04, max_memory_bytes=2000))
    assert [int(now.table.trial[near.row]) for near in now.judgement.nearest()] == [
        2,
        5,
        1,
    ]  # 3, 4 miss the loss, 6 the memory
    now = judged(filled, Limits(max_drop=-0.5))
    assert not any(now.measures.stopped_rows[near.row] for near in now.judgement.nearest(9))


def test_what_may_keep_the_limits_is_named_with_what_to_do(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = judged(filled, Limits(latency_budget_ms=2.0, max_memory_bytes=2000))
    assert regained_text(now) == (
        "1 evaluation may keep these limits but was stopped early under other ones (trial 2); "
        "`bitfront resume s --storage sqlite:///a.db` with these limits scores it to the end"
    )
    assert regained_text(judged(filled, Limits(latency_budget_ms=1.9))) == ""
    target = now.target.id
    for trial in range(8, 10):
        codes = tuple(int(bit) for bit in f"{trial:05b}")
        add(filled, target, trial, evaluated(codes, 2.0, 0.0, 0.01, accuracy=early(0.0, 0.01)))
    now = judged(filled, Limits())
    assert regained_text(now).startswith("7 evaluations may keep these limits but were stopped early")
    assert "(trials 2, 3, 4, 5, 6, …)" in regained_text(now)
    shown = front_json(now, Mixes(filled.evaluations.assignments(target)))
    assert shown["stopped_early"] == [2, 3, 4, 5, 6, 8, 9]


# -- the store ---------------------------------------------------------------------------------------------------------


def test_what_failed_on_the_final_data_is_judged_anew_when_it_was_built_again(store: Store) -> None:
    target = make_study(store)
    number = add(store, target, 5, evaluated((1, 2), 2.0, 0.05, 0.02, accuracy=early(0.05, 0.02)))
    store.evaluations.set_final_failure(number, "top1", "outputs are infinite")
    assert judged(store, Limits()).final.unscorable.all()
    store.claims.replace_stopped(number, evaluated((1, 2), 2.1, 0.03, 0.004), worker="w1")
    now = judged(store, Limits())
    assert (store.evaluations.load(number).final_failure, trials(now, now.final.unscorable), now.picks.accurate) == (
        "",
        [],
        0,
    )


def test_one_that_fails_when_it_is_scored_to_the_end_has_failed(store: Store) -> None:
    target = make_study(store)
    number = add(store, target, 5, evaluated((1, 2), 2.0, 0.05, 0.02, accuracy=early(0.05, 0.02)))
    evaluation = store.evaluations.load(number).evaluation
    failed = Failure(Stage.ACCURACY, FailureKind.NON_FINITE, "NaN on samples 4 to 8", "")
    store.claims.replace_stopped(
        number, evaluated((1, 2), 2.1, 0.0, 0.0, failure=failed, accuracy=None, audit=evaluation.audit), worker="w1"
    )
    found = store.evaluations.load(number)
    assert (found.status, found.evaluation.failure) == ("failed", failed)
    assert found.evaluation.accuracy is None
    assert found.trials == (5,)
    now = judged(store, Limits())
    assert (now.measures.stopped_rows.any(), now.measures.finished_count) == (False, 1)
    with pytest.raises(LostEvaluationError):
        store.claims.replace_stopped(number, evaluation, worker="w2")


# -- resuming ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and temporary files of its own."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    return tmp_path / "here"


def searched(*more: Any) -> tuple[Any, ...]:
    """A search that stops all but its baselines early: none meets the budget."""
    return ("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--latency-budget", "1ns", *more)


STOPPED = "select id from bf_evaluation where status = 'ok' and samples < total_samples"
SCORING = "select name from bf_task where name like 'scoring %'"


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["guided", "random"])
def test_loosened_limits_get_back_what_was_stopped(here: Path, sampler: str) -> None:
    write_inputs(here / "in", samples=1000)
    ok(*searched("--trials", 5, "--max-drop", "50%", "--sampler", sampler, "--keep-engines", "all"))
    before = run_sql("select id, digest, started_at, finished_at from bf_evaluation order by id")
    engines = run_sql(f"select artifact from bf_evaluation where id in ({STOPPED})")
    assert len(run_sql(STOPPED)) == 3
    told = run_sql("select count(*) from bf_trial")[0][0]
    assert "3 evaluations may keep these limits" in ok("front", "s", "--latency-budget", "none")
    ok("report", "s", "--out", "r.html", "--latency-budget", "none")
    assert "3 evaluations may keep these limits" in Path("r.html").read_text(encoding="utf-8")

    said = invoke("resume", "s", "--latency-budget", "none").output
    assert "scoring 3 evaluations on the rest of the samples: earlier limits stopped them early" in said
    assert said.count("now scored on all samples: ") == 3
    assert "5 evaluations are done" in said
    assert "may keep these limits" not in said
    assert run_sql(STOPPED) == []
    assert run_sql("select id, digest, started_at, finished_at from bf_evaluation order by id") == before
    assert untold(here) == []
    assert run_sql("select count(*) from bf_trial where reused") == [(told - 5 + 3,)]
    assert run_sql("select count(*) from trials where state in ('RUNNING', 'WAITING')") == [(0,)]
    found = json.loads(ok("front", "s", "--json"))
    assert (found["evaluations"], found["stopped_early"]) == (5, [])
    kept = {name for (name,) in run_sql("select artifact from bf_evaluation")}
    known = {name for (name,) in run_sql("select digest from bf_artifact where kind = 'engine'")}
    assert kept == known, engines

    said = invoke("resume", "s", "--trials", 6).output
    assert "on the rest of the samples" not in said
    assert "6 evaluations are done" in said


@pytest.mark.slow
def test_what_still_misses_the_limits_stays_and_the_rest_heeds_the_time_limit(here: Path) -> None:
    write_inputs(here / "in", samples=1000)
    ok(*searched("--trials", 3))
    stopped = run_sql(STOPPED)
    said = invoke("resume", "s", "--latency-budget", "2ns", "--trials", 4).output
    assert "on the rest of the samples" not in said
    assert run_sql(STOPPED)[: len(stopped)] == stopped != []
    said = ok("resume", "s", "--latency-budget", "none", "--time-limit", "0.001ms")
    assert len(run_sql(STOPPED)) == 2
    assert "2 evaluations may keep these limits but were stopped early" in said
    ok("resume", "s", "--time-limit", "none", "--quiet")
    assert run_sql(STOPPED) == []


# Run by a process before anything else: when it first stores a result scored to the end, a signal before or after it.
SIGNALLED = """
import os, signal
from studies.store.repositories.claims import Claims
replace = Claims.replace_stopped
def signalled(self, *arguments, **named):
    Claims.replace_stopped = replace
    if {after}:
        replace(self, *arguments, **named)
    os.kill(os.getpid(), signal.{signal})
    if not {after}:
        replace(self, *arguments, **named)
Claims.replace_stopped = signalled
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals")
def test_a_kill_while_scoring_to_the_end_loses_nothing(here: Path) -> None:
    """Also where it comes between the result and Optuna's word of it, which the next run sees to."""
    write_inputs(here / "in", samples=1000)
    ok(*searched("--trials", 5, "--sampler", "random", "--quiet"))
    for after, left in ((False, 3), (True, 2)):
        words = command("resume", "s", "--latency-budget", "none")
        words[2] = SIGNALLED.format(after=after, signal="SIGKILL") + words[2]
        ended = run_python(words, env=environment())
        assert (ended.returncode, len(run_sql(STOPPED))) == (-signal.SIGKILL, left), ended.stderr
    said = invoke("resume", "s").output
    assert "scoring 2 evaluations on the rest of the samples" in said
    assert run_sql(STOPPED) == []
    assert run_sql("select count(*), count(distinct digest) from bf_evaluation") == [(5, 5)]
    assert untold(here) == []
    assert run_sql("select count(*) from bf_task") == [(0,)]
    assert run_sql("select count(*) from trials where state in ('RUNNING', 'WAITING')") == [(0,)]
    told = run_sql("select evaluation_id from bf_trial group by evaluation_id having count(*) > 1")
    assert {number for (number,) in told} >= {3, 4, 5}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals")
def test_several_workers_score_each_to_the_end_once(here: Path) -> None:
    """One sleeps over its result for longer than its lease: that comes late and changes nothing."""
    write_inputs(here / "in", samples=1000)
    with Workers(here, postgresql_url()) as workers:
        storage = ("--storage", workers.url, "--artifacts", "engines", "--lease", "3s", "--quiet")
        ok(*searched("--trials", 8, "--sampler", "random", *storage))
        stopped = [number for (number,) in workers.rows(f"{STOPPED} order by id")]
        assert len(stopped) == 6
        given = ("s", "--latency-budget", "none", "--trials", 8)
        first = workers.start("resume", *given, first=SIGNALLED.format(after=False, signal="SIGSTOP"))
        workers.wait_until_stopped(first)
        assert workers.rows(SCORING) == [(f"scoring {stopped[0]}",)]
        workers.start("resume", *given)
        workers.start("worker", "s")
        workers.wait_until(lambda: not workers.rows(STOPPED))
        first.send_signal(signal.SIGCONT)
        assert workers.wait() == [0, 0, 0], workers.all_said()
        assert f"evaluation {stopped[0]}: meanwhile another worker has scored it on all samples" in workers.said(0)
        said = [
            line.split(",")[0] for line in workers.all_said().splitlines() if ", now scored on all samples: " in line
        ]
        assert len(said) == len(set(said)) == 6
        assert workers.left_behind() == NOTHING
        assert workers.value("select count(*) from bf_evaluation") == 8
