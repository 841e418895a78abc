"""A table of evaluations that is read again reads what changed alone, and is as one that is read anew."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import count as numbers
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, event

from search.values import Accuracy, Assignment, Evaluation, Failure, FailureKind, Latency, Stage
from studies.store.columns import EvaluationTable
from studies.store.database import tables
from studies.store.reading.evaluation_columns import JUDGED
from studies.store.records import EXPORT, FAILED, OK, RUNNING
from studies.store.statements import results
from studies.store.store import Store
from tests.support.study_rows import SQLITE_ALONE, assignment, evaluated, finish

STEPS = 80
FAILURE = Failure(Stage.BUILD, FailureKind.REFUSED, "no kernel", "")
LEASE_S = 60.0


@pytest.fixture
def other(url: str, target: int) -> Iterator[Store]:
    """The same database through connections of its own."""
    with Store.open(url) as opened:
        yield opened


def assert_same(renewed: EvaluationTable, anew: EvaluationTable) -> None:
    for name in (*JUDGED, "status", "role", "latency_ms"):
        np.testing.assert_array_equal(getattr(renewed, name), getattr(anew, name), name)
    for name in vars(anew.again):
        np.testing.assert_array_equal(getattr(renewed.again, name), getattr(anew.again, name), name)
    assert renewed.reference_ms == anew.reference_ms
    for name in ("digest", "trial"):
        np.testing.assert_array_equal(getattr(renewed, name)[:], getattr(anew, name)[:], name)


class Writer:
    """Does to a target, at random, all that runs do to evaluations."""

    def __init__(self, store: Store, target: int, name: str, seed: int) -> None:
        self.store, self.target, self.name = store, target, name
        self._random = random.Random(seed)
        self._fresh = numbers(3**8 * seed)

    def step(self) -> None:
        steps = (self.begin, self.begin, self.record, self.record, self.abandon, self.complete, self.measure, self.lose)
        self._random.choice(steps)()

    def begin(self) -> int:
        number = next(self._fresh)
        chosen = assignment(*(number // 3**place % 3 for place in range(10)))
        role = self._random.choice(("", "", "", EXPORT, "baseline:fp32", "baseline:int8"))
        trial = None if role == EXPORT else number
        return self.store.claims.begin(self.target, chosen, chosen.digest, self.name, trial, role)

    def record(self) -> None:
        for row in self.store.claims.find_running(self.target, self.name)[:1]:
            chosen = self.store.evaluations.load(row.id).evaluation.assignment
            failed = self._random.random() < 0.2
            self.store.claims.record(
                row.id, Evaluation(chosen, FAILURE) if failed else self._measured(chosen), worker=self.name
            )

    def abandon(self) -> None:
        for row in self.store.claims.find_running(self.target, self.name)[:1]:
            self.store.claims.abandon(row.id, self.name)

    def complete(self) -> None:
        table = self.store.evaluations.table(self.target)
        stopped = table.id[(table.status == OK) & (table.samples < table.total_samples)].tolist()
        for number in stopped[:1]:
            whole = self._measured(self.store.evaluations.load(number).evaluation.assignment, stopped=False)
            self.store.claims.replace_stopped(number, whole, worker=self.name)

    def measure(self) -> None:
        table = self.store.evaluations.table(self.target)
        for number in table.id[table.status == OK].tolist()[-2:]:
            self.store.measurements.add_round(self.target, {number: self._latency()})

    def lose(self) -> None:
        """A finished row is taken out by hand."""
        table = self.store.evaluations.table(self.target)
        for number in table.id[table.status != RUNNING].tolist()[:1]:
            with self.store.database.begin_write("lose a row") as connection:
                connection.execute(delete(tables.EvaluationRecord).where(tables.EvaluationRecord.id == number))

    def _measured(self, chosen: Assignment, stopped: bool | None = None) -> Evaluation:
        stopped = self._random.random() < 0.4 if stopped is None else stopped
        whole = evaluated((0,), 1.0, self._random.random(), 0.01)
        accuracy = whole.accuracy
        assert isinstance(accuracy, Accuracy)
        accuracy = replace(accuracy, samples=accuracy.total // 2) if stopped else accuracy
        return replace(whole, assignment=chosen, latency=self._latency(), accuracy=accuracy)

    def _latency(self) -> Latency:
        found = evaluated((0,), 1.0 + self._random.random(), 0.0, 0.0).latency
        assert isinstance(found, Latency)
        return replace(found, baseline_ms=4.0 + self._random.random())


@SQLITE_ALONE
def test_a_result_that_takes_the_place_of_a_stopped_one_is_read_again(store: Store, target: int) -> None:
    writer = Writer(store, target, "w1", 1)
    number = writer.begin()
    chosen = store.evaluations.load(number).evaluation.assignment
    store.claims.record(number, writer._measured(chosen, stopped=True))
    known = store.evaluations.table(target)
    store.claims.replace_stopped(number, writer._measured(chosen, stopped=False), worker="w1")
    renewed = store.evaluations.table(target, known)
    assert known.samples[0] < known.total_samples[0] == renewed.samples[0]
    assert_same(renewed, store.evaluations.table(target))


@pytest.mark.slow
def test_what_two_write_is_seen_by_one_that_reads_only_what_changed(store: Store, other: Store, target: int) -> None:
    writers = [Writer(store, target, "w1", 1), Writer(other, target, "w2", 2)]
    order, known, seen = random.Random(3), None, set[str]()
    for _ in range(STEPS):
        order.choice(writers).step()
        if order.random() < 0.5:
            known = store.evaluations.table(target, known)
            assert_same(known, store.evaluations.table(target))
            seen.update(known.status)
    assert seen == {RUNNING, OK, FAILED}


@pytest.mark.slow
def test_nothing_is_missed_while_two_write_at_once(url: str, store: Store, other: Store, target: int) -> None:
    """What commits late is not passed over, whatever the order."""
    known: EvaluationTable | None = None
    with ThreadPoolExecutor(2) as pool, Store.open(url, write=False) as reader:

        def write(writer: Writer) -> None:
            for _ in range(STEPS):
                (writer.begin if writer._random.random() < 0.5 else writer.record)()

        runs = [pool.submit(write, Writer(each, target, f"w{seed}", seed)) for seed, each in ((1, store), (2, other))]
        while not all(run.done() for run in runs):
            known = reader.evaluations.table(target, known)
            wait(runs, timeout=0.002)
        assert [run.result() for run in runs] == [None, None]
        assert_same(reader.evaluations.table(target, known), reader.evaluations.table(target))


def test_of_two_results_stored_at_once_the_second_waits_for_the_first(store: Store, other: Store, target: int) -> None:
    """Else its revision might be seen before a lower one, which would then never be read."""
    first, second = (store.claims.begin(target, assignment(n), assignment(n).digest, "w", n) for n in range(2))
    known, done = store.evaluations.table(target), threading.Event()

    def record() -> None:
        other.claims.record(second, evaluated((1,), 2.0, 0.0, 0.0))
        done.set()

    thread = threading.Thread(target=record)
    with store.database.begin_write("store a result slowly") as connection:
        results.raise_revision(connection, first)
        thread.start()
        assert not done.wait(0.5)
        if store.is_shared:  # readers of a server do not wait
            known = store.evaluations.table(target, known)
    thread.join(300)
    known = store.evaluations.table(target, known)
    assert_same(known, store.evaluations.table(target))
    assert (list(known.status), known.revision) == ([RUNNING, OK], 2)


@SQLITE_ALONE
def test_rows_that_did_not_change_are_not_read_again(store: Store, target: int) -> None:
    for number in range(5):
        finish(store, target, number, number % 3, number // 3)
    known, read = store.evaluations.table(target), list[Any]()
    added = finish(store, target, 9, 2, 2)
    engine = store.database.engine

    def listen(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if "bf_evaluation.loss" in statement:
            read.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", listen)
    known = store.evaluations.table(target, known)
    event.remove(engine, "before_cursor_execute", listen)
    [(statement, parameters)] = read
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(statement, parameters).all()
    assert [int(row[0]) for row in rows] == [added]
    assert len(known) == 6
