"""Several worker processes share a study in PostgreSQL, whatever happens to some of them. ONNX Runtime evaluates."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from studies.store.store import Store, optuna_storage
from tests.support.command_line import invoke, ok, write_inputs
from tests.support.crashes.worker_processes import HELD, METRIC, Workers, copy_of
from tests.support.networks import mobile_cnn
from tests.support.servers.databases import postgresql_url
from tests.support.study_rows import TARGET

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals"), pytest.mark.slow]
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
    options = ("--trials", 6, "--lease", "2s", "--sampler", "random", "--metric", "mine:score")
    killed = workers.start(*search(*options), first=HELD)
    workers.wait_until(lambda: workers.value("select count(*) from bf_study_target"))
    asleep = workers.start("worker", "s", first=HELD)
    lost, late = map(workers.wait_until_held, (killed, asleep))
    last = workers.start("worker", "s")
    workers.wait_until(lambda: workers.value("select count(distinct worker) from bf_evaluation") == 3)
    killed.send_signal(signal.SIGKILL)
    asleep.send_signal(signal.SIGSTOP)
    finished = "select id from bf_evaluation where id = :late and takeovers > 0 and status <> 'running'"
    workers.wait_until(lambda: workers.value(finished, late=late))
    asleep.send_signal(signal.SIGCONT)
    workers.release(asleep)
    assert workers.wait() == [-signal.SIGKILL, 0, 0], workers.all_said()

    assert workers.left_behind() == NOTHING, workers.all_said()
    evaluations = workers.rows("select id, status, takeovers, cast(notes as text) from bf_evaluation order by id")
    assert len(evaluations) == 6
    assert {status for _, status, _, _ in evaluations} == {"ok"}
    assert {number for number, _, takeovers, _ in evaluations if takeovers} >= {lost, late}
    [note] = [notes for number, _, _, notes in evaluations if number == late]
    assert "a second result, of worker w-" in note
    assert "later and was dropped" in workers.said(1)
    assert "this worker continues it, because worker w-" in workers.said(2)
    states = dict(workers.rows("select pid, state from bf_worker"))
    assert (states[asleep.pid], states[last.pid]) == ("ended", "ended")
    assert workers.value("select state from bf_study") == "done"
    kept = {path.name for path in Path("engines").iterdir() if len(path.name) == 64}
    assert kept == {digest for (digest,) in workers.rows("select digest from bf_artifact")}


# What a worker runs before, so that METRIC holds the process that measures while others go on to build.
HELD_BUILDING = """
import os
from pathlib import Path
from studies.run.pipeline.parallel import ParallelPipeline
os.environ["HELD"] = f"held{os.getpid()}"
start = ParallelPipeline.start
def held(pipeline, claim):
    start(pipeline, claim)
    if claim.number >= 4:
        Path(os.environ["HELD"]).touch()
