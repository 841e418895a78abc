"""Workers, leases and tasks in the database: what expires changes hands once, the first result counts, N means N.

Time passes by moving heartbeats back in the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search.values import Failure, FailureKind, Stage
from studies.crew import Alone, SharedCrew
from studies.store.database import tables
from studies.store.records import (
    EXPORT,
    Counts,
    LostEvaluationError,
    TakenOver,
    TaskRecord,
)
from studies.store.repositories.workers import Workers
from studies.store.store import Store
from tests.support.servers.databases import postgresql_server
from tests.support.study_rows import (
    LEASE_S,
    STUDY,
    TARGET,
    assignment,
    begin,
    count,
    finish,
    grow_old,
    join,
    measured,
)


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


def wait_until(condition: Callable[[], Any], seconds: float = 300) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("nothing happened")


# -- workers -----------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_silent_counts_as_lost_until_it_is_heard_of_again(store: Store, target: int) -> None:
    name = join(store, target)
    grow_old(store, tables.WorkerRecord)
    assert store.workers.live(target, LEASE_S) == {}
    assert not store.workers.of_target(target)[0].live(LEASE_S)
    assert store.workers.of_target(target)[0].live(3 * LEASE_S)
    store.workers.beat(name)
    assert store.workers.live(target, LEASE_S) == {name: "starting"}


def test_counts_leave_exports_out(store: Store, target: int) -> None:
    assert store.statistics.counts(target) == Counts(0, 0)
    finish(store, target, 0, 1)
    finish(store, target, 1, 2, failure=Failure(Stage.BUILD, FailureKind.REFUSED, "no"), latency=None, accuracy=None)
    begin(store, target, "w", 5)
    chosen = assignment(0, 1)
    store.claims.begin(target, chosen, chosen.digest, "w", None, EXPORT)
    assert store.statistics.counts(target) == Counts(2, 1)


# -- take-over ---------------------------------------------------------------------------------------------------------


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


def test_who_was_taken_for_lost_abandons_nothing(store: Store, target: int) -> None:
    number = begin(store, target, "slow")
    grow_old(store, tables.LeaseRecord)
    assert store.claims.take_over(target, "taker", LEASE_S) is not None
    assert not store.claims.abandon(number, "slow")
    assert store.claims.abandon(number, "taker")
    left = (tables.EvaluationRecord, tables.LeaseRecord, tables.TrialRecord)
    assert [count(store, table) for table in left] == [0] * 3
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


# -- tasks -------------------------------------------------------------------------------------------------------------


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
