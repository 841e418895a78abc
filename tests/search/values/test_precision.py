"""Precisions: facts of each, order by rank and not by stored id, and a fourth one that goes through a whole search."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from search.forecast.priors import noise_prior
from search.space.choices import Choice, Space, Variable
from search.space.layout import make_layout
from search.values import Assignment, Precision
from tests.support.command_line import DATABASE, ok, write_inputs
from tests.support.evaluator_patches import toy_precision

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
KEPT_IDS = {"fp32": 0, "fp16": 1, "int8": 2}


@pytest.fixture
def toy() -> Iterator[Precision]:
    yield toy_precision.add()
    toy_precision.remove()


def test_ids_are_as_they_were_stored() -> None:
    assert {precision.label: precision.id for precision in Precision} == KEPT_IDS
    assert [Precision.of_id(precision.id) for precision in Precision] == list(Precision)
    with pytest.raises(ValueError, match="no precision has the id 99"):
        Precision.of_id(99)


def test_precisions_compare_by_rank(toy: Precision) -> None:
    assert toy.id > INT8.id
    assert sorted(Precision) == [FP32, FP16, toy, INT8]
    assert max(toy, INT8) is INT8
    assert FP16 < toy <= toy < INT8
    assert len({precision.rank for precision in Precision}) == len(Precision)
    assert len({precision.colour for precision in Precision}) == len(Precision)


def test_digests_of_assignments_hold_ids() -> None:
    """A stored digest must never change: this one was made when ids were the order."""
    known = "385423f5"
    assert Assignment({"g000": FP32, "g001": FP16, "g002": INT8}).digest.startswith(known)


def a_space(toy: Precision) -> Space:
    offered = {"a": (FP32, toy, INT8), "b": (FP32, toy), "c": (FP32, INT8)}
    choices = {group: tuple(Choice(p, p in may) for p in (FP32, toy, INT8)) for group, may in offered.items()}
    return Space(choices, tuple(Variable(group, (group,), may) for group, may in offered.items()))


def test_where_a_precision_is_not_offered_the_next_finer_one_is_taken(toy: Precision) -> None:
    space = a_space(toy)
    assert space.precisions == (FP32, toy, INT8)
    assert dict(space.uniform(INT8)) == {"a": INT8, "b": toy, "c": INT8}
    assert dict(space.uniform(toy)) == {"a": toy, "b": toy, "c": FP32}
    assert list(space.baselines()) == ["fp32", "toy", "int8"]


def test_arrays_have_the_size_of_the_precisions_in_play(toy: Precision) -> None:
    layout = make_layout(["a", "b", "c"], [], a_space(toy))
    assert layout.palette == (FP32, toy, INT8)
    assert noise_prior(layout).nodes.shape == (3, 3)
    assert layout.precisions_of([{"a": toy, "b": toy, "c": INT8}]).tolist() == [[1, 1, 2]]
    assert make_layout(["a", "b", "c"], [], a_space(toy), also=[FP16]).palette == (FP32, FP16, toy, INT8)


@pytest.mark.slow
def test_a_fourth_precision_goes_through_a_whole_search(
    toy: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITFRONT_TEST_TOY", "1")
    write_inputs(tmp_path / "in")
    given = ("--study", "s", "--trials", 12, "--backend", "fake")
    said = ok("search", "in/model.onnx", "--data", "in/data.npz", "--verbose", *given)
    assert "toy: " in said  # the audit of all engines
    assert "Audit" not in ok("resume", "s")  # where all obeyed it is a detail

    baselines = {}
    for trial in range(4):
        shown = json.loads(ok("show", "s", trial, "--json"))
        assert {group["answer"] for group in shown["groups"]} == {"obeyed"}
        baselines[shown["role"]] = shown["latency"]["value_ms"]
    order = sorted(baselines, key=lambda role: -baselines[role])
    assert order == [f"baseline:{p.label}" for p in (FP32, FP16, toy, INT8)]
    connection = sqlite3.connect(DATABASE)
    stored = {row[0] for row in connection.execute("select distinct asked from bf_audit")}
    mixes = [json.loads(row[0]) for row in connection.execute("select assignment from bf_evaluation where role = ''")]
    connection.close()
    assert stored == {FP32.id, FP16.id, toy.id, INT8.id}
    assert len({tuple(mix.values()) for mix in mixes}) == len(mixes) == 8
    assert any("toy" in mix.values() and len(set(mix.values())) > 1 for mix in mixes)
    told = json.loads(ok("sensitivity", "s", "--json"))
    assert {group["precision"] for group in told["groups"]} == {"fp16", "toy", "int8"}
    ok("report", "s", "--out", "report.html")
    assert toy_precision.COLOUR in Path("report.html").read_text()
