"""`bitfront recover`: without a study, it writes the float model and the ranges and prints the rescue table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.recovery.registry import SHIPPED, STEPS
from search.values import Ranges
from tests.support.command_line import invoke, ok, three_layers, write_inputs
from tests.support.networks import plain_session, with_uneven_channels

STEP = "tests.support.extensions.toy_step:Balance"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network whose INT8 is poor, and its data."""
    write_inputs(tmp_path, with_uneven_channels(three_layers(), "first", "second"), samples=160)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*more: Any) -> list[Any]:
    return ["recover", "model.onnx", "--data", "data.npz", "--metric", "mse", "--recover", STEP, *more]


def outputs(path: Path) -> Any:
    import onnx

    return plain_session(onnx.load(path)).run(None, {"image": np.load("data.npz")["image"][:4]})[0]


def test_it_prints_the_table_and_writes_model_and_ranges(here: Path) -> None:
    printed = ok(*words("--out", "recovered", "--latency"))
    rows = [line.split() for line in printed.splitlines()]
    assert [row[:2] for row in rows if row[:1] in (["plain"], ["balance"])] == [["plain", "INT8"], rows[3][:2]]
    assert len(re.findall(r" ms\b", printed)) == 2  # of plain and of recovered INT8
    assert sorted(path.name for path in (here / "recovered").iterdir()) == [
        "calibration.cache",
        "model.float.onnx",
        "ranges.json",
    ]
    assert np.array_equal(outputs(here / "recovered/model.float.onnx"), outputs(here / "model.onnx"))
    ranges = Ranges.from_json(json.loads((here / "recovered/ranges.json").read_text()))
    assert "first.w" in ranges.recovery.factors


def test_what_the_time_does_not_suffice_for_is_not_tried(here: Path) -> None:
    given = ["recover", "model.onnx", "--data", "data.npz", "--metric", "mse"]
    printed = ok(*given, "--recover-time", "1ms")
    assert printed.count("the time for recovery was over: see --recover-time") == len(SHIPPED)
    assert "time for recovery was over" not in ok(*given, "--recover-time", "10m")
    result = invoke(*given, "--recover-time", "soon")
    assert result.exit_code == 2
    assert "--recover-time" in result.stderr


def test_json_has_all_of_it_and_nothing_is_written(here: Path) -> None:
    before = set(here.iterdir())
    found = json.loads(ok(*words("--json")))
    plain, balance = found["table"]
    assert (plain["step"], balance["step"]) == ("plain INT8", "balance")
    assert 0 < plain["after"]["samples"] <= 48
    assert balance["before"] == plain["after"]
    assert found["recovery"]["steps"][0]["notes"] == ["7 channels scaled"]
    assert {path.name for path in set(here.iterdir()) - before} == set()


@pytest.mark.slow
def test_by_default_every_step_there_is_is_tried(here: Path) -> None:
    found = json.loads(ok("recover", "model.onnx", "--data", "data.npz", "--metric", "mse", "--json"))
    steps = {step["name"]: step for step in found["recovery"]["steps"]}
    assert tuple(steps) == STEPS.names()
    assert steps["equalize"]["kept"]
    assert steps["equalize"]["error_after"] < steps["equalize"]["error_before"] / 4


@pytest.mark.slow
def test_what_it_cannot_recover_is_refused(here: Path) -> None:
    ok("search", "model.onnx", "--data", "data.npz", "--backend", "fake", "--study", "s", "--trials", 2, "--quiet")
    for given, said in (
        (["recover", "s", "--data", "data.npz"], "`bitfront resume s`"),
        (["recover", "model.onnx", "--data", "data.npz", "--recover", "none"], "leaves nothing to do"),
        (["recover", "model.onnx"], "--data is missing"),
        (words("--out", "data.npz"), "it is a file"),
    ):
        refused = invoke(*given)
        assert refused.exit_code == 2, refused.output
        assert said in refused.stderr


@pytest.mark.slow
def test_steps_are_judged_without_what_the_user_keeps_in_float(here: Path) -> None:
    found = json.loads(ok(*words("--keep", "first=fp32", "--keep", "second=fp32", "--json")))
    usual = json.loads(ok(*words("--json")))
    assert found["table"][0]["after"]["loss"] < 0.8 * usual["table"][0]["after"]["loss"]
    found = json.loads(ok(*words("--keep", ".*=fp32", "--json")))
    assert "because of the target or of --keep" in found["recovery"]["notes"][0]


@pytest.mark.slow
def test_sensitivities_of_a_model_are_those_of_recovered_int8(here: Path) -> None:
    errors = {}
    for steps in ("none", STEP):
        found = json.loads(ok("sensitivity", "model.onnx", "--data", "data.npz", "--recover", steps, "--json"))
        errors[steps] = {row["node"]: row["error"] for row in found["groups"]}
    assert errors[STEP]["second"] < errors["none"]["second"] / 4
