"""A mix that did not run as asked is told so wherever it is shown, and its kind is not proposed again."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import pytest

import bitfront
from tests.support.command_line import DATABASE, invoke, ok, write_inputs

SEARCH = ("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--backend", "fake")
INT8_ONLY = ("--backend-option", "fake-precision=int8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    return tmp_path


def disobeyed() -> dict[int, bool]:
    """Lowest trial of each evaluation → whether some group of its engine ran in another precision than asked."""
    connection = sqlite3.connect(DATABASE)
    query = (
        "select min(t.number), e.not_obeyed > 0 from bf_trial t join bf_evaluation e on e.id = t.evaluation_id "
        "group by e.id"
    )
    found = {number: bool(wrong) for number, wrong in connection.execute(query)}
    connection.close()
    return found


@pytest.mark.slow
def test_every_view_tells_of_a_mix_that_did_not_run_as_asked(here: Path) -> None:
    """Without limits there is nothing that it could miss."""
    fault = ("--backend-option", "fake-fault=disobey:g001=int8")
    printed = invoke(*SEARCH, *INT8_ONLY, *fault, "--sampler", "random", "--trials", 6, "--seed", 3)
    wrong = disobeyed()
    mixes = [trial for trial, bad in wrong.items() if bad and trial > 1]
    assert printed.exit_code == 0
    assert mixes, "the sampler has to propose such a mix"
    said = "not in the requested precision: g001 ran in FP32"
    assert printed.stderr.count(said) >= sum(wrong.values()), "the line of each evaluation"
    for limits in ((), ("--max-drop", "50%")):
        rows = {
            int(line.split()[0]): line for line in ok("front", "s", "--all", *limits).splitlines() if line[:1].isdigit()
        }
        names = {trial: line for trial, line in rows.items() if said in line}
        told = json.loads(ok("front", "s", "--all", "--json", *limits))["rows"]
        assert {row["trial"]: bool(row["not_as_asked"]) for row in told} == wrong
        assert {row["trial"] for row in csv.DictReader(io.StringIO(ok("front", "s", "--all", "--csv", *limits)))
                if row["not_as_asked"]} == {str(trial) for trial, bad in wrong.items() if bad}  # fmt: skip
        text = ok("front", "s", "--all", *limits)
        assert text.count(said) == sum(wrong.values()), (text, names)
        assert "misses the limits" not in text
    assert said in ok("front", "s"), "all INT8 is one of them"
    shown = ok("show", "s", str(mixes[0]))
    assert f"{said}, so it is no pick" in shown
    assert json.loads(ok("show", "s", str(mixes[0]), "--json"))["not_as_asked"] == said
    ok("report", "s", "--out", "report.html")
    page = (here / "report.html").read_text()
    assert "did not run as asked" in page
    assert page.count(said) >= sum(wrong.values())
    study = bitfront.load("s")
    assert {trial.number: bool(trial.not_as_asked) for trial in study} == wrong
    assert said in repr(study[mixes[0]])
    assert "missed" not in repr(study[mixes[0]])
    done = invoke("export", "s", "--trial", mixes[0], "--out", "engine")
    assert said in done.stderr
    assert json.loads((here / "engine/manifest.json").read_text())["not_as_asked"] == said
    assert said in (here / "engine/README.md").read_text()


def test_a_point_is_whole_whatever_it_is_asked_of(here: Path) -> None:
    """Also of the standing that a search itself works with, of a row that no table names."""
    from studies.judging.standing import read_standing
    from studies.options.limits import Limits
    from studies.store.store import Store

    fault = ("--backend-option", "fake-fault=disobey:g001=int8")
    ok(*SEARCH, *INT8_ONLY, *fault, "--sampler", "random", "--trials", 6, "--seed", 3, "--quiet")
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        study = store.studies.load("s")
        now = read_standing(store, study, store.targets.of_study(study.id)[0], Limits())
    one_by_one = [now.point(row).mismatch for row in range(len(now.table))]
    assert [bool(text) for text in one_by_one] == (now.table.not_obeyed > 0).tolist()
    assert len(now.details.mismatches) == sum(now.table.not_obeyed > 0)


@pytest.mark.slow
def test_guided_proposes_no_more_of_what_never_ran_as_asked(here: Path) -> None:
    fault = ("--backend-option", "fake-fault=disobey:g001=int8")
    ok(*SEARCH, *fault, "--trials", 16, "--seed", 1, "--quiet")
    wrong = disobeyed()
    late = [trial for trial in sorted(wrong) if wrong[trial]]
    assert len(late) <= 4, f"three engines with it are enough to know: {late}"


def test_what_obeys_beside_other_neighbours_is_proposed_again(here: Path) -> None:
    """One group is disobeyed only where it is beside another in INT8, so the pair itself is not to blame."""
    from search.values import Precision
    from studies.store.store import Store
    from tests.support.study_rows import add, evaluated, make_study

    with Store.open("sqlite:///rows.db", create=True) as store:
        target = make_study(store)
        disobeying = tuple(
            add(store, target, trial, evaluated(codes, 1.5, 0.0, 0.001, got=Precision.FP32.id))
            for trial, codes in enumerate([(2, 2, 0), (2, 0, 2)])
        )
        assert store.engines.never_obeyed(target)["g000", Precision.INT8] == disobeying
        add(store, target, 2, evaluated((2, 0, 0), 1.7, 0.0, 0.001))
        assert ("g000", Precision.INT8) not in store.engines.never_obeyed(target)
