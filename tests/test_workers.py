"""Several worker processes share a study in PostgreSQL, whatever happens to some of them. ONNX Runtime evaluates."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from crew import METRIC, Workers, copy_of
from networks import mobile_cnn
from searched import invoke, ok, write_inputs
from servers import postgresql_url
from studies.store import Store, optuna_storage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals")
NOTHING = {"leases": 0, "tasks": 0, "running": 0, "open": 0, "untold": 0, "loose": 0, "twice": 0}


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """A folder with inputs and an empty database; temporary files of its own."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "here")
    write_inputs(tmp_path / "here/in", mobile_cnn())
    (tmp_path / "here/mine.py").write_text(METRIC)
    with Workers(tmp_path / "here", postgresql_url()) as found:
        yield found


def search(*more: Any) -> tuple[Any, ...]:
    return ("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--artifacts", "engines", *more)


def test_one_is_killed_and_one_sleeps_and_nothing_is_lost(workers: Workers) -> None:
    options = ("--trials", 12, "--lease", "2s", "--sampler", "random", "--metric", "mine:score")
    killed = workers.start(*search(*options))
    workers.wait_until(lambda: workers.value("select count(*) from bf_study_target"))
    asleep, last = workers.start("worker", "s"), workers.start("worker", "s")
    workers.wait_until(lambda: all(map(workers.under_way, (asleep, last))))
    lost = workers.stop_at_work(killed)
    killed.send_signal(signal.SIGKILL)
    late = workers.stop_at_work(asleep)
    finished = "select id from bf_evaluation where id = :late and takeovers > 0 and status <> 'running'"
    workers.wait_until(lambda: workers.value(finished, late=late))
    asleep.send_signal(signal.SIGCONT)
    assert workers.wait() == [-signal.SIGKILL, 0, 0], workers.all_said()

    assert workers.left_behind() == NOTHING, workers.all_said()
    evaluations = workers.rows("select id, status, takeovers, cast(notes as text) from bf_evaluation order by id")
    assert len(evaluations) == 12
    assert {status for _, status, _, _ in evaluations} == {"ok"}
    assert {number for number, _, takeovers, _ in evaluations if takeovers} >= {lost, late}
    [note] = [notes for number, _, _, notes in evaluations if number == late]
    assert "a second result, of worker w-" in note
    assert "later and was dropped" in workers.said(1)
    assert "going on with it, worker w-" in workers.said(2)
    states = dict(workers.rows("select pid, state from bf_worker"))
    assert (states[asleep.pid], states[last.pid]) == ("ended", "ended")
    assert workers.value("select state from bf_study") == "done"
    kept = {path.name for path in Path("engines").iterdir() if len(path.name) == 64}
    assert kept == {digest for (digest,) in workers.rows("select digest from bf_artifact")}


def test_what_is_needed_once_is_made_once(workers: Workers) -> None:
    """By whichever worker comes first, also where all come before anything is there."""
    workers.start(*search("--trials", 8, "--lease", "2s"))
    workers.wait_until(lambda: workers.value("select count(*) from bf_study_target"))
    for _ in range(2):
        workers.start("worker", "s")
    assert workers.wait() == [0, 0, 0], workers.all_said()
    for step in ("\ncalibrating ", "\nsensitivity of the groups ", "\nmeasuring repeatability ", "\nfinalists "):
        assert sum(step in f"\n{workers.said(number)}" for number in range(3)) <= 1, step
    for step in ("\nsensitivity of the groups ", "\nlatencies within "):
        assert step in workers.all_said()
    assert workers.rows("select role, count(*) from bf_evaluation where role <> '' group by role order by role") == [
        ("baseline:fp32", 1),
        ("baseline:int8", 1),
    ]
    assert (workers.left_behind(), workers.value("select count(*) from bf_evaluation")) == (NOTHING, 8)


def test_ctrl_c_in_one_worker_leaves_the_rest_to_the_others(workers: Workers) -> None:
    first = workers.start(*search("--trials", 8, "--lease", "2s", "--sampler", "random", "--metric", "mine:score"))
    workers.wait_until(lambda: workers.value("select count(*) from bf_study_target"))
    second = workers.start("worker", "s")
    workers.wait_until(lambda: workers.under_way(second))
    number = workers.stop_at_work(first)
    first.send_signal(signal.SIGINT)
    first.send_signal(signal.SIGCONT)
    assert workers.wait() == [130, 0], workers.all_said()
    assert "Traceback" not in workers.all_said()
    assert workers.value("select count(*) from bf_evaluation where id = :number", number=number) == 0
    assert (workers.left_behind(), workers.value("select count(*) from bf_evaluation")) == (NOTHING, 8)
    assert workers.value("select state from bf_study") == "done"
    assert dict(workers.rows("select pid, state from bf_worker")) == {first.pid: "ended", second.pid: "ended"}