ParallelPipeline.start = held
"""


def test_what_a_killed_worker_had_in_flight_is_taken_over_one_by_one(workers: Workers) -> None:
    """By a worker that has several in flight itself, none of which it takes for lost."""
    options = ("--trials", 12, "--lease", "2s", "--sampler", "random", "--builders", 2, "--metric", "mine:score")
    killed = workers.start(*search(*options), first=HELD_BUILDING)
    query = "select count(*) from bf_lease l join bf_worker w on w.name = l.worker where w.pid = :pid"
    workers.wait_until(lambda: Path(f"held{killed.pid}").exists() and workers.value(query, pid=killed.pid) >= 3)
    last = workers.start("worker", "s")
    workers.wait_until(lambda: (workers.value(query, pid=last.pid) or 0) >= 1)
    killed.send_signal(signal.SIGKILL)
    assert workers.wait() == [-signal.SIGKILL, 0], workers.all_said()
    assert workers.left_behind() == NOTHING, workers.all_said()
    assert workers.rows("select status, count(*) from bf_evaluation group by status") == [("ok", 12)]
    assert workers.said(1).count("this worker continues it") >= 2


def test_what_is_needed_once_is_made_once(workers: Workers) -> None:
    """By whichever worker comes first, also where all come before anything is there."""
    workers.start(*search("--trials", 6, "--lease", "20s", "--verbose"))
    workers.wait_until(lambda: workers.value("select count(*) from bf_study_target"))
    for _ in range(2):
        workers.start("worker", "s", "--verbose")
    assert workers.wait() == [0, 0, 0], workers.all_said()
    once = "calibrating", "sensitivity of the groups", "measuring repeatability", "measuring finalists"
    for step in (f"\n{words} " for words in once):
        assert sum(step in f"\n{workers.said(number)}" for number in range(3)) <= 1, step
    for step in ("\nsensitivity of the groups ", "\nlatencies within "):
        assert step in workers.all_said()
    assert workers.rows("select role, count(*) from bf_evaluation where role <> '' group by role order by role") == [
        ("baseline:fp32", 1),
        ("baseline:int8", 1),
    ]
    assert (workers.left_behind(), workers.value("select count(*) from bf_evaluation")) == (NOTHING, 6)


def test_ctrl_c_in_one_worker_leaves_the_rest_to_the_others(workers: Workers) -> None:
    options = ("--trials", 5, "--lease", "20s", "--sampler", "random", "--metric", "mine:score")
    first = workers.start(*search(*options), first=HELD)
    number = workers.wait_until_held(first)
    second = workers.start("worker", "s")
    workers.wait_until(lambda: workers.value("select count(distinct worker) from bf_evaluation") == 2)
    first.send_signal(signal.SIGINT)
    assert workers.wait() == [130, 0], workers.all_said()
    assert "Traceback" not in workers.all_said()
    assert workers.value("select count(*) from bf_evaluation where id = :number", number=number) == 0
    assert (workers.left_behind(), workers.value("select count(*) from bf_evaluation")) == (NOTHING, 5)
    assert workers.value("select state from bf_study") == "done"
    assert dict(workers.rows("select pid, state from bf_worker")) == {first.pid: "ended", second.pid: "ended"}


def test_the_last_worker_interrupted_leaves_a_study_to_be_resumed(workers: Workers) -> None:
    only = workers.start(*search("--trials", 30, "--sampler", "random", "--metric", "mine:score"))
    workers.wait_until(lambda: (workers.value("select count(*) from bf_evaluation where status = 'ok'") or 0) > 2)
    workers.wait_until(lambda: workers.under_way(only))
    only.send_signal(signal.SIGTERM)
    assert workers.wait() == [130], workers.all_said()
    assert workers.value("select state from bf_study") == "interrupted"
    left = workers.left_behind()
    assert (left["leases"], left["tasks"], left["running"]) == (0, 0, 0)
    there = int(workers.value("select count(*) from bf_evaluation"))
    ok("resume", "s", "--trials", there + 2, "--quiet", "--storage", workers.url)
    assert (workers.left_behind(), workers.value("select count(*) from bf_evaluation")) == (NOTHING, there + 2)


def test_one_that_dies_over_the_finalists_is_replaced_by_one_that_waits(workers: Workers) -> None:
    code = "import time\nfrom pathlib import Path\nfrom studies.run import finalists\nplain = finalists.confirm\n"
    code += "def confirm(*given):\n    if not Path('once').exists():\n        Path('once').touch()\n"
    code += "        time.sleep(600)\n    return plain(*given)\nfinalists.confirm = confirm"
    first = workers.start(*search("--trials", 3, "--lease", "2s", "--sampler", "random"), first=code)
    workers.wait_until(lambda: workers.value("select count(*) from bf_study_target"))
    second = workers.start("worker", "s", first=code)
    workers.wait_until((workers.folder / "once").exists)
    workers.wait_until(lambda: workers.value("select count(*) from bf_worker where state = 'finishing'") == 2)
    holder = "select w.pid from bf_task t join bf_worker w on w.name = t.worker where t.name = 'finalists'"
    {p.pid: p for p in (first, second)}[workers.value(holder)].send_signal(signal.SIGKILL)
    assert sorted(workers.wait()) == [-signal.SIGKILL, 0], workers.all_said()
    assert workers.value("select state from bf_study") == "done"
    assert workers.value("select count(*) from bf_score where split = 'final'") > 0
    assert (workers.left_behind(), workers.value("select count(*) from bf_evaluation")) == (NOTHING, 3)


def test_a_total_raised_while_a_search_begins_stays(workers: Workers) -> None:
    """It writes what it was told when it has joined, which is later than it read the study."""
    search_of_3 = workers.start(*search("--trials", 3, "--sampler", "random", "--metric", "mine:score"), first=HELD)
    workers.wait_until(lambda: workers.value("select count(*) from bf_study_target"))
    with Store.open(workers.url) as store:
        study = store.studies.load("s")
        store.studies.add_options(study.id, {"trials": 5}, seen=study.config)
    workers.wait_until_held(search_of_3)
    workers.release(search_of_3)
    assert workers.wait() == [0], workers.all_said()
    assert workers.value("select cast(config as text) from bf_study").count('"trials": 5,') == 1
    assert (workers.left_behind(), workers.value("select count(*) from bf_evaluation")) == (NOTHING, 5)


STOP = "    os.kill(os.getpid(), signal.SIGSTOP)\n"


def test_one_that_wakes_keeps_to_the_ranges_that_others_calibrated(workers: Workers) -> None:
    """Its own differ, as between processors that round otherwise."""
    code = (
        "import os, signal\nfrom studies.artifacts import folder as artifacts\nplain = artifacts.Artifacts.put_bytes\n"
    )
    code += f"def put(self, data, kind):\n    if kind != 'ranges':\n        return plain(self, data, kind)\n{STOP}"
    code += "    return plain(self, data + b' ', kind)\n"
    options = ("--trials", 4, "--lease", "2s", "--sampler", "random")
    asleep = workers.start(*search(*options), first=f"{code}artifacts.Artifacts.put_bytes = put")
    workers.wait_until_stopped(asleep)
    workers.start("worker", "s")
    stored = workers.wait_until(lambda: workers.value("select ranges_digest from bf_study_target"))
    asleep.send_signal(signal.SIGCONT)
    assert workers.wait() == [0, 0], workers.all_said()
    assert len(workers.rows("select digest from bf_artifact where kind = 'ranges'")) == 2
    assert workers.value("select ranges_digest from bf_study_target") == stored
    assert (workers.left_behind(), workers.value("select count(*) from bf_evaluation")) == (NOTHING, 4)


def test_a_study_that_is_deleted_while_a_worker_sleeps_over_an_evaluation(workers: Workers) -> None:
    options = ("--trials", 12, "--lease", "2s", "--sampler", "random", "--metric", "mine:score")
    asleep = workers.start(*search(*options), first=HELD)
    workers.wait_until_held(asleep)
    asleep.send_signal(signal.SIGSTOP)
    delete(workers)
    asleep.send_signal(signal.SIGCONT)
    workers.release(asleep)
    assert workers.wait() == [1], workers.all_said()
    assert "error: working on study 's': another process deleted it" in workers.said(0)
    assert "Traceback" not in workers.said(0)
    assert workers.rows("select 1 from studies union select 1 from trials union select 1 from bf_artifact") == []
    assert [path.name for path in Path("engines").iterdir() if len(path.name) == 64] == []


def delete(workers: Workers) -> None:
    """Delete the study as soon as nobody counts as at it."""
    workers.wait_until(lambda: invoke("delete", "s", "--yes", "--storage", workers.url).exit_code == 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder, and a database with a finished study of 3 evaluations."""
    folder, url = tmp_path_factory.mktemp("finished"), postgresql_url()
    write_inputs(folder / "in", mobile_cnn())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ok(*search("--trials", 3, "--lease", "60s", "--sampler", "random", "--quiet", "--storage", url))
    return folder, url


