"""What a builder refuses: what is recorded, learnt and told of it, also when the run is killed in between."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from search.values import Evaluation, Failure, FailureKind, Stage
from studies.run.claims.claim import Refusals
from tests.support.command_line import environment, ok, run_sql, write_inputs
from tests.support.forks.processes import run_python
from tests.support.networks import mobile_cnn

pytestmark = pytest.mark.slow

SECOND = "refuse:g001=int8"
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


def evaluations(where: str = "1") -> list[tuple[int, str, str, dict[str, str]]]:
    """Id, status, role and assignment."""
    query = f"select id, status, role, assignment from bf_evaluation where {where} order by id"
    return [(number, status, role, json.loads(assignment)) for number, status, role, assignment in run_sql(query)]


def unbuildable() -> list[tuple[str, int]]:
    return run_sql('select "group", precision from bf_choice where not buildable order by 1, 2')


def check_told() -> None:
    """Every trial that is linked was told what its evaluation says; nothing is open."""
    assert run_sql("select count(*) from trials where state = 'RUNNING'") == [(0,)]
    assert run_sql("select count(*) from bf_evaluation where status = 'running'") == [(0,)]
    assert run_sql("select count(*) from bf_lease") == [(0,)]
    linked = run_sql(
        "select o.state, e.status, e.raw_ms, e.loss, o.trial_id from bf_trial t "
        "join trials o on o.number = t.number join bf_evaluation e on e.id = t.evaluation_id"
    )
    for state, status, raw_ms, loss, trial in linked:
        told = run_sql("select value from trial_values where trial_id = ? order by objective", trial)
        assert state == ("COMPLETE" if status == "ok" else "FAIL")
        assert [value for (value,) in told[1:]] == ([loss] if status == "ok" else [])
        assert (len(told) == 2 and told[0][0] > 0 and raw_ms > 0) if status == "ok" else not told
    complete = run_sql("select count(*) from trials where state = 'COMPLETE'")[0][0]
    assert complete == sum(state == "COMPLETE" for state, *_ in linked)


def test_a_refusal_is_final(here: Path) -> None:
    assert "every one of the 8 assignments has been evaluated" in search(*refuse(SECOND), "--trials", 50)
    assert run_sql("select status, count(*) from bf_evaluation group by 1 order by 1") == [("failed", 4), ("ok", 4)]
    assert evaluations("role = 'baseline:int8'")[0][1:] == ("failed", "baseline:int8", ALL_INT8)
    message = run_sql("select kind, message from bf_evaluation where role = 'baseline:int8'")
    assert message == [("refused", "an invented fault: second in int8")]
    assert unbuildable() == [("g001", 2)], "known to whoever asks, though this sampler heeds nothing"
    check_told()


def test_guided_does_not_propose_what_was_refused(here: Path) -> None:
    """Its uniform assignment fails; all four that can be built are found, the one nearest to it among them."""
    said = search(*refuse(SECOND), "--trials", 50, sampler="guided")
    assert "every one of the 4 assignments that can be built has been evaluated" in said
    fp32, refused, *rest = evaluations()
    assert fp32[1:3] == ("ok", "baseline:fp32")
    assert refused[1:] == ("failed", "baseline:int8", ALL_INT8)
    assert [row[1] for row in rest] == ["ok"] * 3
    assert [assignment["g001"] for *_, assignment in rest] == ["fp32"] * 3
    assert {**ALL_INT8, "g001": "fp32"} in [assignment for *_, assignment in rest]
    assert unbuildable() == [("g001", 2)]
    check_told()
    assert "every one of the 4 assignments that can be built" in ok("resume", "s", "--trials", 60)
    assert len(evaluations()) == 5


def test_guided_loses_one_evaluation_to_a_pair(here: Path) -> None:
    write_inputs(here / "in", mobile_cnn())
    search(*refuse("refuse:g003=int8"), "--trials", 10, sampler="guided")
    assert [assignment["g003"] for *_, assignment in evaluations("status = 'failed'")] == ["int8"]
    assert len(evaluations()) == 10
    assert unbuildable() == [("g003", 2)]


def test_a_refusal_that_names_no_group_teaches_nothing(here: Path) -> None:
    search(*refuse("refuse-unnamed:g001=int8"), "--trials", 4)
    assert evaluations("role = 'baseline:int8'")[0][1:] == ("failed", "baseline:int8", ALL_INT8)
    assert unbuildable() == []
    check_told()


@pytest.mark.parametrize(("precision", "learnt"), [("int8", True), ("fp32", False)])
def test_what_is_refused_in_its_highest_precision_is_not_learnt(
    here: Path, precision: str, learnt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would be left for that group, so no mix could be proposed any more."""
    found = []
    learn = Refusals.learn

    def learn_of_another(refusals: Refusals, trial: int, evaluation: Evaluation) -> None:
        group = "g001" if evaluation.assignment["g001"].label == precision else None
        failure = Failure(Stage.BUILD, FailureKind.REFUSED, "no such kernel", group=group)
        learn(refusals, trial, Evaluation(evaluation.assignment, failure))
        found.append(refusals.unbuildable)

    monkeypatch.setattr(Refusals, "learn", learn_of_another)
    search("--trials", 3, sampler="guided")
    assert [(group, each.label) for group, each in found[-1]] == ([("g001", "int8")] if learnt else [])


def test_baselines_alone_keep_the_times_of_their_layers(here: Path) -> None:
    search("--trials", 4)
    owners = run_sql("select distinct role from bf_profile p join bf_evaluation e on e.id = p.evaluation_id order by 1")
    assert owners == [("baseline:fp32",), ("baseline:int8",)]


# A process that kills itself right after the moment that the environment names.
SUICIDE = """
import os, signal
from bitfront.cli import main as cli
from studies.trials import proposals
from studies.store.reading import repeats
from studies.store.repositories.claims import Claims
from studies.store.repositories.spaces import Spaces
repeats.BUILDS = 1
repeats.PROCESSES = 0
refused = []

def after(owner, name, moment, is_it):
    real = getattr(owner, name)
    def wrapped(self, *arguments, **options):
        result = real(self, *arguments, **options)
        if is_it(arguments) and os.environ['MOMENT'] == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, wrapped)

def refuses(arguments):
    if arguments[1].failure is not None:
        refused.append(arguments[0])
    return bool(refused)

after(Spaces, 'mark_unbuildable', 'marked', lambda arguments: True)
after(Claims, 'record', 'recorded', refuses)
after(proposals.Proposals, 'tell', 'told', lambda arguments: bool(refused))
cli.main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sends Linux signals")
@pytest.mark.parametrize("moment", ["marked", "recorded", "told"])
def test_a_run_killed_as_it_learns_of_a_refusal(here: Path, moment: str) -> None:
    inputs = [*INPUTS, "--sampler", "guided", *refuse(SECOND)]
    words = [sys.executable, "-c", SUICIDE, "search", *inputs, "--trials", "50", "--quiet"]
    done = run_python(words, env=environment({"MOMENT": moment}))
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = evaluations("status <> 'running'")
    ok("resume", "s")
    check_told()
    assert [row for row in evaluations() if row in before] == before
    assert [assignment["g001"] for *_, assignment in evaluations("status = 'ok'")] == ["fp32"] * 4
    assert [row[1:] for row in evaluations("status = 'failed'")] == [("failed", "baseline:int8", ALL_INT8)]
    assert unbuildable() == [("g001", 2)]
