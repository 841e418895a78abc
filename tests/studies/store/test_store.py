"""What is written is read back."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import select

from search.errors import StudyError
from search.graph.model import Edge, Group
from search.values import Accuracy, AuditRow, Capability, Failure, FailureKind, Latency, Precision, Stage
from studies.store.database import database, tables
from studies.store.records import Choice, ExportRecord, KnownEvaluationError, LostEvaluationError
from studies.store.store import Store, optuna_storage
from tests.support.study_rows import ENGINE, LAYERS, STUDY, TARGET, assignment, count, finish, measured, plain


def test_a_study_and_its_target_come_back(store: Store, target: int) -> None:
    study = store.study("demo")
    assert {name: getattr(study, name) for name in vars(STUDY)} == vars(STUDY)
    assert study.created_at.tzinfo is not None
    capability = Capability({Precision.INT8: frozenset({"Conv"})}, min_channels=16)
    other = store.add_target(study.id, replace(TARGET, device="H200"), "demo/h200", capability=capability)
    assert [record.id for record in store.targets(study.id)] == [target, other]
    assert store.targets(study.id)[1].capability == capability
    assert store.targets(study.id)[0].target == TARGET
    assert store.add_target(study.id, TARGET, "demo/cpu") == target


def test_fields_can_be_set_later(store: Store, target: int) -> None:
    study = store.study("demo")
    store.update_study(study.id, state="searching", config={"trials": 100})
    store.settle_target(target, latency_band=0.02, ranges_digest="b" * 64)
    assert (store.study("demo").state, store.study("demo").config) == ("searching", {"trials": 100})
    (record,) = store.targets(study.id)
    assert (record.latency_band, record.ranges_digest) == (0.02, "b" * 64)
    with pytest.raises(ValueError, match="cannot set name; fields are config"):
        store.update_study(study.id, name="other")


def test_a_name_is_taken_once(store: Store, target: int) -> None:
    with pytest.raises(StudyError, match="bitfront resume demo"):
        store.create_study(STUDY)
    for name in ("", "  ", "x" * 201):
        with pytest.raises(StudyError, match="cannot be used"):
            store.create_study(replace(STUDY, name=name))


def test_an_unknown_study_names_close_ones(store: Store) -> None:
    with pytest.raises(StudyError, match="holds no study yet"):
        store.study("demo")
    for name in ("resnet18-h200", "vit"):
        store.create_study(replace(STUDY, name=name))
    with pytest.raises(StudyError, match="Did you mean 'resnet18-h200'"):
        store.study("resnet18-h20")
    with pytest.raises(StudyError, match="It holds 'resnet18-h200', 'vit'"):
        store.study("zzz")


def test_groups_edges_and_choices_come_back(store: Store, target: int) -> None:
    study_id = store.study("demo").id
    texts = {"id": "g000", "name": "/conv", "op": "Conv", "output": "y", "block": "layer1", "pinned": "depthwise"}
    empty = {field.name: () for field in fields(Group) if field.name not in texts}
    group = Group(**{**empty, **texts, "nodes": ("/conv", "/relu"), "anchors": ("/conv",), "shape": (1, 8, 4, 4)})
    edges = (Edge(None, "g000", "x", 3), Edge("g000", "g001", "y", 1 << 40))
    choices = (Choice("g000", Precision.FP32, 0, True), Choice("g000", Precision.INT8, None, False, "no kernel"))
    for _ in range(2):
        store.set_groups(study_id, [group], edges)
        store.set_choices(target, "c" * 64, choices)
    (record,) = store.groups(study_id)
    assert plain(record) == {name: getattr(group, name) for name in plain(record)}
    assert (store.edges(study_id), store.choices(target)) == (edges, choices)
    assert store.targets(study_id)[0].space_digest == "c" * 64


def test_an_evaluation_comes_back_whole(store: Store, target: int) -> None:
    chosen, asked = assignment(2, 1), assignment(2, 2)
    evaluation_id = store.begin(target, chosen, "d" * 64, "w0", 7, "baseline:int8", asked=asked)
    evaluation = measured(chosen)
    audit = (AuditRow("g000", Precision.INT8, Precision.FP32, "k"), AuditRow("g001", Precision.FP16, None, ""))
    store.record(evaluation_id, replace(evaluation, audit=audit), "e" * 64)
    record = store.evaluation(target, 7)
    assert plain(record.evaluation) == plain(replace(evaluation, audit=audit))
    assert (record.id, record.trial, record.trials, record.status) == (evaluation_id, 7, (7,), "ok")
    assert (record.digest, record.role, record.worker) == ("d" * 64, "baseline:int8", "w0")
    assert (record.asked, record.artifact, record.final) == (asked, "e" * 64, None)
    assert record.finished_at is not None
    assert record.started_at <= record.finished_at
    table = store.evaluations(target)
    assert (list(table.not_obeyed), list(table.opaque)) == ([1], [1])
    assert plain(store.find(target, "d" * 64)) == plain(store.load(evaluation_id)) == plain(record)
    assert store.find(target, "f" * 64) is None
    with pytest.raises(KeyError):
        store.load(evaluation_id + 1)


def test_exports_come_back_with_their_levels(store: Store, target: int) -> None:
    finish(store, target, 0, 1)
    levels = (4, None)
    numbers = [store.begin(target, assignment(1), str(level) * 9, "w0", None, "export") for level in levels]
    store.begin(target, assignment(1), "f" * 64, "w0", None, "export")  # it still runs
    for number, level in zip(numbers, levels, strict=True):
        store.record(number, measured(assignment(1), engine=replace(ENGINE, optimization_level=level)), None)
    four, other = store.exports(target)
    assert four == ExportRecord(numbers[0], assignment(1), 4, 1.5, 2.0, 1, 1.5, 0)
    assert (other.id, other.level) == (numbers[1], None)


def test_what_was_not_told_of_an_engine_comes_back_as_nothing(store: Store, target: int) -> None:
    bare = Latency(1.5, 1.5, 0.0, None, np.array([1.5]), np.empty(0))
    audit = (AuditRow("g000", Precision.FP16, Precision.FP16, "k"),)
    number = finish(store, target, 0, 1, audit=audit, latency=bare, engine=None)
    other = finish(store, target, 1, 2)
    evaluation = store.load(number).evaluation
    assert (plain(evaluation.latency), evaluation.audit, evaluation.engine) == (plain(bare), audit, None)
    assert store.engines(target) == {other: ENGINE}
    with store._engine.connect() as connection:
        stored = connection.exec_driver_sql("select details from bf_audit where evaluation_id = 1").all()
        assert stored == [(None,)]


def test_a_profile_is_stored_with_the_evaluation_or_later(store: Store, target: int) -> None:
    first = finish(store, target, 0, 0, profile=LAYERS)
    second = finish(store, target, 1, 1)
    assert (store.profile(first), store.profile(second)) == (LAYERS, ())
    store.set_profile(second, LAYERS)
    store.set_profile(first, LAYERS[1:])
    assert (store.profile(first), store.profile(second)) == (LAYERS[1:], LAYERS)


def test_what_cannot_be_built_is_remembered_per_target(store: Store, target: int) -> None:
    other = store.add_target(store.study("demo").id, replace(TARGET, device="H200"), "demo/h200")
    choices = [Choice("g000", p, p.id, True) for p in (Precision.FP16, Precision.INT8)]
    for each in (target, other):
        store.set_choices(each, "c" * 64, choices)
    for _ in range(2):
        store.mark_unbuildable(target, "g000", Precision.INT8)
    assert store.unbuildable(target) == {("g000", Precision.INT8)}
    assert store.unbuildable(other) == frozenset()
    assert store.choices(target) == (choices[0], replace(choices[1], buildable=False))
    with pytest.raises(KeyError):
        store.mark_unbuildable(target, "g001", Precision.INT8)


def test_a_repaired_proposal_leaves_what_was_refused_without_trial_and_role(store: Store, target: int) -> None:
    asked, repaired = assignment(2, 2), assignment(0, 2)
    refusal = Failure(Stage.BUILD, FailureKind.REFUSED, "no kernel")
    first = store.begin(target, asked, asked.digest, "w0", 7, "baseline:int8")
    store.record(first, measured(asked, failure=refusal, accuracy=None), repaired=True)
    assert store.answer(target, 7) is None
    assert (store.load(first).trials, store.load(first).role) == ((), "")
    second = store.begin(target, repaired, repaired.digest, "w0", 7, "baseline:int8", asked=asked)
    store.record(second, measured(repaired))
    found = store.answer(target, 7)
    assert found is not None
    assert (found.id, found.asked, found.role) == (second, asked, "baseline:int8")
    assert [record.id for record in store.refused(target, asked)] == [first]
    assert store.refused(target, repaired) == ()


def test_each_trial_keeps_what_it_asked_for_of_a_shared_repair(store: Store, target: int) -> None:
    number = finish(store, target, 0, 0, 2)
    store.link_trial(target, 1, number, asked=assignment(2, 2))
    store.link_trial(target, 2, number)
    assert [store.evaluation(target, trial).asked for trial in (0, 1, 2)] == [None, assignment(2, 2), None]


def test_a_failure_comes_back_with_what_was_reached(store: Store, target: int) -> None:
    failure = Failure(Stage.ACCURACY, FailureKind.CRASHED, "signal 11", "log\0" + "x" * 100_000)
    finish(store, target, 0, 1, failure=failure, accuracy=None)
    evaluation = store.evaluation(target, 0).evaluation
    assert evaluation.failure == replace(failure, log=failure.log.replace("\0", "�"))
    assert (evaluation.latency is not None, evaluation.accuracy) == (True, None)
    assert [list(store.evaluations(target).stage), list(store.evaluations(target).kind)] == [["accuracy"], ["crashed"]]


def test_numbers_that_are_none_are_nan(store: Store, target: int) -> None:
    accuracy = Accuracy("top1", math.nan, math.inf, math.nan, math.nan, 1, 4, np.array([math.nan]))
    finish(store, target, 0, 1, accuracy=accuracy)
    stored = store.evaluation(target, 0).evaluation.accuracy
    assert stored is not None
    assert all(math.isnan(x) for x in (stored.value, stored.loss, *stored.scores))
    assert np.isnan(store.evaluations(target).loss).all()


def test_columns_of_many_evaluations(store: Store, target: int) -> None:
    assert len(store.evaluations(target)) == len(store.finals(target)) == 0
    first = finish(store, target, 0, 0)
    finish(store, target, 3, 1, failure=Failure(Stage.BUILD, FailureKind.REFUSED, "no"), latency=None, accuracy=None)
    store.begin(target, assignment(2), "d" * 64, "w0", None)
    store.set_final(first, Accuracy("top1", 0.5, 0.25, 0.0, 0.5, 3, 3, np.zeros(3)))
    table, finals = store.evaluations(target), store.finals(target)
    assert list(table.status) == ["ok", "failed", "running"]
    assert list(table.trial) == [0, 3, -1]
    assert list(table.memory_bytes) == [2 << 40, 2 << 40, -1]
    np.testing.assert_array_equal(table.latency_ms, [1.5, np.nan, np.nan])
    assert (list(finals.evaluation_id), list(finals.loss), list(finals.total)) == ([first], [0.25], [3])
    assert [[p.id for p in chosen.values()] for chosen in store.assignments(target).values()] == [[0], [1], [2]]
    (summary,) = store.studies()
    assert (summary.name, summary.targets, summary.ok, summary.failed, summary.running) == ("demo", 1, 1, 1, 1)


def test_a_digest_is_evaluated_once(store: Store, target: int) -> None:
    chosen = assignment(1)
    running = store.begin(target, chosen, chosen.digest, "w0", 0)
    with pytest.raises(KnownEvaluationError) as raised:
        store.begin(target, chosen, chosen.digest, "w1", 1)
    assert (raised.value.evaluation_id, raised.value.status) == (running, "running")
    assert (count(store, tables.Evaluation), count(store, tables.Lease), count(store, tables.Trial)) == (1, 1, 1)
    other = store.add_target(store.study("demo").id, replace(TARGET, device="H200"), "demo/h200")
    assert store.begin(other, chosen, chosen.digest, "w1", 0) != running


def test_a_trial_has_one_evaluation(store: Store, target: int) -> None:
    finish(store, target, 0, 0)
    with pytest.raises(ValueError, match="trial 0 has an evaluation already"):
        store.begin(target, assignment(1), "d" * 64, "w0", 0)
    assert count(store, tables.Evaluation) == 1


def test_several_trials_share_an_evaluation(store: Store, target: int) -> None:
    evaluation_id = finish(store, target, 2, 0)
    store.link_trial(target, 5, evaluation_id)
    record = store.evaluation(target, 5)
    assert (record.id, record.trial, record.trials) == (evaluation_id, 2, (2, 5))
    assert list(store.evaluations(target).trial) == [2]


def test_an_unknown_trial_names_the_range(store: Store, target: int) -> None:
    with pytest.raises(StudyError, match="has no trial yet"):
        store.evaluation(target, 0)
    finish(store, target, 1, 0)
    finish(store, target, 4, 1)
    with pytest.raises(StudyError, match=r"no trial 9\. The study has trials 1 to 4"):
        store.evaluation(target, 9)
    with pytest.raises(StudyError, match="Trial 2 was broken off"):
        store.evaluation(target, 2)


def test_a_running_evaluation_has_a_lease_until_it_ends(store: Store, target: int) -> None:
    evaluation_id = store.begin(target, assignment(1), "d" * 64, "w0", 0)
    (running,) = store.running(target)
    assert (running.id, running.digest, running.trial, running.worker) == (evaluation_id, "d" * 64, 0, "w0")
    assert running.heartbeat_age_s is not None
    assert running.heartbeat_age_s >= 0
    store.record(evaluation_id, measured(assignment(1)))
    assert (store.running(target), count(store, tables.Lease)) == ((), 0)


def test_the_lease_goes_by_the_clock_of_the_database_in_utc(store: Store, target: int) -> None:
    store.begin(target, assignment(1), "d" * 64, "w0", 0)
    with database.writing(store._engine) as connection:
        lease = connection.execute(select(tables.Lease.heartbeat)).scalar_one()
        year_ago = lease.replace(tzinfo=None) - timedelta(days=365)
        connection.execute(tables.Lease.__table__.update().values(heartbeat=year_ago))
    age = store.running(target)[0].heartbeat_age_s
    assert age is not None
    assert 365 * 86400 <= age < 365 * 86400 + 3600


def test_what_is_abandoned_leaves_nothing(store: Store, target: int) -> None:
    evaluation_id = store.begin(target, assignment(1), "d" * 64, "w0", 0)
    assert store.abandon(evaluation_id)
    assert not store.abandon(evaluation_id)
    assert [count(store, table) for table in (tables.Evaluation, tables.Lease, tables.Trial)] == [0, 0, 0]
    with pytest.raises(LostEvaluationError):
        store.record(evaluation_id, measured(assignment(1)), "e" * 64)
    assert [count(store, table) for table in (tables.Audit, tables.Sample, tables.Score, tables.Artifact)] == [0] * 4
    finished = finish(store, target, 1, 1)
    assert not store.abandon(finished)
    with pytest.raises(LostEvaluationError):
        store.record(finished, measured(assignment(1)))


def test_measuring_again_adds_rounds(store: Store, target: int) -> None:
    one, two = finish(store, target, 0, 1), finish(store, target, 1, 2)
    again = Latency(1.75, 1.75, 0.25, None, np.array([1.75]), np.empty(0), (), {"enqueue": 0.25}, {"before": {}})
    assert store.add_round(target, {one: again}) == 1
    first, second = store.evaluation(target, 0).rounds
    assert (first.number, second.number, plain(second.latency)) == (0, 1, plain(again))
    assert plain(store.evaluation(target, 0).evaluation.latency) == plain(first.latency)
    assert store.add_round(target, {one: again, two: again}) == 2
    assert [round_.number for round_ in store.evaluation(target, 1).rounds] == [0, 2]
    assert list(store.evaluations(target).latency_ms) == [1.5, 1.5]


def test_doubts_are_those_of_the_latest_measurement_until_one_is_clean(store: Store, target: int) -> None:
    one, two = finish(store, target, 0, 1), finish(store, target, 1, 2)
    assert store.doubts([one, two], None) == dict.fromkeys([one, two], ("clocks moved",))
    steady = Latency(1.75, 1.75, 0.25, None, np.array([1.75]), np.empty(0), ())
    doubtful = replace(steady, warnings=("too few samples", "throttled"))
    store.add_round(target, {one: doubtful})
    assert store.doubts([one], None) == {one: ("too few samples", "throttled")}
    store.add_round(target, {one: steady})
    assert store.doubts([one, two], None) == {two: ("clocks moved",)}
    store.add_round(target, {one: doubtful})
    assert store.doubts([one], None) == {}
    assert store.doubts([], None) == {}


def test_a_baseline_away_from_its_usual_time_is_a_doubt_when_read(store: Store, target: int) -> None:
    clean = Latency(1.5, 1.5, 0.5, 2.0, np.array([1.5]), np.array([2.0]), ())
    one = finish(store, target, 0, 1, latency=clean)
    two = finish(store, target, 1, 2, latency=replace(clean, baseline_ms=2.2))
    assert store.doubts([one, two], 2.0) == {two: ("the baseline ran 10.0% slower than usual",)}
    assert store.doubts([one, two], 2.2) == {one: ("the baseline ran 9.1% faster than usual",)}


def test_a_final_score_can_be_replaced(store: Store, target: int) -> None:
    evaluation_id = finish(store, target, 0, 1)
    for loss in (0.5, 0.25):
        final = Accuracy("top1", 0.5, loss, 0.0, 0.5, 2, 2, np.array([1.0, 0.0]))
        store.set_final(evaluation_id, final)
    record = store.evaluation(target, 0)
    assert plain(record.final) == plain(final)
    assert plain(record.evaluation.accuracy) == plain(measured(assignment(1)).accuracy)


def test_a_failure_on_the_final_split_is_no_score_and_gives_way_to_one(store: Store, target: int) -> None:
    evaluation_id = finish(store, target, 0, 1)
    notes = store.load(evaluation_id).evaluation.notes
    store.set_final_failure(evaluation_id, "top1", "first")
    store.set_final_failure(evaluation_id, "top1", "outputs are infinite")
    record, finals = store.load(evaluation_id), store.finals(target)
    assert (record.final, record.final_failure, record.evaluation.notes) == (None, "outputs are infinite", notes)
    assert (list(finals.evaluation_id), list(finals.samples), list(finals.failure)) == (
        [evaluation_id],
        [0],
        ["outputs are infinite"],
    )
    assert np.isnan([finals.value, finals.loss, finals.loss_low, finals.loss_high]).all()
    store.set_profile(evaluation_id, LAYERS, "its clocks moved")
    assert store.load(evaluation_id).final_failure == "outputs are infinite"
    store.set_final(evaluation_id, Accuracy("top1", 0.5, 0.25, 0.0, 0.5, 2, 2, np.zeros(2)))
    record, finals = store.load(evaluation_id), store.finals(target)
    assert record.final is not None
    assert (record.final.samples, record.final_failure) == (2, "")
    assert (list(finals.samples), list(finals.failure)) == ([2], [""])


def test_artifacts_are_kept_as_long_as_something_needs_them(store: Store, target: int) -> None:
    one, two, ranges = "1" * 64, "2" * 64, "3" * 64
    ids = [finish(store, target, i, i, artifact=one) for i in range(2)]
    ids.append(finish(store, target, 2, 2, artifact=two))
    store.add_artifact(ranges, "ranges", 10, key="model+data")
    store.settle_target(target, ranges_digest=ranges)
    assert store.release_artifacts(ids[:1]) == frozenset()
    assert store.release_artifacts(ids[1:2]) == {one}
    assert store.forget_artifact(one)
    assert {record.digest: record.kind for record in store.artifacts()} == {two: "engine", ranges: "ranges"}
    assert list(store.evaluations(target).artifact) == ["", "", two]
    finish(store, target, 3, 0, 1, artifact=two)
    other = store.add_target(store.create_study(replace(STUDY, name="other")), TARGET, "other/cpu")
    store.settle_target(other, ranges_digest=ranges)
    assert store.delete_study("demo") == {two}
    assert not store.forget_artifact(ranges)
    assert store.forget_artifact(two)
    assert [record.digest for record in store.artifacts()] == [ranges]


def test_a_cache_key_moves_to_the_newest_artifact(store: Store) -> None:
    for digest in ("1" * 64, "2" * 64, "2" * 64):
        store.add_artifact(digest, "ranges", 10, key="model+data")
    found = store.artifact("model+data")
    assert found is not None
    assert (found.digest, found.size_bytes, len(store.artifacts())) == ("2" * 64, 10, 2)
    assert store.artifact("other") is None


def test_deleting_a_study_takes_all_its_rows(store: Store, target: int) -> None:
    evaluation_id = finish(store, target, 0, 0, artifact="1" * 64, profile=LAYERS)
    store.set_final(evaluation_id, Accuracy("top1", 0.5, 0.25, 0.0, 0.5, 2, 2, np.zeros(2)))
    store.set_choices(target, "c" * 64, [Choice("g000", Precision.FP32, 0, True)])
    store.set_groups(store.study("demo").id, [], [Edge(None, "g000", "x", 1)])
    store.begin(target, assignment(1), "d" * 64, "w0", 1)
    assert store.delete_study("demo") == {"1" * 64}
    assert [record.kind for record in store.artifacts()] == ["unused engine"]  # its file is to be removed first
    assert store.forget_artifact("1" * 64)
    left = {table.__tablename__: count(store, table) for table in tables.Base.__subclasses__()}
    assert {name for name, rows in left.items() if rows} == {"bf_schema", "bf_target"}
    with pytest.raises(StudyError, match="no study 'demo'"):
        store.delete_study("demo")


def test_optuna_lives_in_the_same_database(store: Store, target: int, url: str) -> None:
    import optuna

    storage = optuna_storage(url)
    study = optuna.create_study(study_name="demo/cpu", storage=storage, directions=["minimize", "minimize"])
    trial = study.ask({"g000": optuna.distributions.IntDistribution(0, 2)})
    finish(store, target, trial.number, trial.params["g000"])
    study.tell(trial, (1.5, 0.25))
    optuna.delete_study(study_name="demo/cpu", storage=storage)
    storage.remove_session()
    storage.engine.dispose()
    assert store.evaluation(target, 0).status == "ok"
