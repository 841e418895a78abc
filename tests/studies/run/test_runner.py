"""The runner's corners: what a killed run left open, retries, and the reasons to stop."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from search.graph.model import load
from search.sampler.registry import sampler_named
from search.space.choices import Space, make_space
from search.values import Capability, Precision
from studies.store.repositories.claims import Claims
from studies.trials.proposals import Outcome, Proposals
from tests.support.command_line import DATABASE, copy_finished, invoke, ok, run_sql, three_layers, tree, write_inputs
from tests.support.crashes.kill_and_resume import untold
from tests.support.networks import mobile_cnn, save

pytestmark = pytest.mark.slow

URL = f"sqlite:///{DATABASE}"


@pytest.fixture
def studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose default database holds the finished study `small`."""
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    return tmp_path


def states() -> list[str]:
    return [state for (state,) in run_sql("select state from trials order by number")]


# -- what a killed run left open ---------------------------------------------------------------------------------------


def test_recorded_but_not_told(studied: Path) -> None:
    before = run_sql("select objective, value from trial_values join trials using (trial_id) where number = 1")
    run_sql("delete from trial_values where trial_id = (select trial_id from trials where number = 1)")
    run_sql("update trials set state = 'RUNNING', datetime_complete = null where number = 1")
    ok("resume", "small")
    assert states()[1] == "COMPLETE"
    after = run_sql("select objective, value from trial_values join trials using (trial_id) where number = 1")
    # Its latency is on the scale of now: baselines that came later count in it.
    assert [value for _, value in sorted(after)] == pytest.approx([value for _, value in sorted(before)], rel=0.5)
    assert run_sql("select count(*) from bf_evaluation") == [(4,)]


def test_repeated_but_neither_linked_nor_told(studied: Path) -> None:
    study = optuna.load_study(study_name=run_sql("select optuna_study from bf_study_target")[0][0], storage=URL)
    study.enqueue_trial(study.trials[0].params)
    trial = study.ask()
    for name in study.trials[0].params:
        trial.suggest_int(name, 0, 1)
    ok("resume", "small")
    assert states()[trial.number] == "COMPLETE"
    assert json.loads(ok("show", "small", trial.number, "--json"))["trial"] == 0
    assert untold(studied) == []


def test_asked_but_not_begun(studied: Path) -> None:
    study = optuna.load_study(study_name=run_sql("select optuna_study from bf_study_target")[0][0], storage=URL)
    trial = study.ask()  # killed before it had any parameter
    ok("resume", "small", "--trials", 5)
    assert states()[trial.number] == "FAIL"
    assert "RUNNING" not in states()
    assert run_sql("select count(*) from bf_evaluation where status = 'ok'") == [(5,)]


def test_begun_but_not_recorded(studied: Path) -> None:
    """The row of a killed evaluation goes, and its assignment is proposed again."""
    [(number, evaluation, digest)] = run_sql(
        "select number, e.id, digest from bf_trial t join bf_evaluation e on e.id = t.evaluation_id "
        "where role = '' and not reused order by number desc limit 1"
    )
    for table in ("bf_audit", "bf_sample", "bf_score"):
        run_sql(f"delete from {table} where evaluation_id = ?", evaluation)
    run_sql("update bf_evaluation set status = 'running', raw_ms = null, loss = null where id = ?", evaluation)
    run_sql("delete from trial_values where trial_id = (select trial_id from trials where number = ?)", number)
    run_sql("update trials set state = 'RUNNING' where number = ?", number)
    ok("resume", "small")
    assert states()[number] == "FAIL"
    found = run_sql(
        "select number, status from bf_trial t join bf_evaluation e on e.id = t.evaluation_id where digest = ?", digest
    )
    assert found == [(max(len(states()) - 1, number + 1), "ok")]
    refused = invoke("show", "small", number)
    assert (refused.exit_code, "was interrupted" in refused.stderr) == (2, True)


