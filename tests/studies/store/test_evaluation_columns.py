"""Columns of evaluations: what judging needs is read of all, everything else only of the rows that are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, event

from bitfront import verbs
from search.values import EngineSummary, Failure, FailureKind, Stage
from studies.artifacts.folder import Artifacts
from studies.artifacts.leftovers import kept_engine
from studies.judging.standing import read_standing
from studies.options.limits import Limits
from studies.run.engines import prune
from studies.store import columns
from studies.store.columns import EvaluationTable
from studies.store.reading.evaluation_columns import DETAILS
from studies.store.store import Store
from tests.support.study_rows import add, evaluated, make_study

ENGINE = EngineSummary(layers=9, moves=4, opaque=0, sparse=0)
FAILURE = Failure(Stage.BUILD, FailureKind.REFUSED, "no kernel", "")


@pytest.fixture
def target(store: Store) -> int:
    """A baseline, a mix that two trials asked for, a refused one, one of an export, and one that is running."""
    made = make_study(store)
    add(store, made, 3, evaluated((0, 0, 0), 4.0, 0.0, 0.01), "baseline:fp32")
    mixed = add(store, made, 4, evaluated((0, 2, 2), 2.0, 0.05, 0.01, engine=ENGINE, size_bytes=1 << 40, total_s=2.5))
    store.trials.link(made, 1, mixed)
    failed = evaluated((2, 2, 2), 1.0, 0.0, 0.0, failure=FAILURE, latency=None, accuracy=None, memory_bytes=None)
    add(store, made, 5, failed)
    add(store, made, 6, evaluated((2, 0, 2), 3.0, 0.02, 0.01, memory_bytes=1 << 41), "export")
    running = evaluated((0, 0, 2), 1.0, 0.0, 0.0).assignment
    store.claims.begin(made, running, running.digest, "w0", 7, "baseline:int8")
    return made


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """What is asked of the database meanwhile."""
    said: list[str] = []

    def listen(*arguments: Any) -> None:
        if arguments[2].startswith("SELECT"):
            said.append(arguments[2])

    engine: Engine = store.database.engine
    event.listen(engine, "before_cursor_execute", listen)
    yield said
    event.remove(engine, "before_cursor_execute", listen)


def numbers(array: Any) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in array]


def test_what_judging_needs_comes_back(store: Store, target: int) -> None:
    table = store.evaluations.table(target)
    assert list(table.status) == ["ok", "ok", "failed", "ok", "running"]
    assert list(table.role) == ["baseline:fp32", "", "", "export", "baseline:int8"]
    assert numbers(table.raw_ms) == numbers(table.latency_ms) == [4.0, 2.0, None, 3.0, None]
    assert numbers(table.baseline_ms) == [2.0, 2.0, None, 2.0, None]
    assert numbers(table.loss) == [0.0, 0.05, None, 0.02, None]
    assert list(table.memory_bytes) == [1000, 1000, -1, 1 << 41, -1]
    assert list(table.samples) == list(table.total_samples) == [8, 8, -1, 8, -1]
    assert list(table.id) == sorted(table.id)
    assert table.id.dtype == table.samples.dtype == np.int64


def test_details_come_back_in_every_way_of_asking(store: Store, target: int) -> None:
    table = store.evaluations.table(target)
    assert list(table.trial) == [3, 1, 5, 6, 7]
    assert list(table.moves) == [-1, 4, -1, -1, -1]
    assert list(table.size_bytes) == [-1, 1 << 40, -1, -1, -1]
    assert (list(table.stage), list(table.kind)) == (["", "", "build", "", ""], ["", "", "refused", "", ""])
    assert list(table.artifact) == [""] * 5
    assert numbers(table.total_s)[1] == 2.5
    few = store.evaluations.table(target)
    assert (int(few.trial[1]), str(few.kind[2]), int(few.moves[1]), str(few.artifact[0])) == (1, "refused", 4, "")
    some = np.array([False, True, False, True, False])
    assert (list(few.trial[some]), list(few.trial[[3, 1]]), list(few.trial[3:])) == ([1, 6], [6, 1], [6, 7])
    assert list(few.only(some).trial) == list(few.only(some).trial[:]) == [1, 6]
    assert list(few.trial == 6) == [False, False, False, True, False]
    assert list(few.kind != "") == [False, False, True, False, False]
    assert few.digest[0] == evaluated((0, 0, 0), 1.0, 0.0, 0.0).assignment.digest


def test_judging_reads_no_detail_and_a_detail_only_its_rows(store: Store, target: int) -> None:
    study = store.studies.load("s")
    with statements(store) as said:
        now = read_standing(store, study, store.targets.of_study(study.id)[0], Limits())
        assert now.measures.fastest_first(now.judgement.front)
        assert not [text for text in said if any(f".{name}" in text for name in ("digest", "build_s", "engine"))]
        assert not [text for text in said if "bf_trial" in text]
        del said[:]
        now.table.details.read([int(now.table.id[0]), int(now.table.id[1])])
        assert len(said) == len([text for text in said if " IN (" in text]) == 1
        assert [int(now.table.trial[row]) for row in (0, 1)] == [3, 1]
        assert int(now.table.moves[1]) == 4
        assert len(said) == 1


def test_who_asks_for_one_row_after_another_is_given_the_whole_column(
    store: Store, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MOST_SINGLE", 2)
    table = store.evaluations.table(target)
    with statements(store) as said:
        assert [int(table.trial[row]) for row in range(5)] == [3, 1, 5, 6, 7]
    assert len(said) == 3


def test_a_target_without_evaluations_has_empty_columns(store: Store) -> None:
    table: EvaluationTable = store.evaluations.table(make_study(store))
    assert [len(getattr(table, name)[:]) for name in DETAILS] == [0] * len(DETAILS)
    assert (len(table), table.reference_ms, list(table.role)) == (0, None, [])


def test_details_are_there_after_the_store_was_closed(store: Store, target: int) -> None:
    now = verbs.front("s", storage=store.database.url.render_as_string(hide_password=False)).standing
    assert list(now.table.trial) == [3, 1, 5, 7]
    table = store.evaluations.table(target)
    store.close()
    assert int(table.trial[1]) == 1
    assert store.database.engine.pool.checkedin() == 0  # type: ignore[attr-defined]


def test_an_engine_that_came_after_the_standing_was_read_is_not_let_go_of(
    store: Store, target: int, tmp_path: Path
) -> None:
    """Another worker finishes what ran when this one looked; its evaluation may stand on the front."""
    artifacts, study = Artifacts(tmp_path / "engines"), store.studies.load("s")
    now = read_standing(store, study, store.targets.of_study(study.id)[0], Limits())
    engine = tmp_path / "engine"
    engine.write_bytes(b"engine")
    with kept_engine(store, artifacts, engine) as digest:
        store.claims.record(int(now.table.id[-1]), evaluated((0, 0, 2), 1.0, 0.0, 0.01), digest)
    prune(store, artifacts, now, keep="front")
    assert list(store.evaluations.table(target).artifact) == ["", "", "", "", digest]