@pytest.fixture
def made(finished: tuple[Path, str]) -> Iterator[Workers]:
    """A copy of the database with the finished study."""
    folder, url = finished
    with Workers(folder, copy_of(url)) as found:
        yield found


def test_trials_that_lost_workers_left_open_are_closed_and_tried_again(made: Workers) -> None:
    """One had asked for all, one had its name written alone, and one not even that."""
    make_lease_short(made)
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


def test_of_what_a_script_enqueued_wrongly_each_is_refused_by_one_worker(made: Workers) -> None:
    make_lease_short(made)
    storage = optuna_storage(made.url)
    study = optuna.load_study(study_name=str(made.value("select optuna_study from bf_study_target")), storage=storage)
    name = next(iter(study.trials[0].params))
    for value in ("int8", 5, -1, "int8"):
        study.enqueue_trial({name: value})
    lost = study.ask()  # an older run ended over it
    lost.set_user_attr("bitfront:worker", "w-gone")
    for _ in range(2):
        made.start("worker", "s", "--trials", 6)
    assert made.wait() == [0, 0], made.all_said()
    refused = [trial for trial in study.trials if "bitfront:refused" in trial.user_attrs]
    assert [trial.number for trial in refused] == [lost.number + place for place in range(4)]
    assert {trial.state.name for trial in refused} == {"FAIL"}
    said = made.all_said()
    assert [said.count(f"trial {trial.number} is closed") for trial in refused] == [1] * 4, said
    assert (made.left_behind(), made.value("select count(*) from bf_evaluation")) == (NOTHING, 6)
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