def test_ctrl_c_just_as_an_evaluation_begins(studied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held back until the row is there, whose number nobody has been told then."""
    begin = Claims.begin

    def interrupted(*args: Any, **kwargs: Any) -> int:
        begin(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(Claims, "begin", interrupted)
    assert invoke("resume", "small", "--trials", 5).exit_code == 130
    assert run_sql("select status, count(*) from bf_evaluation group by status") == [("ok", 4)]
    assert states()[4:] == ["FAIL", "WAITING"]
    monkeypatch.undo()
    monkeypatch.chdir(studied)
    ok("resume", "small", "--trials", 5)
    assert states()[4:] == ["FAIL", "COMPLETE"]
    assert run_sql("select status, count(*) from bf_evaluation group by status") == [("ok", 5)]


def test_one_that_is_interrupted_before_it_searches_leaves_no_study_running(
    studied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that ended just before took it for one that goes on."""
    run_sql("update bf_study set state = 'running'")
    before_the_search = "studies.run.local_run.remember"

    def interrupted(*args: Any, **kwargs: Any) -> None:
        assert run_sql("select count(*) from bf_worker where ended_at is null") == [(1,)]
        raise KeyboardInterrupt

    monkeypatch.setattr(before_the_search, interrupted)
    assert invoke("resume", "small", "--trials", 5).exit_code == 130
    assert run_sql("select state from bf_study") == [("interrupted",)]


# -- proposals ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    model = load(save(three_layers(), tmp_path_factory.mktemp("model") / "m.onnx"))
    return make_space(model, Capability({Precision.INT8: frozenset({"Conv", "Gemm"})}))


def proposals(space: Space) -> Proposals:
    return Proposals(optuna.storages.InMemoryStorage(), "s", space, sampler_named("random"), 0)


def test_an_assignment_that_is_always_cut_off_is_not_proposed_for_ever(space: Space) -> None:
    made = proposals(space)
    wanted = space.uniform(Precision.INT8)
    made.enqueue(wanted)
    for _ in range(4):  # the first time and three retries
        trial, assignment = made.ask()
        assert assignment == wanted
        made.give_up(trial)
    assert made.study.get_trials(states=(optuna.trial.TrialState.WAITING,)) == []
    made.enqueue(wanted)  # asked for anew, it has all its retries again
    assert made.ask()[1] == wanted


def test_what_waits_already_or_is_under_way_is_not_enqueued_twice(space: Space) -> None:
    made = proposals(space)
    for _ in range(2):
        made.enqueue(space.uniform(Precision.FP32))
    made.ask()
    made.enqueue(space.uniform(Precision.FP32))
    assert len(made.study.trials) == 1


def test_what_was_not_begun_for_lack_of_room_is_proposed_again_as_often_as_it_takes(space: Space) -> None:
    made = proposals(space)
    wanted = space.uniform(Precision.INT8)
    made.enqueue(wanted)
    for _ in range(6):
        trial, assignment = made.ask()
        assert assignment == wanted
        made.put_back(trial)
    assert [trial.state.name for trial in made.study.trials] == ["FAIL"] * 6 + ["WAITING"]


def test_a_trial_that_was_lost_before_it_had_its_parameters_is_proposed_again_if_it_was_enqueued(space: Space) -> None:
    made = proposals(space)
    wanted = space.uniform(Precision.INT8)
    made.enqueue(wanted)
    enqueued, bare = made.study.ask(), made.study.ask()
    open_trials = made.open_trials()
    assert [made.assignment_of(trial) for trial in open_trials] == [wanted, None]
    for trial in open_trials:
        made.give_up(trial)
    assert [made.study.trials[trial.number].state.name for trial in (enqueued, bare)] == ["FAIL", "FAIL"]
    assert made.ask()[1] == wanted


def test_a_result_for_a_trial_that_another_worker_closed_is_told_by_a_later_one(space: Space) -> None:
    made = proposals(space)
    (closed, asked), (finished, _) = made.ask(), made.ask()
    made.study.tell(closed.number, state=optuna.trial.TrialState.FAIL)
    made.study.tell(finished.number, (1.0, 0.0))
    outcome = Outcome((1.5, 0.01), {"latency": 0.5}, (0.01, 0.0, 1.0))
    made.tell(closed, outcome)
    made.tell(finished, outcome)
    made.tell(finished, Outcome(None, {}))
    made.give_up(finished)
    assert [trial.state.name for trial in made.study.trials][:2] == ["FAIL", "COMPLETE"]
    assert made.study.trials[finished.number].values == [1.0, 0.0]
    assert made.ask()[1] == asked


def test_workers_draw_other_numbers_from_one_seed_and_sign_what_they_ask_for(space: Space) -> None:
    asked = []
    for rank in range(3):
        storage = optuna.storages.InMemoryStorage()
        made = Proposals(storage, "s", space, sampler_named("random"), 0, worker=f"w-{rank}", rank=rank)
        asked.append([made.ask()[1].digest for _ in range(8)])
        assert {trial.user_attrs["bitfront:worker"] for trial in made.study.trials} == {f"w-{rank}"}
    assert len({tuple(each) for each in asked}) == 3
    alone = proposals(space)
    assert [alone.ask()[1].digest for _ in range(8)] == asked[0]
    assert alone.study.trials[0].user_attrs == {}


def test_failures_are_told_as_such_and_limits_as_constraints(space: Space) -> None:
    made = proposals(space)
    trial, _ = made.ask()
    made.tell(trial, Outcome(None, {}))
    trial, _ = made.ask()
    made.tell(trial, Outcome((1.5, 0.01), {"latency": 0.5, "obeyed": 0.0}))
    failed, done = made.study.trials
    assert (failed.state.name, failed.values) == ("FAIL", None)
    assert (done.state.name, done.values) == ("COMPLETE", [1.5, 0.01])
    assert done.constraints == {"latency": 0.5, "obeyed": 0.0}
    assert made.open_trials() == []


def test_a_neighbour_differs_in_few_decisions_and_comes_next(space: Space) -> None:
    made = proposals(space)
    start = space.uniform(Precision.FP32)
    neighbour = made.enqueue_neighbour(start)
    assert made.ask()[1] == neighbour
    assert sum(neighbour[group] != start[group] for group in start) <= 1


# -- reasons to stop ---------------------------------------------------------------------------------------------------


def test_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in", mobile_cnn())
    inputs = ("in/model.onnx", "--data", "in/data.npz", "--study", "s", "--sampler", "random")
    said = ok("search", *inputs, "--trials", 60, "--patience", 3)
    assert "the front did not improve during the last 3 evaluations" in said
    assert 4 <= run_sql("select count(*) from bf_evaluation")[0][0] < 60


@pytest.mark.slow
def test_a_search_ends_where_no_better_mix_is_expected_and_goes_on_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in", mobile_cnn())
    said = ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 40)
    assert "no mix is expected to be better than what was found by more than can be measured" in said
    done = run_sql("select count(*) from bf_evaluation")[0][0]
    assert 9 <= done <= 20, "two uniform assignments, and at least seven whose forecasts decide"
    assert "stopped because no better mix is expected; continue with `bitfront resume s --patience none" in ok(
        "status", "s"
    )
    assert "no mix is expected to be better" in ok("resume", "s", "--trials", 41)
    more = run_sql("select count(*) from bf_evaluation")[0][0]
    assert done + 7 <= more < 41
    assert f"{more + 2} evaluations are done" in ok("resume", "s", "--trials", more + 2, "--patience", "none")