def test_the_last_worker_interrupted_leaves_a_study_to_be_resumed(workers: Workers) -> None:
    only = workers.start(*search("--trials", 30, "--sampler", "random", "--metric", "mine:score"))
    workers.wait_until(lambda: workers.value("select count(*) from bf_evaluation where status = 'ok'") or 0 > 2)
    workers.wait_until(lambda: workers.under_way(only))
    only.send_signal(signal.SIGTERM)
    assert workers.wait() == [130], workers.all_said()
    assert workers.value("select state from bf_study") == "interrupted"
    left = workers.left_behind()
    assert (left["leases"], left["tasks"], left["running"]) == (0, 0, 0)
    there = int(workers.value("select count(*) from bf_evaluation"))
    ok("resume", "s", "--trials", there + 2, "--quiet", "--storage", workers.url)
    assert (workers.left_behind(), workers.value("select count(*) from bf_evaluation")) == (NOTHING, there + 2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder, and a database with a finished study of 3 evaluations."""
    folder, url = tmp_path_factory.mktemp("finished"), postgresql_url()
    write_inputs(folder / "in", mobile_cnn())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ok(*search("--trials", 3, "--lease", "2s", "--sampler", "random", "--quiet", "--storage", url))
    return folder, url


@pytest.fixture
def made(finished: tuple[Path, str]) -> Iterator[Workers]:
    """A copy of the database with the finished study."""
    folder, url = finished
    with Workers(folder, copy_of(url)) as found:
        yield found


def test_trials_that_lost_workers_left_open_are_closed_and_tried_again(made: Workers) -> None:
    """One had asked for all, one had its name written alone, and one not even that."""
    storage = optuna_storage(made.url)
    study = optuna.load_study(study_name=str(made.value("select optuna_study from bf_study_target")), storage=storage)
    names = list(study.trials[0].params)
    whole, named, bare = (study.ask() for _ in range(3))
    wanted = {name: trial for trial, name in enumerate(names)}
    for name in names:
        wanted[name] = whole.suggest_int(name, 0, 1)
    for trial in (whole, named):
        trial.set_user_attr("bitfront:worker", "w-gone")
    ok("worker", "s", "--trials", 5, "--quiet", "--storage", made.url)
    states = [trial.state.name for trial in study.trials]
    assert [states[trial.number] for trial in (named, bare)] == ["FAIL", "FAIL"]
    again = [trial for trial in study.trials if trial.params == wanted and trial.state.name == "COMPLETE"]
    assert len(again) >= 1
    assert (made.left_behind(), made.value("select count(*) from bf_evaluation")) == (NOTHING, 5)
    storage.remove_session()
    storage.engine.dispose()


def test_an_evaluation_that_is_lost_with_every_worker_is_given_up(made: Workers) -> None:
    number, trial = lose_one(made, takeovers=3)
    ok("worker", "s", "--trials", 4, "--quiet", "--storage", made.url)
    query = "select status, kind, message, takeovers from bf_evaluation where id = :number"
    [(status, kind, message, takeovers)] = made.rows(query, number=number)
    assert (status, kind, takeovers) == ("failed", "crashed", 4)
    assert message.startswith("lost with its worker 4 times")
    assert made.value("select cast(state as text) from trials where number = :trial", trial=trial) == "FAIL"
    assert (made.left_behind(), made.value("select count(*) from bf_evaluation")) == (NOTHING, 4)


def test_a_lost_evaluation_is_gone_on_with_as_the_trial_that_it_was(made: Workers) -> None:
    number, trial = lose_one(made, takeovers=0)
    ok("worker", "s", "--quiet", "--storage", made.url)
    assert made.rows("select id, status, takeovers from bf_evaluation order by id")[-1] == (number, "ok", 1)
    assert made.value("select cast(state as text) from trials where number = :trial", trial=trial) == "COMPLETE"
    assert made.value("select max(number) from trials") == trial
    assert (made.left_behind(), made.value("select count(*) from bf_evaluation")) == (NOTHING, 3)


def lose_one(made: Workers, *, takeovers: int) -> tuple[int, int]:
    """Make the last evaluation one that a lost worker is at; its id and its trial."""
    number = int(made.value("select max(id) from bf_evaluation"))
    trial = int(made.value("select number from bf_trial where evaluation_id = :number", number=number))
    for table in ("bf_audit", "bf_sample", "bf_score"):
        made.change(f"delete from {table} where evaluation_id = :number", number=number)
    made.change(
        "update bf_evaluation set status = 'running', latency_ms = null, loss = null, takeovers = :takeovers "
        "where id = :number",
        number=number,
        takeovers=takeovers,
    )
    old = "timezone('utc', now()) - interval '1 hour'"
    made.change(f"insert into bf_lease values (:number, 'w-gone', {old}, {old})", number=number)
    of_trial = "trial_id = (select trial_id from trials where number = :trial)"
    made.change(f"delete from trial_values where {of_trial}", trial=trial)
    made.change(f"delete from trial_system_attributes where {of_trial}", trial=trial)
    made.change("update trials set state = 'RUNNING' where number = :trial", trial=trial)
    return number, trial


def test_a_study_is_not_deleted_under_its_workers(made: Workers) -> None:
    (target,) = made.rows("select id from bf_study_target")[0]
    with Store.open(made.url) as store:
        name = store.join_worker(target, host="elsewhere", device="CPU", pid=1)
        refused = invoke("delete", "s", "--yes", "--storage", made.url)
        assert (refused.exit_code, name in refused.stderr) == (2, True), refused.stderr
        store.end_worker(name)
    ok("delete", "s", "--yes", "--storage", made.url)
    assert made.value("select count(*) from bf_study") == 0
    assert made.value("select count(*) from trials") == 0
