"""What several find out at once is stored once, and what they were told stays."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from evaluators.diagnose.group_error import GroupError
from search.values import Precision
from studies.artifacts.folder import Artifacts
from studies.artifacts.leftovers import drop, kept_engine
from studies.crew import SharedCrew
from studies.options.read_options import change_config, read_changes
from studies.run.session.study_rows import explicit_options
from studies.store import target_options
from studies.store.database import tables
from studies.store.records import CalibrationRecord, ChoiceRecord, TargetRecord
from studies.store.store import Store
from tests.support.records import choice_record
from tests.support.study_rows import LEASE_S, STUDY, TARGET, WORKERS, at_once, finish, group, grow_old


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
    other = replace(TARGET, device="H200")
    assert len(set(at_once(*[lambda: store.targets.add(made[0], other, "s0/h200")] * WORKERS))) == 1
    assert len(store.targets.of_study(made[0])) == 2


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
    at_once(*(partial(store.targets.add_details, target, **{f"k{i}": 1}) for i in range(WORKERS)))
    (now,) = store.targets.of_study(store.studies.load("demo").id)
    assert now.details == {"rebuild": 0.01, **{f"k{i}": 1 for i in range(WORKERS)}}


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


def test_what_others_were_told_meanwhile_is_not_overwritten(store: Store) -> None:
    """A run that was told 60 when it began stores that while another raises the total, whichever comes first."""
    config = {"model": "/m.onnx", "data": "/d.npz", "study": "demo", "backend": "onnxruntime", "trials": 60}
    store.studies.create(STUDY.with_values(config=config))
    study = store.studies.load("demo")
    store.targets.add(study.id, TARGET, "a")
    store.targets.add(study.id, replace(TARGET, device="L4"), "b", options={"trials": 70})

    def run(place: int, **options: str) -> None:
        """As it was read before anybody stored anything."""
        told = change_config(target_options.config_of(study, known[place]), read_changes(options))
        target_options.remember(store, study, known[place], explicit_options(told))

    known = store.targets.of_study(study.id)
    for place, now in ((0, "60"), (1, "70")):
        told = [{"trials": now}, {"trials": "500"}, {"trials": "90"}, {"trials": "40"}, {"max-drop": "1%"}]
        with ThreadPoolExecutor(len(told)) as pool:
            list(pool.map(lambda options, place=place: run(place, **options), told))
        options = [
            store.studies.load("demo").config,
            *(t.options or {} for t in store.targets.of_study(study.id)[1:]),
        ][place]
        assert (options["trials"], options["max_drop"]["value"]) == (500, 0.01)
    known = store.targets.of_study(study.id)
    study = store.studies.load("demo")
    run(0, trials="40")
    assert store.studies.load("demo").config["trials"] == 40, "nobody else changed it, so it may be lowered"


def test_studies_that_keep_and_drop_one_engine_at_once(url: str, tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path / "engines")

    def work(name: str) -> list[int]:
        """The trials that refer to an engine which is gone."""
        with Store.open(url) as store:
            target, lost = store.targets.add(store.studies.create(STUDY.with_values(name=name)), TARGET, name), []
            for trial in range(25):
                path = tmp_path / f"{name}.engine"
                path.write_bytes(b"the same engine")
                with kept_engine(store, artifacts, path) as digest:
                    number = finish(store, target, trial, trial % 3, trial // 3 % 3, trial // 9, artifact=digest)
                lost += [trial] if digest not in artifacts else []
                drop(store, artifacts, store.files.release_engines([number]))
            return lost

    Store.open(url, create=True).close()
    assert at_once(partial(work, "one"), partial(work, "two")) == [[], []]
    with Store.open(url) as store:
        assert (list(artifacts.folder.iterdir()), store.files.all()) == ([], ())


def test_a_key_that_several_give_at_once_is_of_one_of_their_files(store: Store) -> None:
    for key in "abcd":
        digests = [f"{number}{key}" * 32 for number in range(WORKERS)]
        at_once(*(partial(store.files.add, digest, "ranges", 10, key=key) for digest in digests))
        found = store.files.find(key)
        assert found is not None
        assert found.digest in digests
        assert set(digests) <= {record.digest for record in store.files.all()}