def make_lease_short(made: Workers) -> None:
    with Store.open(made.url) as store:
        store.studies.add_options(store.studies.load("s").id, {"lease_s": 2.0})


def lose_one(made: Workers, *, takeovers: int) -> tuple[int, int]:
    """Make the last evaluation one that a lost worker is at; its id and its trial."""
    number = int(made.value("select max(id) from bf_evaluation"))
    trial = int(made.value("select number from bf_trial where evaluation_id = :number", number=number))
    for table in ("bf_audit", "bf_sample", "bf_score"):
        made.change(f"delete from {table} where evaluation_id = :number", number=number)
    made.change(
        "update bf_evaluation set status = 'running', raw_ms = null, loss = null, takeovers = :takeovers "
        "where id = :number",
        number=number,
        takeovers=takeovers,
    )
    old = "timezone('utc', now()) - interval '1 hour'"
    made.change(f"insert into bf_lease values (:number, 'w-gone', {old})", number=number)
    of_trial = "trial_id = (select trial_id from trials where number = :trial)"
    made.change(f"delete from trial_values where {of_trial}", trial=trial)
    made.change(f"delete from trial_system_attributes where {of_trial}", trial=trial)
    made.change("update trials set state = 'RUNNING' where number = :trial", trial=trial)
    return number, trial


def test_what_a_worker_left_that_was_lost_just_before_a_limit_is_given_back(made: Workers) -> None:
    """It counts as at work for a lease more, and nobody else would see to the study."""
    _, trial = lose_one(made, takeovers=0)
    make_lease_short(made)
    with Store.open(made.url) as store:
        (target,) = made.rows("select id from bf_study_target")[0]
        name = store.workers.join(target, host="elsewhere", device="CPU", pid=1, state="searching")
    now = "timezone('utc', now()) + interval '1 second'"
    made.change(f"update bf_lease set worker = :name, heartbeat = {now}", name=name)
    ok("resume", "s", "--trials", 8, "--time-limit", "1ms", "--quiet", "--storage", made.url)
    assert made.value("select state from bf_study") == "done"
    assert made.value("select cast(state as text) from trials where number = :trial", trial=trial) == "FAIL"
    assert made.value("select count(*) from trials where state = 'WAITING'") == 1
    assert (made.left_behind(), made.value("select count(*) from bf_evaluation")) == (NOTHING, 2)


