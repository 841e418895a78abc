"""Workers, leases and tasks in the database: what expires changes hands once, the first result counts, N means N.

Time passes by moving heartbeats back in the database.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import update

from evaluators.diagnose.group_error import GroupError
from search.values import Failure, FailureKind, Latency, Precision, Stage
from studies.crew import Alone, SharedCrew
from studies.store.database import column_types, database, tables
from studies.store.records import (
    EXPORT,
    CalibrationRecord,
    ChoiceRecord,
    Counts,
    FullStudyError,
    KnownEvaluationError,
    LostEvaluationError,
    TakenOver,
    TargetRecord,
    TaskRecord,
)
from studies.store.repositories.workers import Workers
from studies.store.store import Store
from tests.support.records import choice_record
from tests.support.servers.databases import postgresql_server, postgresql_url
from tests.support.study_rows import ENGINE, STUDY, TARGET, assignment, count, finish, group, measured

LEASE_S = 60.0
WORKERS = 6
T = TypeVar("T")


def join(store: Store, target: int, pid: int = 1) -> str:
    return store.workers.join(target, host="a host", device="CPU", pid=pid)


def begin(store: Store, target: int, worker: str, number: int = 0, **options: Any) -> int:
    chosen = assignment(*(number // 3**place % 3 for place in range(6)))
    return store.claims.begin(target, chosen, chosen.digest, worker, number, **options)


def test_ctrl_c_just_as_a_worker_joins_leaves_none_behind(
    store: Store, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held back until the row is there."""
    for name in ("_add_worker", "end_others"):
        plain = getattr(Workers, name)

        def interrupted(*args: Any, plain: Any = plain) -> None:
            plain(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(Workers, name, interrupted)
        with pytest.raises(KeyboardInterrupt), Alone(store, target, lease_s=LEASE_S):
            pass
        monkeypatch.undo()
    assert [worker.state for worker in store.workers.of_target(target)] == ["ended", "ended"]
    assert store.workers.live(target, LEASE_S) == {}


def grow_old(store: Store, table: type[Any], seconds: float = 2 * LEASE_S) -> None:
    """Let so much time pass since the heartbeats of a table."""
    with database.begin_write(store.database.engine) as connection:
        connection.execute(update(table).values(heartbeat=column_types.utc_ago(seconds)))


def at_once(*calls: Callable[[], T]) -> list[T]:
    """What the calls give, each made in a thread of its own, all at the same moment."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [done.result() for done in [pool.submit(run, call) for call in calls]]


def wait_until(condition: Callable[[], Any], seconds: float = 300) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("nothing happened")


# -- workers -----------------------------------------------------------------------------------------------------------


def test_workers_are_listed_with_what_they_have_done_and_are_at(store: Store, target: int) -> None:
    first, second = join(store, target, 11), join(store, target, 12)
    assert first != second
    store.workers.set_state(first, "searching")
    for trial in (0, 1):
        chosen = assignment(trial)
        number = store.claims.begin(target, chosen, chosen.digest, first, trial)
        store.claims.record(number, measured(chosen), worker=first)
    running = begin(store, target, second, 7)
    store.trials.link(target, 9, running)
    store.workers.end(first)
    one, two = store.workers.of_target(target)
    assert (one.name, one.host, one.device, one.pid, one.state) == (first, "a host", "CPU", 11, "ended")
    assert (one.evaluations, one.evaluation_id, one.trial) == (2, None, None)
    assert (two.evaluations, two.evaluation_id, two.trial) == (0, running, 7)
    assert one.ended_at is not None
    assert (one.live(LEASE_S), two.live(LEASE_S)) == (False, True)
    assert store.workers.live(target, LEASE_S) == {second: "starting"}


def test_a_worker_that_is_silent_counts_as_lost_until_it_is_heard_of_again(store: Store, target: int) -> None:
    name = join(store, target)
    grow_old(store, tables.WorkerRecord)
    assert store.workers.live(target, LEASE_S) == {}
    assert not store.workers.of_target(target)[0].live(LEASE_S)
    assert store.workers.of_target(target)[0].live(3 * LEASE_S)
    store.workers.beat(name)
    assert store.workers.live(target, LEASE_S) == {name: "starting"}


def test_a_beat_renews_all_that_a_worker_holds_and_nothing_else(store: Store, target: int) -> None:
    mine, other = join(store, target), join(store, target)
    held, foreign = begin(store, target, mine, 1), begin(store, target, other, 2)
    for worker, task in ((mine, "band"), (other, "reference")):
        assert store.tasks.take(target, task, worker, LEASE_S)
    for table in (tables.WorkerRecord, tables.LeaseRecord, tables.TaskRecord):
        grow_old(store, table)
    store.workers.beat(mine)
    ages = {running.id: running.heartbeat_age_s or 0 for running in store.claims.find_running(target)}
    assert ages[held] < LEASE_S < ages[foreign]
    assert {task.name: task.heartbeat_age_s < LEASE_S for task in store.tasks.of_target(target)} == {
        "band": True,
        "reference": False,
    }
    assert [worker.live(LEASE_S) for worker in store.workers.of_target(target)] == [True, False]


def test_counts_leave_exports_out(store: Store, target: int) -> None:
    assert store.statistics.counts(target) == Counts(0, 0)
    finish(store, target, 0, 1)
    finish(store, target, 1, 2, failure=Failure(Stage.BUILD, FailureKind.REFUSED, "no"), latency=None, accuracy=None)
    begin(store, target, "w", 5)
    chosen = assignment(0, 1)
    store.claims.begin(target, chosen, chosen.digest, "w", None, EXPORT)
    assert store.statistics.counts(target) == Counts(2, 1)


# -- take-over ---------------------------------------------------------------------------------------------------------


def test_an_expired_evaluation_is_taken_over_as_it_is(store: Store, target: int) -> None:
    lost, taker, last = (join(store, target) for _ in range(3))
    chosen = assignment(0, 2)
    number = store.claims.begin(target, chosen, chosen.digest, lost, 7, "baseline:int8")
    assert store.claims.take_over(target, taker, LEASE_S) is None  # it is alive
    grow_old(store, tables.LeaseRecord)
    assert store.claims.take_over(target, taker, 3 * LEASE_S) is None
    assert store.claims.take_over(target, taker, LEASE_S) == TakenOver(number, lost, 1)
    assert store.claims.take_over(target, last, LEASE_S) is None  # and is renewed by that
    record = store.evaluations.load(number)
    assert (record.status, record.trial, record.role) == ("running", 7, "baseline:int8")
    assert (record.worker, record.evaluation.assignment) == (taker, chosen)
    grow_old(store, tables.LeaseRecord)
    assert store.claims.take_over(target, last, LEASE_S) == TakenOver(number, taker, 2)
    assert [(running.worker, running.takeovers) for running in store.claims.find_running(target)] == [(last, 2)]


def test_the_oldest_expired_one_comes_first_and_only_of_this_target(store: Store, target: int) -> None:
    other = store.targets.add(store.studies.load("demo").id, replace(TARGET, device="H200"), "demo/h200")
    begin(store, other, "w", 1)
    numbers = [begin(store, target, "w", number) for number in (1, 2)]
    grow_old(store, tables.LeaseRecord)
    taken = [store.claims.take_over(target, taker, LEASE_S) for taker in ("one", "two", "three")]
    assert [each.id for each in taken if each is not None] == numbers


def test_what_a_worker_holds_without_knowing_is_given_to_it_again(store: Store, target: int) -> None:
    """As after a commit whose answer was lost: it would renew a lease for ever on what nobody evaluates."""
    name = join(store, target)
    number = begin(store, target, name)
    assert store.claims.take_over(target, name, LEASE_S) == TakenOver(number, name, 0)


def test_what_a_worker_left_when_it_ended_is_taken_over_at_once(store: Store, target: int) -> None:
    ended, taker = join(store, target), join(store, target)
    number = begin(store, target, ended)
    assert store.claims.take_over(target, taker, LEASE_S) is None
    store.workers.end(ended, "failed")
    assert store.claims.take_over(target, taker, LEASE_S) == TakenOver(number, ended, 1)


def test_of_many_that_look_one_takes_each(store: Store, target: int) -> None:
    numbers = [begin(store, target, "lost", number) for number in range(12)]
    grow_old(store, tables.LeaseRecord)

    def take_all(name: str) -> list[int]:
        """As a worker that finishes what it takes before it takes the next."""
        found = []
        while (taken := store.claims.take_over(target, name, LEASE_S)) is not None:
            found.append(taken.id)
            store.claims.record(taken.id, measured(store.evaluations.load(taken.id).evaluation.assignment), worker=name)
        return found

    taken = at_once(*((lambda name=f"w{i}": take_all(name)) for i in range(WORKERS)))
    assert sorted(itertools.chain(*taken)) == numbers
    assert (store.statistics.counts(target), count(store, tables.LeaseRecord)) == (Counts(12, 0), 0)
    with store.database.engine.connect() as connection:
        assert connection.exec_driver_sql("select distinct takeovers from bf_evaluation").all() == [(1,)]


def test_the_first_result_counts_whoever_holds_the_lease(store: Store, target: int) -> None:
    slow, taker = join(store, target), join(store, target)
    number = begin(store, target, slow, 4)
    grow_old(store, tables.LeaseRecord)
    assert store.claims.take_over(target, taker, LEASE_S) == TakenOver(number, slow, 1)
    chosen = store.evaluations.load(number).evaluation.assignment
    store.claims.record(number, measured(chosen, total_s=1.0), "1" * 64, worker=slow)
    with pytest.raises(LostEvaluationError):
        store.claims.record(number, measured(chosen, total_s=9.0), "2" * 64, worker=taker)
    note = store.claims.note_late(number, taker)
    assert note.startswith(f"a second result, of worker {taker}, came ")
    assert note.endswith(" s later and was dropped")
    record = store.evaluations.load(number)
    assert (record.worker, record.evaluation.total_s, record.artifact) == (slow, 1.0, "1" * 64)
    assert record.evaluation.notes == ("note", note)
    assert (count(store, tables.LeaseRecord), count(store, tables.ArtifactRecord)) == (0, 1)
    assert store.files.forget("2" * 64)  # the engine of the dropped result may go
    assert not store.files.forget("1" * 64)
    assert store.claims.note_late(number + 1, taker) == ""


def test_a_result_that_races_with_take_overs_is_stored_once(store: Store, target: int) -> None:
    for trial in range(10):
        number = begin(store, target, "slow", trial)
        chosen = store.evaluations.load(number).evaluation.assignment
        grow_old(store, tables.LeaseRecord)

        def record(worker: str, number: int = number, chosen: Any = chosen) -> str:
            try:
                store.claims.record(number, measured(chosen), worker=worker)
            except LostEvaluationError:
                return ""
            return worker

        def take(worker: str, number: int = number, record: Callable[[str], str] = record) -> str:
            taken = store.claims.take_over(target, worker, LEASE_S)
            return record(worker) if taken is not None else ""

        calls = [lambda: record("slow"), *((lambda name=f"w{i}": take(name)) for i in range(3))]
        winners = [winner for winner in at_once(*calls) if winner]
        assert winners == [store.evaluations.load(number).worker]
    assert (store.statistics.counts(target), count(store, tables.LeaseRecord)) == (Counts(10, 0), 0)


def test_who_was_taken_for_lost_abandons_nothing(store: Store, target: int) -> None:
    number = begin(store, target, "slow")
    grow_old(store, tables.LeaseRecord)
    assert store.claims.take_over(target, "taker", LEASE_S) is not None
    assert not store.claims.abandon(number, "slow")
    assert store.claims.abandon(number, "taker")
    assert [count(store, table) for table in (tables.EvaluationRecord, tables.LeaseRecord, tables.TrialRecord)] == [
        0,
        0,
        0,
    ]
    assert not store.claims.abandon(number, "taker")


def test_a_trial_waits_for_a_running_evaluation(store: Store, target: int) -> None:
    number = begin(store, target, "w", 3)
    store.trials.link(target, 5, number)
    assert store.trials.links(target, 3, 5, 6) == {3: (number, "running"), 5: (number, "running")}
    store.trials.link(target, 5, number)  # again changes nothing
    store.claims.record(number, measured(store.evaluations.load(number).evaluation.assignment))
    assert store.trials.links(target, 5) == {5: (number, "ok")}
    other = finish(store, target, 8, 2)
    with pytest.raises(LostEvaluationError):
        store.trials.link(target, 5, other)  # it has another one
    with pytest.raises(LostEvaluationError):
        store.trials.link(target, 6, other + 1)  # it is gone
    assert store.trials.links(target, 5, 6) == {5: (number, "ok")}


# -- how many ----------------------------------------------------------------------------------------------------------


def test_no_more_are_begun_than_are_wanted(store: Store, target: int) -> None:
    """Of 6 workers that try 5 each, 13 get one, whatever they do at the same time."""

    def try_some(worker: int) -> int:
        begun = 0
        for number in range(5 * worker, 5 * worker + 5):
            try:
                evaluation = begin(store, target, f"w{worker}", number, most=13)
            except FullStudyError:
                continue
            begun += 1
            if number % 2:
                store.claims.record(evaluation, measured(store.evaluations.load(evaluation).evaluation.assignment))
        return begun

    assert sum(at_once(*((lambda worker=worker: try_some(worker)) for worker in range(WORKERS)))) == 13
    assert count(store, tables.EvaluationRecord) == 13
    known = store.evaluations.load(1).evaluation.assignment
    with pytest.raises(KnownEvaluationError):  # what is there is no question of room
        store.claims.begin(target, known, known.digest, "w", 99, most=13)
    chosen = assignment(0, 1)
    store.claims.begin(target, chosen, chosen.digest, "w", None, EXPORT)  # exports do not count
    with pytest.raises(FullStudyError):
        begin(store, target, "w", 700, most=13)
    begin(store, target, "w", 700, most=14)


def test_measuring_again_at_the_same_time_makes_rounds_of_their_own(store: Store, target: int) -> None:
    number = finish(store, target, 0, 1)
    latency = measured(assignment(1)).latency
    assert isinstance(latency, Latency)
    rounds = at_once(*[lambda: store.measurements.add_round(target, {number: latency})] * WORKERS)
    assert sorted(rounds) == list(range(1, WORKERS + 1))
    assert [found.number for found in store.evaluations.load(number).rounds] == list(range(WORKERS + 1))


def test_several_may_add_a_target_at_once(store: Store) -> None:
    study = store.studies.create(STUDY)
    found = at_once(*[lambda: store.targets.add(study, TARGET, "demo/cpu")] * WORKERS)
    assert (len(set(found)), len(store.targets.of_study(study))) == (1, 1)


def test_studies_that_are_made_at_once_share_the_description_of_their_target(store: Store) -> None:
    def make(name: str) -> int:
        target = TargetRecord(target=TARGET, optuna_study=f"{name}/cpu", details={})
        return store.studies.create(STUDY.with_values(name=name), groups=[group(0), group(1)], target=target)

    made = at_once(*[partial(make, f"s{number}") for number in range(WORKERS)])
    targets = [store.targets.of_study(study) for study in made]
    assert {(len(found), found[0].target_id, found[0].optuna_study[2:]) for found in targets} == {
        (1, targets[0][0].target_id, "/cpu")
    }
    assert {tuple(stored.id for stored in store.studies.groups(study)) for study in made} == {("g000", "g001")}


@pytest.mark.slow
def test_many_begin_no_more_than_wanted_whatever_isolation_a_server_has() -> None:
    url = f"{postgresql_url()}?options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"
    with Store.open(url, create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")

        def try_some(worker: int) -> int:
            begun = 0
            for number in range(5 * worker, 5 * worker + 5):
                with suppress(FullStudyError):
                    begin(store, target, f"w{worker}", number, most=13)
                    begun += 1
            return begun

        assert sum(at_once(*((lambda worker=worker: try_some(worker)) for worker in range(WORKERS)))) == 13


def test_of_what_is_found_out_once_the_first_word_stays(store: Store, target: int) -> None:
    """A worker that was stopped over it, and taken for lost, wakes when others use what its successor stored."""
    at_once(*((lambda i=i: store.targets.settle(target, ranges_digest=f"{i}" * 64)) for i in range(WORKERS)))
    (first,) = store.targets.of_study(store.studies.load("demo").id)
    assert first.ranges_digest in [f"{i}" * 64 for i in range(WORKERS)]
    store.targets.settle(target, details={"rebuild": 0.01}, latency_band=0.01)
    store.targets.settle(target, details={"rebuild": 0.5, "late": True}, latency_band=0.5)
    store.targets.settle(target, ranges_digest="e" * 64)
    (now,) = store.targets.of_study(store.studies.load("demo").id)
    assert (now.ranges_digest, now.latency_band, now.details) == (first.ranges_digest, 0.01, {"rebuild": 0.01})


def set_choices(store: Store, target: int, space: tuple[str, tuple[ChoiceRecord, ...], str]) -> None:
    digest, choices, ranges = space
    store.spaces.set_choices(target, digest, choices, CalibrationRecord(ranges))


def test_the_first_space_stays_with_its_ranges(store: Store, target: int) -> None:
    spaces = [
        (f"{i}" * 64, (choice_record(f"g00{i}", Precision.INT8, 0, True),), f"{i + 1}" * 64) for i in range(WORKERS)
    ]
    at_once(*((lambda space=space: set_choices(store, target, space)) for space in spaces))
    (now,) = store.targets.of_study(store.studies.load("demo").id)
    rows = tuple(
        choice.with_values(study_target_id=target)
        for digest, rows, _ in spaces
        if digest == now.space_digest
        for choice in rows
    )
    assert store.spaces.choices(target) == rows
    assert (now.space_digest, now.ranges_digest) in [(digest, ranges) for digest, _, ranges in spaces]
    other = store.targets.add(now.study_id, replace(TARGET, device="H200"), "demo/h200")
    store.targets.settle(other, ranges_digest="r" * 64)
    set_choices(store, other, spaces[0])
    assert (store.targets.of_study(now.study_id)[1].space_digest, store.spaces.choices(other)) == (None, ())


def test_sensitivities_are_replaced_only_where_that_is_asked_for(store: Store, target: int) -> None:
    one, two, three = (GroupError("g000", Precision.INT8, e, 0.0, 60.0, 0.0, 1.0, 0.0, 64) for e in (1, 2, 3))
    store.spaces.set_sensitivities(target, [one], replace=False)
    store.spaces.set_sensitivities(target, [two], replace=False)
    assert store.spaces.sensitivity_rows(target) == (one,)
    store.spaces.set_sensitivities(target, [three])
    assert store.spaces.sensitivity_rows(target) == (three,)


def test_details_of_a_target_are_added_by_several(store: Store, target: int) -> None:
    at_once(*((lambda key=f"k{i}": store.targets.add_details(target, **{key: 1})) for i in range(WORKERS)))
    (record,) = store.targets.of_study(store.studies.load("demo").id)
    assert record.details == {f"k{i}": 1 for i in range(WORKERS)}


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_a_task_has_one_worker_until_it_lets_go_or_is_lost(store: Store, target: int) -> None:
    got = at_once(*((lambda name=f"w{i}": store.tasks.take(target, "band", name, LEASE_S)) for i in range(WORKERS)))
    assert Counter(got) == {True: 1, False: WORKERS - 1}
    first = f"w{got.index(True)}"
    assert store.tasks.take(target, "band", first, LEASE_S)  # again is harmless
    assert store.tasks.take(target, "reference", "other", LEASE_S)
    store.tasks.release(target, "band", "other")
    assert not store.tasks.take(target, "band", "other", LEASE_S)
    grow_old(store, tables.TaskRecord)
    got = at_once(*((lambda name=f"x{i}": store.tasks.take(target, "band", name, LEASE_S)) for i in range(WORKERS)))
    assert Counter(got) == {True: 1, False: WORKERS - 1}
    second = f"x{got.index(True)}"
    store.tasks.release(target, "band", first)  # it is not its own any more
    assert [(task.name, task.worker) for task in store.tasks.of_target(target)] == [
        ("band", second),
        ("reference", "other"),
    ]
    store.tasks.release(target, "band", second)
    assert [task.name for task in store.tasks.of_target(target)] == ["reference"]


def test_the_tasks_of_a_worker_that_ends_are_free(store: Store, target: int) -> None:
    name = join(store, target)
    assert store.tasks.take(target, "band", name, LEASE_S)
    store.workers.end(name, "failed")
    assert store.tasks.of_target(target) == ()
    assert store.workers.of_target(target)[0].state == "failed"


# -- the lease of a process --------------------------------------------------------------------------------------------


def test_a_thread_keeps_a_worker_alive(store: Store, target: int) -> None:
    with SharedCrew(store, target, lease_s=2.0, device="CPU", state="searching") as lease:
        number = begin(store, target, lease.name)
        with lease.try_hold("band") as mine:
            assert mine
            for table in (tables.WorkerRecord, tables.LeaseRecord, tables.TaskRecord):
                grow_old(store, table)
            wait_until(lambda: all((running.heartbeat_age_s or 9) < 2 for running in store.claims.find_running(target)))
            wait_until(lambda: store.workers.live(target, 2.0) == {lease.name: "searching"})
            wait_until(lambda: [task.heartbeat_age_s < 2 for task in store.tasks.of_target(target)] == [True])
        lease.state("waiting")
        assert store.workers.live(target, LEASE_S) == {lease.name: "waiting"}
    (worker,) = store.workers.of_target(target)
    assert (worker.state, worker.ended_at is not None, store.tasks.of_target(target)) == ("ended", True, ())
    assert store.claims.abandon(number, lease.name)
    wait_until(lambda: all(thread.name != "bitfront-heartbeat" for thread in threading.enumerate()))


def test_a_worker_that_fails_says_so(store: Store, target: int) -> None:
    for error, state in ((ValueError, "failed"), (KeyboardInterrupt, "ended")):
        with pytest.raises(error), SharedCrew(store, target, lease_s=LEASE_S) as lease:
            raise error
        assert {worker.name: worker.state for worker in store.workers.of_target(target)}[lease.name] == state


def test_on_sqlite_a_worker_ends_what_killed_ones_left(tmp_path: Path) -> None:
    """It holds the lock of the study, so they cannot be alive."""
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")
        killed = join(store, target)
        assert store.tasks.take(target, "calibration", killed, LEASE_S)
        with Alone(store, target, lease_s=LEASE_S) as lease:
            assert lease.others() == {}
            with lease.try_hold("calibration") as mine:
                assert mine
        assert [worker.state for worker in store.workers.of_target(target)] == ["failed", "ended"]


def test_one_does_what_is_needed_once_and_the_others_wait(store: Store, target: int) -> None:
    made: list[str] = []

    def known() -> bool:
        return "answer" in store.targets.of_study(store.studies.load("demo").id)[0].details

    def work() -> str:
        with SharedCrew(store, target, lease_s=LEASE_S) as lease:

            def make() -> None:
                made.append(lease.name)
                time.sleep(0.3)
                store.targets.add_details(target, answer=len(made))

            lease.once("calibration", known, make)
            assert known()
            return lease.name

    names = at_once(*[work] * 4) if store.is_shared else [work()]
    assert len(made) == 1
    assert made[0] in names
    assert store.tasks.of_target(target) == ()


def test_what_fails_in_one_worker_is_tried_by_the_next(store: Store, target: int) -> None:
    tried: list[str] = []

    def fail() -> None:
        raise ValueError("no data here")

    for make in (fail, lambda: tried.append("made")):
        with SharedCrew(store, target, lease_s=LEASE_S) as lease:
            try:
                lease.once("calibration", lambda: bool(tried), make)
            except ValueError:
                continue
    assert (tried, store.tasks.of_target(target)) == (["made"], ())


def test_a_task_of_a_lost_worker_is_taken_by_one_that_waits_for_it(store: Store, target: int) -> None:
    with SharedCrew(store, target, lease_s=2.0) as lease:
        assert store.tasks.take(target, "band", "lost", 2.0)
        held: list[TaskRecord] = []

        def wait_for_it() -> None:
            with lease.hold("band"):
                held.extend(store.tasks.of_target(target))

        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        grow_old(store, tables.TaskRecord)
        waiting.join(300)
        assert [task.worker for task in held] == [lease.name]


@pytest.mark.slow
def test_a_worker_outlives_a_server_that_dies() -> None:
    with postgresql_server() as server, Store.open(server.url, create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")
        with SharedCrew(store, target, lease_s=2.0) as lease:
            wait_until(lambda: lease.steady)
            server.kill()
            wait_until(lambda: not lease.steady)  # it could not beat, so it does not take silent ones for lost
            server.start()
            grow_old(store, tables.WorkerRecord)
            wait_until(lambda: lease.name in store.workers.live(target, 2.0))
            wait_until(lambda: lease.steady)
        assert [worker.state for worker in store.workers.of_target(target)] == ["ended"]


def test_engines_come_with_results(store: Store, target: int) -> None:
    """What `record` stores besides is the same for a worker that took the evaluation over."""
    number = begin(store, target, "lost", 2)
    grow_old(store, tables.LeaseRecord)
    assert store.claims.take_over(target, "taker", LEASE_S) is not None
    store.claims.record(
        number, measured(store.evaluations.load(number).evaluation.assignment), "3" * 64, worker="taker"
    )
    record = store.evaluations.load(number)
    assert (record.evaluation.engine, record.artifact) == (ENGINE, "3" * 64)
