"""A value in the database that nobody could have written is named by table and column, whatever verb reads it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import bitfront
from search.errors import StudyError
from studies.judging import study_lookup
from studies.store.database import connections
from studies.store.store import Store
from tests.support.command_line import DATABASE, copy_finished, invoke, ok

DAMAGES: dict[str, tuple[str, Any]] = {
    "bf_study.config": ("bf_study", "{"),
    "bf_study.metric": ("bf_study", "[]"),
    "bf_study.created_at": ("bf_study", "yesterday"),
    "bf_target.description": ("bf_target", '{"backend": 1}'),
    "bf_group.nodes": ("bf_group", '"conv"'),
    "bf_worker.spent": ("bf_worker", '{"start": "x"}'),
    "bf_evaluation.stage_s": ("bf_evaluation", '{"build": []}'),
    "bf_evaluation.loss": ("bf_evaluation", 9e999),
    "bf_audit.details": ("bf_audit", '{"layer": 1}'),
    "bf_evaluation.assignment": ("bf_evaluation", '{"g999": "int8"}'),
    "bf_evaluation.status": ("bf_evaluation", "unheard of"),
    "bf_evaluation.raw_ms": ("bf_evaluation", "fast"),
    "bf_evaluation.engine": ("bf_evaluation", '{"a": 1}'),
    "bf_evaluation.samples": ("bf_evaluation", 2**62),
    "bf_score.scores": ("bf_score", b"abc"),
    "bf_sample.samples": ("bf_sample", "x"),
    "bf_audit.asked": ("bf_audit", -3),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    return tmp_path


def test_a_good_database_has_no_damage(here: Path) -> None:
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        assert store.database.find_damage() == ""


@pytest.mark.slow
@pytest.mark.parametrize("place", DAMAGES)
def test_damage_is_named_and_ends_no_verb_in_a_traceback(here: Path, place: str) -> None:
    table, value = DAMAGES[place]
    column = place.partition(".")[2]
    with sqlite3.connect(here / DATABASE) as database:
        database.execute(f"update {table} set {column} = ?", [value])
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        assert f"table {table}, column {column}" in store.database.find_damage()
    told = 0
    reading = ("front small", "front small --all", "show small 1", "status small", "status")
    for words in map(str.split, reading):
        result = invoke(*words)
        assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
        told += f"table {table}, column {column}" in " ".join(result.stderr.split())
    if place not in ("bf_study.config", "bf_audit.asked", "bf_evaluation.status"):
        assert told > 0  # some of these verbs read it


@pytest.mark.slow
def test_a_count_that_only_another_contradicts_is_named_too(here: Path) -> None:
    with sqlite3.connect(here / DATABASE) as database:
        database.execute("update bf_evaluation set samples = total_samples + 1")
    result = invoke("front", "small")
    assert result.exit_code == 2, result.exception
    assert "table bf_evaluation, column samples: 31 of 30 samples" in " ".join(result.stderr.split())


def test_rows_of_groups_that_the_study_has_not_are_named(here: Path) -> None:
    with sqlite3.connect(here / DATABASE) as database:
        database.execute("update bf_sensitivity set `group` = 'g999' where `group` = 'g001'")
    result = invoke("sensitivity", "small")
    assert result.exit_code == 2, result.exception
    assert "table bf_sensitivity, column group: the study has no group 'g999'" in " ".join(result.stderr.split())


def test_a_fault_of_the_program_stays_one(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(study_lookup, "standing_of", fail)
    assert isinstance(invoke("front", "small").exception, KeyError)


def test_no_statement_runs_for_ever(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STATEMENT_S", 0.2)
    endless = "with recursive n(x) as (select 1 union all select x + 1 from n) select * from n where x < 0"
    with sqlite3.connect(here / DATABASE) as database:
        database.execute("alter table bf_study rename to kept")
        columns = ", ".join(f"x as {row[1]}" for row in database.execute("pragma table_info(kept)"))
        database.execute(f"create view bf_study as select {columns} from ({endless})")
    result = invoke("status")
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    ok("--help")


NESTED: dict[str, tuple[str, str, Any, str]] = {
    "clusters": ("data", "$.clusters", "[]", "expected a mapping, got []"),
    "trials": ("config", "$.trials", "{}", "expected a whole number, got {}"),
    "lease": ("config", "$.lease_s", "1e9", "--lease: expected at most"),
    "limit": ("config", "$.max_drop.value", '"x"', "expected a finite number, got 'x'"),
    "notes": ("metric", "$.notes", '"x"', "expected a list, got 'x'"),
    "shape": ("model", "$.inputs[0][2]", "[-1]", "expected at least 0, got -1"),
    "packages": ("environment", "$.packages", '{"numpy": null}', "expected a text, got None"),
}


@pytest.mark.parametrize("case", NESTED)
def test_a_nested_value_of_another_type_is_told_with_its_row_and_what_was_expected(here: Path, case: str) -> None:
    column, path, value, why = NESTED[case]
    with sqlite3.connect(here / DATABASE) as database:
        database.execute(f"update bf_study set {column} = json_set({column}, ?, json(?))", [path, value])
    result = invoke("front", "small")
    said = " ".join(result.stderr.split())
    assert result.exit_code == 2, (said, result.exception)
    assert f"is damaged: table bf_study, column {column}, row id 1: " in said
    assert why in said
    assert "Restore a copy of it." in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "update bf_study_target set latency_band = null; update bf_repeat set raw_ms = 1e-320",
            "bf_repeat, column raw_ms, row id 1: expected a number from 1e-09",
        ),
        ("update bf_sample set baseline_ms = 1e308", "bf_sample, column baseline_ms, row evaluation_id 1"),
        (
            "update bf_worker set spent = '{\"start\": 1e300}'",
            "bf_worker, column spent, row id 1: the value.start",
        ),
        (
            "update bf_worker set spent_at = '0001-01-01 00:00:00'",
            "bf_worker, column spent_at, row id 1",
        ),
        (
            "update bf_study_target set details = "
            """json_set(details, '$.closing', json('{"step": "x", "until": "y"}'))""",
            "bf_study_target, column details, row id 1: Invalid isoformat string: 'y'",
        ),
        ("update bf_evaluation set raw_ms = 1e200", "bf_evaluation, column raw_ms, row id 1: expected a number from"),
        ("update bf_evaluation set loss = 1e200", "bf_evaluation, column loss, row id 1: expected a finite number"),
        ("update bf_evaluation set loss_low = null where id = 2", "column loss_low: an interval from None to"),
        (
            "update bf_evaluation set loss_low = 0.9, loss_high = 0.1",
            "bf_evaluation, column loss_low: an interval from",
        ),
        (
            "update bf_study_target set details = json_set(details, '$.repeatability', -0.5)",
            "the value.repeatability: expected at least 0, got -0.5",
        ),
    ],
)
def test_bands_that_are_none_are_told(here: Path, change: str, says: str) -> None:
    with sqlite3.connect(here / DATABASE) as database:
        database.executescript(change)
    result = max((invoke(verb, "small") for verb in ("front", "status")), key=lambda result: result.exit_code)
    assert result.exit_code == 2, result.exception
    assert says in " ".join(result.stderr.split())


def test_python_is_told_of_damage_as_the_command_line_is(here: Path) -> None:
    with sqlite3.connect(here / DATABASE) as database:
        database.execute("update bf_study set data = json_set(data, '$.clusters', json('[]'))")
    with pytest.raises(StudyError, match="is damaged: table bf_study, column data, row id 1"):
        bitfront.load("small", storage=f"sqlite:///{DATABASE}")


def test_what_a_dropped_key_was_needed_for_is_told(here: Path) -> None:
    with sqlite3.connect(here / DATABASE) as database:
        database.execute("update bf_study set config = json_remove(config, '$.trials')")
    result = invoke("status", "small")
    assert result.exit_code == 2, result.exception
    assert "expected 'trials' among the options, which is missing" in " ".join(result.stderr.split())
