"""Repair of what a builder refuses: what is tried, recorded and told, also when the run is killed in between."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest

from search.sampler.guided import Guidance, GuidedSampler
from search.values import Precision
from studies.run.guidance.guidance import make_guidance
from tests.support.command_line import DATABASE, environment, ok, write_inputs
from tests.support.forks.processes import run_python
from tests.support.networks import mobile_cnn

pytestmark = pytest.mark.slow

SECOND = "refuse:g001=int8"
THIRD = "refuse:g002=int8"
REFUSALS = {"g001": "an invented fault: second in int8", "g002": "an invented fault: fc in int8"}
INPUTS = ("in/model.onnx", "--data", "in/data.npz", "--study", "s", "--backend", "fake")
INPUTS += ("--backend-option", "fake-precision=int8")
ALL_INT8 = {"g000": "int8", "g001": "int8", "g002": "int8"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with inputs of eight assignments."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    return tmp_path


def refuse(*faults: str) -> list[str]:
    """Options by which the fake backend refuses to build."""
    return [word for fault in faults for word in ("--backend-option", f"fake-fault={fault}")]


def search(*arguments: Any, sampler: str = "random") -> str:
    return ok("search", *INPUTS, "--sampler", sampler, *arguments)


def rows(query: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(DATABASE)
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


def evaluations(where: str = "1") -> list[tuple[int, str, str, dict[str, str], dict[str, str] | None]]:
    """Id, status, role, assignment and what was proposed instead."""
    query = f"select id, status, role, assignment, asked_assignment from bf_evaluation where {where} order by id"
    return [
        (number, status, role, json.loads(assignment), None if asked is None else json.loads(asked))
        for number, status, role, assignment, asked in rows(query)
    ]


def unbuildable() -> list[tuple[str, int]]:
    return rows('select "group", precision from bf_choice where not buildable order by 1, 2')


def check_told() -> None:
    """Every trial that is linked was told what its evaluation says; nothing is open."""
    assert rows("select count(*) from trials where state = 'RUNNING'") == [(0,)]
    assert rows("select count(*) from bf_evaluation where status = 'running'") == [(0,)]
    assert rows("select count(*) from bf_lease") == [(0,)]
    linked = rows(
        "select o.state, e.status, e.raw_ms, e.loss, o.trial_id from bf_trial t "
        "join trials o on o.number = t.number join bf_evaluation e on e.id = t.evaluation_id"
    )
    for state, status, raw_ms, loss, trial in linked:
        told = rows("select value from trial_values where trial_id = ? order by objective", trial)
        assert state == ("COMPLETE" if status == "ok" else "FAIL")
        assert [value for (value,) in told[1:]] == ([loss] if status == "ok" else [])
        assert (len(told) == 2 and told[0][0] > 0 and raw_ms > 0) if status == "ok" else not told
    complete = rows("select count(*) from trials where state = 'COMPLETE'")[0][0]
    assert complete == sum(state == "COMPLETE" for state, *_ in linked)


def test_what_is_refused_is_repaired_and_all_of_it_recorded(here: Path) -> None:
    said = search(*refuse(SECOND), "--trials", 50, "--repair", 1)
    assert "every one of the 4 assignments that can be built has been evaluated" in said
    fp32, asked, repaired, *rest = evaluations()
    assert fp32[1:3] == ("ok", "baseline:fp32")
    assert asked[1:] == ("failed", "", ALL_INT8, None)
    assert repaired[1:] == ("ok", "baseline:int8", {**ALL_INT8, "g001": "fp32"}, ALL_INT8)
    assert rows("select kind, message from bf_evaluation where id = ?", asked[0]) == [("refused", REFUSALS["g001"])]
    assert rows("select number, reused from bf_trial where evaluation_id = ?", repaired[0])[0] == (1, 0)
    assert rows("select number from bf_trial where evaluation_id = ?", asked[0]) == []
    assert unbuildable() == [("g001", 2)]
    # Later proposals lose no build to what is known; of the four that can be built, the other two came.
    assert [(status, assignment["g001"]) for _, status, _, assignment, _ in rest] == [("ok", "fp32")] * 2
    check_told()


def test_show_says_what_was_proposed_and_what_was_built(here: Path) -> None:
    search(*refuse(SECOND), "--trials", 50, "--repair", 1)
    shown = json.loads(ok("show", "s", 1, "--json"))
    assert [(group["proposed"], group["asked"]) for group in shown["groups"]] == [
        ("int8", "int8"), ("int8", "fp32"), ("int8", "int8")
    ]  # fmt: skip
    assert [refused["message"] for refused in shown["refused"]] == [REFUSALS["g001"]]
    assert (shown["status"], shown["role"]) == ("ok", "baseline:int8")
    text = ok("show", "s", 1)
    assert "a repair of all int8" in text
    assert REFUSALS["g001"] in text
    # A trial whose repair was there already says so too, whatever the trial proposed that it was built for.
    repeats = rows("select number, asked_assignment from bf_trial where reused and asked_assignment is not null")
    assert repeats  # a random sampler proposes half of its trials with what cannot be built
    for number, asked in repeats[:2]:
        groups = json.loads(ok("show", "s", number, "--json"))["groups"]
        assert {group["group"]: group["proposed"] for group in groups} == json.loads(asked)
        assert {group["group"]: group["asked"] for group in groups} == {**json.loads(asked), "g001": "fp32"}
    ok("report", "s", "--out", "s.html")
    assert REFUSALS["g001"] in Path("s.html").read_text()


def test_without_repair_a_refusal_is_final(here: Path) -> None:
    assert "every one of the 8 assignments has been evaluated" in search(*refuse(SECOND), "--trials", 50)
    assert rows("select status, count(*) from bf_evaluation group by 1 order by 1") == [("failed", 4), ("ok", 4)]
    assert evaluations("role = 'baseline:int8'")[0][1:] == ("failed", "baseline:int8", ALL_INT8, None)
    assert rows("select count(*) from bf_evaluation where asked_assignment is not null") == [(0,)]
    assert unbuildable() == [("g001", 2)], "known to whoever asks, though this sampler heeds nothing"
    check_told()


def test_without_repair_guided_does_not_propose_what_was_refused(here: Path) -> None:
    """Its uniform assignment fails; all four that can be built are found, among them what the repair would be."""
    said = search(*refuse(SECOND), "--trials", 50, sampler="guided")
    assert "every one of the 4 assignments that can be built has been evaluated" in said
    fp32, refused, *rest = evaluations()
    assert fp32[1:3] == ("ok", "baseline:fp32")
    assert refused[1:] == ("failed", "baseline:int8", ALL_INT8, None)
    assert [row[1] for row in rest] == ["ok"] * 3
    assert [(assignment["g001"], asked) for *_, assignment, asked in rest] == [("fp32", None)] * 3
    assert {**ALL_INT8, "g001": "fp32"} in [assignment for *_, assignment, _ in rest]
    assert unbuildable() == [("g001", 2)]
    check_told()
    assert "every one of the 4 assignments that can be built" in ok("resume", "s", "--trials", 60)
    assert len(evaluations()) == 5


@pytest.mark.parametrize("repair", [0, 2])
def test_guided_loses_one_evaluation_to_a_pair(here: Path, repair: int) -> None:
    write_inputs(here / "in", mobile_cnn())
    search(*refuse("refuse:g003=int8"), "--trials", 10, "--repair", repair, sampler="guided")
    assert [assignment["g003"] for *_, assignment, _ in evaluations("status = 'failed'")] == ["int8"]
    assert len(evaluations()) == 10
    assert unbuildable() == [("g003", 2)]


@pytest.mark.parametrize("repair", [0, 1])
def test_what_was_refused_counts_as_its_repair_only_where_that_was_built(
    here: Path, monkeypatch: pytest.MonkeyPatch, repair: int
) -> None:
    """Else the sampler would take the mix nearest to all INT8 for tried, and never propose it."""
    made = []

    def caught(work: Any) -> Guidance:
        made.append(make_guidance(work))
        return made[-1]

    monkeypatch.setattr("studies.run.guidance.guidance.make_guidance", caught)
    search(*refuse(SECOND), "--trials", 2 + repair, "--repair", repair, sampler="guided")
    trials = optuna.load_study(study_name=None, storage=f"sqlite:///{DATABASE}").trials
    seen = GuidedSampler(made[0], 0).history(trials, {("g001", Precision.INT8)}).seen
    built = ["fp32", "int8", *(["repaired"] if repair else [])]
    codes = {"fp32": (0, 0, 0), "int8": (1, 1, 1), "repaired": (1, 0, 1)}
    assert seen == {codes[name] for name in built}


def test_a_refusal_that_names_no_group_is_final(here: Path) -> None:
    search(*refuse("refuse-unnamed:g001=int8"), "--trials", 4, "--repair", 3)
    assert evaluations("role = 'baseline:int8'")[0][1:] == ("failed", "baseline:int8", ALL_INT8, None)
    assert unbuildable() == []
    check_told()


def test_no_more_repairs_than_allowed(here: Path) -> None:
    search(*refuse(SECOND, THIRD), "--trials", 50, "--repair", 1)
    first, second = evaluations("status = 'failed'")
    assert first[2:] == ("", ALL_INT8, None)
    # The trial is answered by the last that was tried, and what that taught is remembered.
    assert second[2:] == ("baseline:int8", {**ALL_INT8, "g001": "fp32"}, ALL_INT8)
    assert rows("select number from bf_trial where evaluation_id = ?", second[0]) == [(1,)]
    assert rows("select state from trials where number = 1") == [("FAIL",)]
    assert unbuildable() == [("g001", 2), ("g002", 2)]
    assert [assignment for *_, assignment, _ in evaluations("status = 'ok'")] == [
        dict.fromkeys(ALL_INT8, "fp32"), {**dict.fromkeys(ALL_INT8, "fp32"), "g000": "int8"}
    ]  # fmt: skip
    check_told()


def test_several_repairs_of_one_proposal(here: Path) -> None:
    search(*refuse(SECOND, THIRD), "--trials", 50, "--repair", 2)
    _, first, second, third = evaluations()
    assert [(row[1], row[2], row[4]) for row in (first, second, third)] == [
        ("failed", "", None), ("failed", "", ALL_INT8), ("ok", "baseline:int8", ALL_INT8)
    ]  # fmt: skip
    messages = [refused["message"] for refused in json.loads(ok("show", "s", 1, "--json"))["refused"]]
    assert messages == list(REFUSALS.values())
    check_told()


def test_repairs_count_and_never_exceed_the_total(here: Path) -> None:
    assert "2 evaluations are done" in search(*refuse(SECOND), "--trials", 2, "--repair", 5)
    assert evaluations()[1][1:3] == ("failed", "baseline:int8")
    assert unbuildable() == [("g001", 2)]
    assert "3 evaluations are done" in ok("resume", "s", "--trials", 3)
    assert evaluations()[2][1:] == ("ok", "baseline:int8", {**ALL_INT8, "g001": "fp32"}, ALL_INT8)
    check_told()


def test_a_block_is_repaired_as_one(here: Path) -> None:
    write_inputs(here / "in", mobile_cnn())
    search(*refuse(THIRD), "--trials", 6, "--repair", 2, "--granularity", "block")
    blocks = dict(rows('select "group", block from bf_group'))
    [(*_, assignment, asked)] = evaluations("role = 'baseline:int8'")
    assert asked is not None
    changed = {group for group in assignment if assignment[group] != asked[group]}
    assert changed == {group for group in blocks if blocks[group] == blocks["g002"]}
    assert len(changed) > 1
    check_told()


def test_baselines_alone_keep_the_times_of_their_layers(here: Path) -> None:
    search("--trials", 4)
    owners = rows("select distinct role from bf_profile p join bf_evaluation e on e.id = p.evaluation_id order by 1")
    assert owners == [("baseline:fp32",), ("baseline:int8",)]


# A process that kills itself right after the moment that the environment names.
SUICIDE = """
import os, signal
from bitfront.cli import main as cli
from studies.trials import proposals
from studies.run.noise import repeatability
from studies.store.reading import repeats
from studies.store.repositories.claims import Claims
from studies.store.repositories.spaces import Spaces
from studies.store.repositories.trials import Trials
repeatability._REPEATS = repeats.BUILDS = 1
repeats.PROCESSES = 0
begun = set()

