"""A build that ignores what was asked is caught by the audit, and never counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command_line import ok, run_sql, three_layers, write_inputs

pytestmark = pytest.mark.slow

# The metric is imported by the evaluator process alone; there it swaps the lowering, as a wrong builder would do.
PLANT = """
from evaluators.backends.onnxruntime import builder
from search.values import Assignment, Precision

honest = builder.lower

def lower(model, assignment, ranges, placement):
    second = next(group.id for group in model.groups if group.name == "second")
    return honest(model, Assignment({**assignment, second: Precision.FP32}), ranges, placement)

builder.lower = lower

def score(outputs, labels):
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return (logits.argmax(axis=1) == labels).astype(float)
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search over a builder that runs the layer `second` in FP32 whatever it is asked."""
    folder = tmp_path_factory.mktemp("planted")
    write_inputs(folder / "in", three_layers())
    (folder / "plant.py").write_text(PLANT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        said = ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "p", "--metric", "plant:score",
                  "--trials", 8)  # fmt: skip
    (folder / "said").write_text(said)
    return folder


@pytest.fixture(autouse=True)
def _there(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(planted)


def asked_int8() -> set[int]:
    """Trials that wanted `second` in INT8."""
    [(second,)] = run_sql('select "group" from bf_group where name = ?', "second")
    found = run_sql(
        'select min(number) from bf_trial join bf_audit using (evaluation_id) where "group" = ? and asked <> 0 '
        "group by evaluation_id",
        second,
    )
    return {number for (number,) in found}


def test_every_evaluation_that_was_not_obeyed_is_marked() -> None:
    counts = run_sql("select not_obeyed, count(*) from bf_evaluation group by not_obeyed order by 1")
    assert counts == [(0, 4), (1, 4)]
    assert len(asked_int8()) == 4
    assert "4 not obeyed" in Path("said").read_text(
        encoding="utf-8"
    )  # told without --verbose, as these cannot be picked


def test_none_of_them_is_feasible_or_on_the_front() -> None:
    found = json.loads(ok("front", "p", "--json"))["rows"]
    assert any(row["on_front"] for row in found)
    assert all(not row["on_front"] and not row["feasible"] for row in found if row["trial"] in asked_int8())
    [int8] = [row for row in found if row["role"] == "baseline:int8"]
    assert not int8["feasible"]


def test_show_names_the_group() -> None:
    trial = min(asked_int8())
    [second] = [g for g in json.loads(ok("show", "p", trial, "--json"))["groups"] if g["node"] == "second"]
    assert (second["asked"], second["got"], second["answer"]) == ("int8", "fp32", "not obeyed")
    assert "1 group not obeyed" in ok("show", "p", trial)


def test_the_report_lists_them() -> None:
    ok("report", "p", "--out", "p.html")
    page = Path("p.html").read_text(encoding="utf-8")
    assert f"{len(asked_int8())} groups did not run in the precision that was asked for" in page
    rows = re.search(r"<summary>Asked and got</summary>(.*?)</details>", page, re.DOTALL)
    assert rows is not None
    assert rows[1].count("second") == len(asked_int8())
    assert "did not run as asked" in page  # in the figure of the front


def test_the_sampler_is_told() -> None:
    told = dict(
        run_sql(
            "select number, value_json from trials join trial_system_attributes using (trial_id) "
            "where key = 'constraints:obeyed' or key like '%obeyed%'"
        )
    )
    linked = run_sql(
        "select number from bf_trial t join bf_evaluation e on e.id = t.evaluation_id where not_obeyed > 0"
    )
    assert {number for number, value in told.items() if json.loads(value) > 0} == {number for (number,) in linked}