def test_the_lease_is_not_changed_under_workers(made: Workers) -> None:
    (target,) = made.rows("select id from bf_study_target")[0]
    resume = ("resume", "s", "--lease", "7s", "--quiet", "--storage", made.url)
    with Store.open(made.url) as store:
        name = store.workers.join(target, host="elsewhere", device="CPU", pid=1)
        refused = invoke(*resume)
        assert (refused.exit_code, name in refused.stderr) == (2, True), refused.stderr
        assert (
            "--lease is 7 s, but all workers of a target share one lease, and those that run have 60 s"
            in refused.stderr
        )
        assert store.studies.load("s").config["lease_s"] == 60.0
        store.workers.end(name)
        ok(*resume)
        assert store.studies.load("s").config["lease_s"] == 7.0


def test_a_study_ends_with_the_last_worker_of_any_target(made: Workers) -> None:
    """The first target's lease is over for the second target's worker, but its own is not."""
    make_lease_short(made)
    other = add_slow_worker(made)
    ok("worker", "s", "--trials", 4, "--quiet", "--storage", made.url)
    assert made.value("select state from bf_study") == "running"
    with Store.open(made.url) as store:
        store.workers.end(other)
    ok("worker", "s", "--trials", 5, "--quiet", "--storage", made.url)
    assert made.value("select state from bf_study") == "done"


def test_a_study_is_not_deleted_under_workers_of_a_target_with_a_longer_lease(made: Workers) -> None:
    make_lease_short(made)
    other = add_slow_worker(made)
    before = made.value("select count(*) from trials")
    refused = invoke("delete", "s", "--yes", "--storage", made.url)
    assert (refused.exit_code, other in refused.stderr) == (2, True), refused.stderr
    assert "A process that was killed counts as lost after 60 s." in refused.stderr
    assert (made.value("select count(*) from bf_study"), made.value("select count(*) from trials")) == (1, before)


def add_slow_worker(made: Workers) -> str:
    """A second target with a lease of 60 s, and a worker of it that was heard of 20 s ago; its name."""
    with Store.open(made.url) as store:
        target = store.targets.add(store.studies.load("s").id, TARGET, "s@other", options={"lease_s": 60.0})
        name = store.workers.join(target, host="elsewhere", device="CPU", pid=1, state="searching")
    heard = "timezone('utc', now()) - interval '20 seconds'"
    made.change(f"update bf_worker set heartbeat = {heard} where name = :name", name=name)
    return name


# The last ones: with the study its files go, which all copies of the database name.


def test_a_study_that_is_deleted_while_a_worker_checks_its_inputs(made: Workers) -> None:
    code = "import os, signal\nfrom studies.fleet import join\nplain = join.check_unchanged\n"
    code += f"def check(*given):\n    plain(*given)\n{STOP}join.check_unchanged = check"
    asleep = made.start("worker", "s", "--trials", 8, first=code)
    made.wait_until_stopped(asleep)
    delete(made)
    asleep.send_signal(signal.SIGCONT)
    assert made.wait() == [1], made.all_said()
    assert made.said(0).startswith("error: working on study 's': another process deleted it"), made.said(0)


def test_a_study_is_not_deleted_under_its_workers(made: Workers) -> None:
    (target,) = made.rows("select id from bf_study_target")[0]
    with Store.open(made.url) as store:
        name = store.workers.join(target, host="elsewhere", device="CPU", pid=1)
        refused = invoke("delete", "s", "--yes", "--storage", made.url)
        assert (refused.exit_code, name in refused.stderr) == (2, True), refused.stderr
        store.workers.end(name)
    ok("delete", "s", "--yes", "--storage", made.url)
    assert made.value("select count(*) from bf_study") == 0
    assert made.value("select count(*) from trials") == 0
