"""What is written is read back."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from search.errors import StudyError
from search.graph.model import Group
from search.values import Accuracy, AuditRow, Capability, Failure, FailureKind, Latency, Precision, Stage
from studies.store import columns
from studies.store.database import tables
from studies.store.reading.evaluation_columns import DETAILS
from studies.store.records import Counts
from studies.store.store import Store
from tests.support.records import choice_record
from tests.support.study_rows import ENGINE, LAYERS, STUDY, TARGET, assignment, count, finish, group, measured, plain


def test_a_study_and_its_target_come_back(store: Store, target: int) -> None:
    study = store.studies.load("demo")
    assert {name: getattr(study, name) for name in vars(STUDY)} == vars(STUDY)
    assert study.created_at.tzinfo is not None
    capability = Capability({Precision.INT8: frozenset({"Conv"})}, min_channels=16)
    other = store.targets.add(study.id, replace(TARGET, device="H200"), "demo/h200", capability=capability)
    assert [record.id for record in store.targets.of_study(study.id)] == [target, other]
    assert store.targets.of_study(study.id)[1].capability == capability
    assert store.targets.of_study(study.id)[0].target == TARGET
    assert store.targets.add(study.id, TARGET, "demo/cpu") == target


def test_fields_can_be_set_later(store: Store, target: int) -> None:
    study = store.studies.load("demo")
    more = {**STUDY.config, "trials": 100}
    store.studies.update(study.id, state="searching", config=more)
    store.targets.settle(target, latency_band=0.02, ranges_digest="b" * 64)
    assert (store.studies.load("demo").state, store.studies.load("demo").config) == ("searching", more)
    (record,) = store.targets.of_study(study.id)
    assert (record.latency_band, record.ranges_digest) == (0.02, "b" * 64)
    with pytest.raises(ValueError, match="cannot set name; fields are config"):
        store.studies.update(study.id, name="other")


def test_a_name_is_taken_once(store: Store, target: int) -> None:
    with pytest.raises(StudyError, match="bitfront resume demo"):
        store.studies.create(STUDY)
    for name in ("", "  ", "x" * 201):
        with pytest.raises(StudyError, match="cannot be used"):
            store.studies.create(STUDY.with_values(name=name))


def test_groups_and_choices_come_back(store: Store, target: int) -> None:
    study_id = store.studies.load("demo").id
    texts = {"id": "g000", "name": "/conv", "op": "Conv", "output": "y", "block": "layer1", "pinned": "depthwise"}
    empty = {field.name: () for field in fields(Group) if field.name not in texts}
    group = Group(**{**empty, **texts, "nodes": ("/conv", "/relu"), "anchors": ("/conv",), "shape": (1, 8, 4, 4)})
    choices = (
        choice_record("g000", Precision.FP32, 0, True),
        choice_record("g000", Precision.INT8, None, False, "no kernel"),
    )
    for _ in range(2):
        store.spaces.set_choices(target, "c" * 64, choices)
    with_groups = store.studies.create(STUDY.with_values(name="with groups"), groups=[group])
    (record,) = store.studies.groups(with_groups)
    names = ("id", "name", "op", "nodes", "anchors", "shape", "weight_shape", "block")
    assert [getattr(record, name) for name in names] == [getattr(group, name) for name in names]
    assert store.spaces.choices(target) == tuple(choice.with_values(study_target_id=target) for choice in choices)
    assert store.targets.of_study(study_id)[0].space_digest == "c" * 64


def test_what_cannot_be_built_is_remembered_per_target(store: Store, target: int) -> None:
    other = store.targets.add(store.studies.load("demo").id, replace(TARGET, device="H200"), "demo/h200")
    choices = [choice_record("g000", p, p.id, True) for p in (Precision.FP16, Precision.INT8)]
    for each in (target, other):
        store.spaces.set_choices(each, "c" * 64, choices)
    for _ in range(2):
        store.spaces.mark_unbuildable(target, "g000", Precision.INT8)
    assert store.spaces.unbuildable(target) == {("g000", Precision.INT8)}
    assert store.spaces.unbuildable(other) == frozenset()
    offered = [choice.with_values(study_target_id=target) for choice in choices]
    assert store.spaces.choices(target) == (offered[0], offered[1].with_values(buildable=False))
    with pytest.raises(KeyError):
        store.spaces.mark_unbuildable(target, "g001", Precision.INT8)


def test_an_evaluation_comes_back_whole(store: Store, target: int) -> None:
    chosen = assignment(2, 1)
    evaluation_id = store.claims.begin(target, chosen, "d" * 64, "w0", 7, "baseline:int8")
    evaluation = measured(chosen)
    audit = (AuditRow("g000", Precision.INT8, Precision.FP32, "k"), AuditRow("g001", Precision.FP16, None, ""))
    store.claims.record(evaluation_id, replace(evaluation, audit=audit), "e" * 64)
    record = store.trials.load(target, 7)
    assert plain(record.evaluation) == plain(replace(evaluation, audit=audit))
    assert (record.id, record.trial, record.trials, record.status) == (evaluation_id, 7, (7,), "ok")
    assert (record.digest, record.role, record.worker) == ("d" * 64, "baseline:int8", "w0")
    assert (record.artifact, record.final) == ("e" * 64, None)
    assert record.finished_at is not None
    assert record.started_at <= record.finished_at
    table = store.evaluations.table(target)
    assert (list(table.not_obeyed), list(table.opaque)) == ([1], [1])
    assert (
        plain(store.evaluations.find(target, "d" * 64)) == plain(store.evaluations.load(evaluation_id)) == plain(record)
    )
    assert store.evaluations.find(target, "f" * 64) is None
    with pytest.raises(KeyError):
        store.evaluations.load(evaluation_id + 1)


def test_what_was_not_told_of_an_engine_comes_back_as_nothing(store: Store, target: int) -> None:
    bare = Latency(1.5, 1.5, 0.0, None, np.array([1.5]), np.empty(0))
    audit = (AuditRow("g000", Precision.FP16, Precision.FP16, "k"),)
    number = finish(store, target, 0, 1, audit=audit, latency=bare, engine=None)
    other = finish(store, target, 1, 2)
    evaluation = store.evaluations.load(number).evaluation
    assert (plain(evaluation.latency), evaluation.audit, evaluation.engine) == (plain(bare), audit, None)
    assert store.evaluations.load(other).evaluation.engine == ENGINE
    with store.database.engine.connect() as connection:
        stored = connection.exec_driver_sql("select details from bf_audit where evaluation_id = 1").all()
        assert stored == [(None,)]


def test_a_profile_is_stored_with_the_evaluation_or_later(store: Store, target: int) -> None:
    first = finish(store, target, 0, 0, profile=LAYERS)
    second = finish(store, target, 1, 1)
    assert (store.engines.profile(first), store.engines.profile(second)) == (LAYERS, ())
    store.engines.set_profile(second, LAYERS)
    store.engines.set_profile(first, LAYERS[1:])
    assert (store.engines.profile(first), store.engines.profile(second)) == (LAYERS[1:], LAYERS)


def test_a_failure_comes_back_with_what_was_reached(store: Store, target: int) -> None:
    failure = Failure(Stage.ACCURACY, FailureKind.CRASHED, "signal 11", "log\0" + "x" * 100_000)
    finish(store, target, 0, 1, failure=failure, accuracy=None)
    evaluation = store.trials.load(target, 0).evaluation
    assert evaluation.failure == replace(failure, log=failure.log.replace("\0", "�"))
    assert (evaluation.latency is not None, evaluation.accuracy) == (True, None)
    assert [list(store.evaluations.table(target).stage), list(store.evaluations.table(target).kind)] == [
        ["accuracy"],
        ["crashed"],
    ]


def test_numbers_that_are_none_are_nan(store: Store, target: int) -> None:
    accuracy = Accuracy("top1", math.nan, math.inf, math.nan, math.nan, 1, 4, np.array([math.nan]))
    finish(store, target, 0, 1, accuracy=accuracy)
    stored = store.trials.load(target, 0).evaluation.accuracy
    assert stored is not None
    assert all(math.isnan(x) for x in (stored.value, stored.loss, *stored.scores))
    assert np.isnan(store.evaluations.table(target).loss).all()


def test_columns_of_many_evaluations(store: Store, target: int) -> None:
    assert len(store.evaluations.table(target)) == len(store.evaluations.finals(target)) == 0
    first = finish(store, target, 0, 0)
    finish(store, target, 3, 1, failure=Failure(Stage.BUILD, FailureKind.REFUSED, "no"), latency=None, accuracy=None)
    store.claims.begin(target, assignment(2), "d" * 64, "w0", None)
    store.evaluations.set_final(first, Accuracy("top1", 0.5, 0.25, 0.0, 0.5, 3, 3, np.zeros(3)))
    table, finals = store.evaluations.table(target), store.evaluations.finals(target)
    assert list(table.status) == ["ok", "failed", "running"]
    assert list(table.trial) == [0, 3, -1]
    assert list(table.memory_bytes) == [2 << 40, 2 << 40, -1]
    np.testing.assert_array_equal(table.latency_ms, [1.5, np.nan, np.nan])
    assert (list(finals.evaluation_id), list(finals.loss), list(finals.total)) == ([first], [0.25], [3])
    assert [[p.id for p in chosen.values()] for chosen in store.evaluations.assignments(target).values()] == [
        [0],
        [1],
        [2],
    ]
    assert (store.statistics.counts(target), store.measurements.doubts([], None)) == (Counts(2, 1), {})
    obeyed = Counter((row.asked, row.answer) for _, row in store.engines.audits(target))
    assert store.statistics.obedience(target) == obeyed
    (summary,) = store.studies.summaries()
    assert (summary.name, summary.targets, summary.ok, summary.failed, summary.running) == ("demo", 1, 1, 1, 1)


def test_a_failure_on_the_final_split_is_no_score_and_gives_way_to_one(store: Store, target: int) -> None:
    evaluation_id = finish(store, target, 0, 1)
    notes = store.evaluations.load(evaluation_id).evaluation.notes
    store.evaluations.set_final_failure(evaluation_id, "top1", "first")
    store.evaluations.set_final_failure(evaluation_id, "top1", "outputs are infinite")
    record, finals = store.evaluations.load(evaluation_id), store.evaluations.finals(target)
    assert (record.final, record.final_failure, record.evaluation.notes) == (None, "outputs are infinite", notes)
    assert (list(finals.evaluation_id), list(finals.samples), list(finals.failure)) == (
        [evaluation_id],
        [0],
        ["outputs are infinite"],
    )
    assert np.isnan([finals.value, finals.loss, finals.loss_low, finals.loss_high]).all()
    store.engines.set_profile(evaluation_id, LAYERS, "its clocks moved")
    assert store.evaluations.load(evaluation_id).final_failure == "outputs are infinite"
    store.evaluations.set_final(evaluation_id, Accuracy("top1", 0.5, 0.25, 0.0, 0.5, 2, 2, np.zeros(2)))
    record, finals = store.evaluations.load(evaluation_id), store.evaluations.finals(target)
    assert record.final is not None
    assert (record.final.samples, record.final_failure) == (2, "")
    assert (list(finals.samples), list(finals.failure)) == ([2], [""])


def test_artifacts_are_kept_as_long_as_something_needs_them(store: Store, target: int) -> None:
    one, two, ranges = "1" * 64, "2" * 64, "3" * 64
    ids = [finish(store, target, i, i, artifact=one) for i in range(2)]
    ids.append(finish(store, target, 2, 2, artifact=two))
    for digest in ("4" * 64, ranges, ranges):
        store.files.add(digest, "ranges", 10, key="model+data")
    newest = store.files.find("model+data")
    assert newest is not None
    assert (newest.digest, newest.size_bytes, store.files.find("other")) == (ranges, 10, None)
    assert store.files.forget("4" * 64)
    store.targets.settle(target, ranges_digest=ranges)
    assert store.files.release_engines(ids[:1]) == frozenset()
    assert store.files.release_engines(ids[1:2]) == {one}
    assert store.files.forget(one)
    assert {record.digest: record.kind for record in store.files.all()} == {two: "engine", ranges: "ranges"}
    assert list(store.evaluations.table(target).artifact) == ["", "", two]
    finish(store, target, 3, 0, 1, artifact=two)
    other = store.targets.add(store.studies.create(STUDY.with_values(name="other")), TARGET, "other/cpu")
    store.targets.settle(other, ranges_digest=ranges)
    assert store.studies.delete("demo") == {two}
    assert not store.files.forget(ranges)
    assert store.files.forget(two)
    assert [record.digest for record in store.files.all()] == [ranges]


def test_deleting_a_study_takes_all_its_rows(store: Store) -> None:
    target = store.targets.add(store.studies.create(STUDY, groups=[group(0)]), TARGET, "demo/cpu")
    evaluation_id = finish(store, target, 0, 0, artifact="1" * 64, profile=LAYERS)
    store.evaluations.set_final(evaluation_id, Accuracy("top1", 0.5, 0.25, 0.0, 0.5, 2, 2, np.zeros(2)))
    store.spaces.set_choices(target, "c" * 64, [choice_record("g000", Precision.FP32, 0, True)])
    store.claims.begin(target, assignment(1), "d" * 64, "w0", 1)
    assert store.studies.delete("demo") == {"1" * 64}
    assert [record.kind for record in store.files.all()] == ["unused engine"]  # its file is to be removed first
    assert store.files.forget("1" * 64)
    left = {table.__tablename__: count(store, table) for table in tables.Base.__subclasses__()}
    assert {name for name, rows in left.items() if rows} == {"bf_schema", "bf_target"}
    with pytest.raises(StudyError, match="no study 'demo'"):
        store.studies.delete("demo")


def test_a_row_is_the_same_read_alone_and_with_the_whole_column(
    store: Store, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(store, target, 3, 0, artifact="1" * 64)
    store.trials.link(target, 1, finish(store, target, 4, 1, engine=None, memory_bytes=None))
    finish(store, target, 5, 2, failure=Failure(Stage.BUILD, FailureKind.REFUSED, "no"), latency=None, accuracy=None)
    store.claims.begin(target, assignment(0, 1), "d" * 64, "w0", 7)
    alone = store.evaluations.table(target)
    monkeypatch.setattr(columns, "MOST_ROWS", 2)
    whole = store.evaluations.table(target)
    for name in DETAILS:
        singly = [getattr(alone, name)[row] for row in range(len(alone))]
        np.testing.assert_array_equal(getattr(whole, name)[:], np.array(singly))
        assert getattr(whole, name)[:].dtype.kind == np.array(singly).dtype.kind
    assert list(whole.trial[:]) == [3, 1, 5, 7]
    assert list(whole.size_bytes[:]) == [1000, 1000, 1000, -1]