def after(owner, name, moment, is_it):
    real = getattr(owner, name)
    def wrapped(self, *arguments, **options):
        result = real(self, *arguments, **options)
        if is_it(result, arguments, options) and os.environ['MOMENT'] == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, wrapped)

def begins(result, arguments, options):
    if options.get('asked') is None:
        return False
    begun.add(result)
    return True

after(Claims, 'begin', 'repair begun', begins)
after(Spaces, 'mark_unbuildable', 'marked', lambda *_: True)
after(Claims, 'record', 'refusal recorded', lambda r, a, o: o.get('repaired'))
after(Claims, 'record', 'repair recorded', lambda r, a, o: a[0] in begun)
after(Trials, 'link', 'repeated and linked', lambda r, a, o: o.get('asked') is not None)
after(proposals.Proposals, 'tell', 'repair told', lambda *_: bool(begun))
cli.main()
"""
MOMENTS = ["marked", "refusal recorded", "repair begun", "repair recorded", "repair told", "repeated and linked"]


@pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_killed_in_the_middle_of_a_repair(here: Path, moment: str) -> None:
    inputs = [*INPUTS, "--sampler", "random", "--repair", "1", *refuse(SECOND)]
    words = [sys.executable, "-c", SUICIDE, "search", *inputs, "--trials", "50", "--quiet"]
    done = run_python(words, env=environment({"MOMENT": moment}))
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = evaluations("status <> 'running'")
    ok("resume", "s")
    check_told()
    assert [row for row in evaluations() if row in before] == before
    good = evaluations("status = 'ok'")
    assert len(good) == 4
    assert [assignment["g001"] for *_, assignment, _ in good] == ["fp32"] * 4
    assert [row[2] for row in good if row[2]] == ["baseline:fp32", "baseline:int8"]
    # Refused once: recorded, unless the run was killed before that was.
    assert len(evaluations("status = 'failed'")) == (0 if moment == "marked" else 1)
    assert unbuildable() == [("g001", 2)]
