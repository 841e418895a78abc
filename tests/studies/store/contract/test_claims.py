"""Evaluations have one worker: what expires changes hands once, the first result counts, N means N."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from search.values import AuditRow, Latency
from studies.store.database import database, tables
from studies.store.records import EXPORT, Counts, FullStudyError, KnownEvaluationError, TakenOver
from studies.store.store import LostEvaluationError, Store
from tests.support.study_rows import (
    ENGINE,
    LEASE_S,
    STUDY,
    TARGET,
    WORKERS,
    add,
    assignment,
    at_once,
    begin,
    count,
    evaluated,
    finish,
    grow_old,
    join,
    make_study,
    measured,
    plain,
    scored,
)

BEGUN = (tables.EvaluationRecord, tables.LeaseRecord, tables.TrialRecord)


def test_a_digest_is_evaluated_once_and_a_trial_has_one_evaluation(store: Store, target: int) -> None:
    chosen = assignment(1)
    running = store.claims.begin(target, chosen, chosen.digest, "w0", 0)
    with pytest.raises(KnownEvaluationError) as raised:
        store.claims.begin(target, chosen, chosen.digest, "w1", 1)
    assert (raised.value.evaluation_id, raised.value.status) == (running, "running")
    with pytest.raises(ValueError, match="trial 0 has an evaluation already"):
        store.claims.begin(target, assignment(2), "d" * 64, "w0", 0)
    assert [count(store, table) for table in (tables.EvaluationRecord, tables.LeaseRecord, tables.TrialRecord)] == [
        1
    ] * 3
    other = store.targets.add(store.studies.load("demo").id, replace(TARGET, device="H200"), "demo/h200")
    assert store.claims.begin(other, chosen, chosen.digest, "w1", 0) != running


def test_the_lease_goes_by_the_clock_of_the_database_in_utc(store: Store, target: int) -> None:
    number = store.claims.begin(target, assignment(1), "d" * 64, "w0", 0)
    (running,) = store.claims.find_running(target)
    assert (running.id, running.digest, running.trial, running.worker) == (number, "d" * 64, 0, "w0")
    assert 0 <= (running.heartbeat_age_s or 0) < 3600
    with database.begin_write(store.database.engine) as connection:
        lease = connection.execute(select(tables.LeaseRecord.heartbeat)).scalar_one()
        year_ago = lease.replace(tzinfo=None) - timedelta(days=365)
        connection.execute(tables.LeaseRecord.__table__.update().values(heartbeat=year_ago))
    age = store.claims.find_running(target)[0].heartbeat_age_s
    assert age is not None
    assert 365 * 86400 <= age < 365 * 86400 + 3600


def test_what_is_abandoned_leaves_nothing(store: Store, target: int) -> None:
    evaluation_id = store.claims.begin(target, assignment(1), "d" * 64, "w0", 0)
    assert store.claims.abandon(evaluation_id)
    assert not store.claims.abandon(evaluation_id)
    assert [count(store, table) for table in BEGUN] == [0, 0, 0]
    with pytest.raises(LostEvaluationError):
        store.claims.record(evaluation_id, measured(assignment(1)), "e" * 64)
    assert [
        count(store, table)
        for table in (tables.AuditRecord, tables.SampleRecord, tables.ScoreRecord, tables.ArtifactRecord)
    ] == [0] * 4
    finished = finish(store, target, 1, 1)
    assert not store.claims.abandon(finished)
    with pytest.raises(LostEvaluationError):
        store.claims.record(finished, measured(assignment(1)))


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
    assert store.trials.links(target, 7, 9) == {7: (running, "running"), 9: (running, "running")}
    store.workers.end(first)
    one, two = store.workers.of_target(target)
    assert (one.name, one.host, one.device, one.pid, one.state) == (first, "a host", "CPU", 11, "ended")
    assert (one.evaluations, one.evaluation_id, one.trial) == (2, None, None)
    assert (two.evaluations, two.evaluation_id, two.trial) == (0, running, 7)
    assert one.ended_at is not None
    assert (one.live(LEASE_S), two.live(LEASE_S)) == (False, True)
    assert store.workers.live(target, LEASE_S) == {second: "starting"}


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
    store.claims.record(number, measured(chosen), "3" * 64, worker=last)
    record = store.evaluations.load(number)
    assert (record.evaluation.engine, record.artifact) == (ENGINE, "3" * 64)


def test_the_oldest_expired_one_comes_first_and_only_of_this_target(store: Store, target: int) -> None:
    other = store.targets.add(store.studies.load("demo").id, replace(TARGET, device="H200"), "demo/h200")
    begin(store, other, "w", 1)
    numbers = [begin(store, target, "w", number) for number in (1, 2)]
    grow_old(store, tables.LeaseRecord)
    taken = [store.claims.take_over(target, taker, LEASE_S) for taker in ("one", "two", "three")]
    assert [each.id for each in taken if each is not None] == numbers


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


def begin_at_once(store: Store, target: int) -> int:
    """How many evaluations workers begin that try 5 each at the same time, of 13 that are wanted."""

    def try_some(worker: int) -> int:
        begun = 0
        for number in range(5 * worker, 5 * worker + 5):
            with suppress(FullStudyError):
                evaluation = begin(store, target, f"w{worker}", number, most=13)
                begun += 1
                if number % 2:
                    store.claims.record(evaluation, measured(store.evaluations.load(evaluation).evaluation.assignment))
        return begun

    return sum(at_once(*(partial(try_some, worker) for worker in range(WORKERS))))


def test_no_more_are_begun_than_are_wanted(store: Store, target: int) -> None:
    assert begin_at_once(store, target) == count(store, tables.EvaluationRecord) == 13
    known = store.evaluations.load(1).evaluation.assignment
    with pytest.raises(KnownEvaluationError):  # what is there is no question of room
        store.claims.begin(target, known, known.digest, "w", 99, most=13)
    chosen = assignment(0, 1)
    store.claims.begin(target, chosen, chosen.digest, "w", None, EXPORT)  # exports do not count
    with pytest.raises(FullStudyError):
        begin(store, target, "w", 700, most=13)
    begin(store, target, "w", 700, most=14)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_no_more_are_begun_than_are_wanted_whatever_isolation_a_server_has(url: str) -> None:
    strict = f"{url}?options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"
    with Store.open(strict) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")
        assert begin_at_once(store, target) == 13


def test_measuring_again_at_the_same_time_makes_rounds_of_their_own(store: Store, target: int) -> None:
    number = finish(store, target, 0, 1)
    latency = measured(assignment(1)).latency
    assert isinstance(latency, Latency)
    rounds = at_once(*[lambda: store.measurements.add_round(target, {number: latency})] * WORKERS)
    assert sorted(rounds) == list(range(1, WORKERS + 1))
    assert [found.number for found in store.evaluations.load(number).rounds] == list(range(WORKERS + 1))


def test_a_stopped_evaluation_is_replaced_once(store: Store) -> None:
    target = make_study(store)
    number = add(store, target, 5, evaluated((1, 2), 2.0, 0.05, 0.02, accuracy=scored(0.05, 0.02, 4)))
    before = store.evaluations.load(number)
    store.measurements.add_round(target, {number: before.evaluation.latency})
    audit = tuple(AuditRow(g, p, None, "other") for g, p in before.evaluation.assignment.items())
    whole = evaluated((1, 2), 2.1, 0.03, 0.004, audit=audit, size_bytes=7)
    store.claims.replace_stopped(number, whole, worker="w1")
    found = store.evaluations.load(number)
    assert plain(found.evaluation.accuracy) == plain(whole.accuracy)
    assert plain(found.evaluation.latency) == plain(whole.latency)
    assert (found.evaluation.audit, found.evaluation.size_bytes) == (audit, 7)
    assert (found.trials, found.digest, found.worker) == ((5,), before.digest, "w1")
    again = store.measurements.rounds(target)
    assert (list(again.evaluation_id), list(again.raw_ms)) == ([number], [2.0])  # what was measured again stays
    table = store.evaluations.table(target)
    assert list(table.samples) == list(table.total_samples) == [8]
    with pytest.raises(LostEvaluationError):
        store.claims.replace_stopped(number, evaluated((1, 2), 2.2, 0.0, 0.0), worker="w2")
    assert plain(store.evaluations.load(number).evaluation.accuracy) == plain(whole.accuracy)