@pytest.mark.slow
def test_a_search_goes_on_where_what_is_certain_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("studies.run.stop.is_certain_pick_slow", lambda now: True)
    write_inputs(tmp_path / "in", mobile_cnn())
    said = ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 22)
    assert "22 evaluations are done" in said, "without it the search ends by itself after 9 to 20"


def test_time_limit(studied: Path) -> None:
    said = ok("resume", "small", "--trials", 8, "--time-limit", "1ms")
    assert "the time limit is reached with 4 of 8 evaluations done" in said
    assert "every one of the 8 assignments" in ok("resume", "small", "--trials", 9, "--time-limit", "none")


def test_a_total_below_what_is_finished_is_refused(studied: Path) -> None:
    before = tree(studied)
    refused = invoke("resume", "small", "--trials", 3)
    assert refused.exit_code == 2
    assert "--trials 3: " in refused.stderr
    assert "4 are finished" in refused.stderr
    assert tree(studied) == before
    assert "4 evaluations are done" in ok("resume", "small", "--trials", 4)


def test_an_accuracy_limit_that_fp32_itself_misses_ends_the_search_after_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    with np.load("in/data.npz") as data:
        arrays = dict(data)
    arrays["labels"][::2] += 1  # half of them are wrong now
    np.savez("in/data.npz", **arrays)
    inputs = ("in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 4, "--sampler", "random")
    for words in (("search", *inputs, "--accuracy-limit", "90%"), ("resume", "s"), ("resume", "s", "--trials", 5)):
        refused = invoke(*words)
        assert refused.exit_code == 1
        said = refused.stderr.partition("error: ")[2]
        assert said.count("\n") == 1
        assert re.search(r"It reaches top1 \d+(\.\d+)? % on the search samples, and at least 90 % is required", said)
        assert said.endswith("bitfront resume s --accuracy-limit VALUE\n")
        assert run_sql("select role, status from bf_evaluation") == [("baseline:fp32", "ok")]
        assert run_sql("select state from bf_study") == [("interrupted",)]
        assert "RUNNING" not in states()
    assert "5 evaluations are done" in ok("resume", "s", "--accuracy-limit", "10%")
    assert run_sql("select count(*) from bf_evaluation") == [(5,)]
    assert invoke("resume", "s", "--accuracy-limit", "90%").exit_code == 1  # also where all is evaluated


@pytest.mark.parametrize("sampler", ["guided", "random"])
def test_a_budget_below_every_forecast_is_told_once_and_the_search_goes_on(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    inputs = ("in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 3, "--sampler", sampler)
    said = invoke("search", *inputs, "--latency-budget", "1ns")
    assert said.exit_code == 0, said.output
    [least] = re.findall(r"the budget 0\.000001 ms is below (\S+) ms, which the forecasts call the least", said.stderr)
    shown = [json.loads(ok("show", "s", trial, "--json"))["latency"]["value_ms"] for trial in range(3)]
    # The scale of latencies changes a little with every baseline that is measured.
    assert min(shown) / 5 < float(least) < 3 * min(shown)
    before = said.stderr.partition("which the forecasts")[0]
    assert "2/3 trial 1" in before  # after the uniform assignments
    assert "3/3 trial 2" not in before
    assert "3 evaluations are done" in said.stdout
    generous = invoke("resume", "s", "--trials", 4, "--latency-budget", "1s")
    assert "call reachable" not in generous.stderr


def test_drift_is_measured_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("studies.run.hooks.upkeep.DRIFT_EVERY", 2)
    write_inputs(tmp_path / "in", mobile_cnn())
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 6)
    [(rounds,)] = run_sql(
        "select count(*) from bf_sample s join bf_evaluation e on e.id = s.evaluation_id "
        "where e.role = 'baseline:fp32' and s.role = 'candidate' and round > 0"
    )
    assert rounds >= 3


# -- engines that were damaged -----------------------------------------------------------------------------------------


def test_finalists_whose_engines_are_damaged_are_built_again(studied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.run.finish._CONFIRMATIONS", 99)  # every pick's turn comes, whatever is measured
    run_sql("delete from bf_score where split = 'final'")
    engines = [digest for (digest,) in run_sql("select digest from bf_artifact where kind = 'engine'")]
    for digest in engines:
        path = studied / f"{DATABASE}.artifacts" / digest
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said = invoke("resume", "small")
    assert said.exit_code == 0, said.output
    assert "its kept engine is damaged, so it is built again" in said.output
    finalists = [row for row in json.loads(ok("front", "small", "--json"))["rows"] if row["picks"]]
    assert finalists
    assert all(row["final_loss"] is not None for row in finalists)
