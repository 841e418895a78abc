"""The pure parts of the proof on a GPU, and its cheapest steps on a small network without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import DOCS, RESULTS
from benchmarks.h200 import mixes, network_folder, publish, rows, samplers, search, tables, timing
from benchmarks.h200.networks import scenes
from benchmarks.page import replace_section
from search.space.choices import make_space
from search.values import (
    Accuracy,
    Assignment,
    AuditRow,
    Capability,
    EngineSummary,
    Evaluation,
    Failure,
    FailureKind,
    Latency,
    Precision,
    Stage,
)
from tests.support.command_line import ok, quick
from tests.support.evaluator_jobs import case

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
GROUPS = ["g000", "g001", "g002"]
CAPABILITY = Capability({FP16: frozenset({"Conv", "Gemm"}), INT8: frozenset({"Conv", "Gemm"})})


def evaluation(**changes: Any) -> Evaluation:
    asked = Assignment({"g000": FP32, "g001": FP16, "g002": INT8})
    got = {"g000": FP32, "g001": None, "g002": FP16}
    times, scores = np.full(4, 0.5), np.array([1.0, 1.0, 0.0, 1.0])
    measured = {
        "audit": tuple(AuditRow(group, asked[group], got[group], "kernel") for group in GROUPS),
        "latency": Latency(0.5, 0.5, 0.01, None, times, np.empty(0), around_ms={"host_to_device": 1.5}),
        "accuracy": Accuracy("top1", 0.75, 0.25, 0.2, 0.3, 64, 100, scores),
        "build_s": 2.0,
        "total_s": 3.0,
        "engine": EngineSummary(layers=9, moves=2),
    }
    return Evaluation(asked, **{**measured, **changes})


def results(**changes: Any) -> dict[str, Any]:
    measured = {"ms": 0.5, "spread": 0.004, "value": 0.95, "loss": 0.01, "loss_low": 0.0, "loss_high": 0.02}
    together = {"fp32": {**measured, "ms": 1.0}, "int8": measured, "pick": {**measured, "ms": 0.52}}
    row = {"a": "iii", "build": 12.0, "moves": 3, "changes": 0}
    return {
        "network": "resnet18",
        "uniform": {"rows": {"int8": row}, "together": together},
        "compare": {"together": together, "chosen": {"pick": {"a": "ihi", "changes": 2}}, "verdict": {}},
        **changes,
    }


# -- rows ------------------------------------------------------------------------------------------------------------


def test_a_row_holds_what_was_asked_got_and_measured() -> None:
    row = rows.row(evaluation(), GROUPS)
    assert (row["a"], row["got"]) == ("fhi", "f?h")
    assert (row["correct"], row["samples"], row["total"]) == (3.0, 64, 100)
    assert (row["lat"], row["loss"], row["moves"], row["build"]) == (0.5, 0.25, 2, 2.0)
    assert rows.assignment(row["a"], GROUPS) == evaluation().assignment
    json.dumps(row)


def test_a_row_of_a_failed_build_says_why_and_no_more() -> None:
    failure = Failure(Stage.BUILD, FailureKind.REFUSED, "no kernel")
    nothing = dict.fromkeys(("latency", "accuracy", "build_s", "engine"))
    row = rows.row(evaluation(failure=failure, audit=(), **nothing), GROUPS)
    assert row == {"a": "fhi", "failed": ["build", "refused", "no kernel"], "seconds": 3.0, "attempts": 1}


def test_obedience_counts_groups_and_names_exceptions() -> None:
    failure = Failure(Stage.BUILD, FailureKind.REFUSED, "no kernel")
    failed = rows.row(evaluation(failure=failure, audit=()), GROUPS)
    found = mixes.obedience([rows.row(evaluation(), GROUPS), failed], names=["stem", "body", "head"])
    assert (found["asked"], found["built"]) == (2, 1)
    assert found["counts"] == {"f obeyed": 1, "h opaque": 1, "i not obeyed": 1}
    assert found["exceptions"] == {"head: asked i, got h": 1}
    assert (found["failures"], found["messages"]) == ({"build refused": 1}, ["no kernel"])


def test_random_mixes_are_distinct_always_the_same_and_never_uniform(tmp_path: Path) -> None:
    space = make_space(case(tmp_path).model, CAPABILITY)
    drawn = mixes.random_mixes(space, 40)
    assert len({assignment for _, assignment in drawn}) == 40
    assert drawn == mixes.random_mixes(space, 40)
    assert drawn[:7] == mixes.random_mixes(space, 7)  # a step that goes on finds the same ones
    assert {assignment for _, assignment in drawn}.isdisjoint(space.baselines().values())
    few = make_space(case(tmp_path).model, Capability({}))
    assert mixes.random_mixes(few, 40) == []


def test_half_of_the_mixes_differ_in_a_few_layers_from_a_uniform_assignment(tmp_path: Path) -> None:
    space = make_space(case(tmp_path).model, CAPABILITY)
    drawn = mixes.random_mixes(space, 40)
    for kind, precision in (("near INT8", INT8), ("near FP16", FP16)):
        near = [assignment for each, assignment in drawn if each == kind]
        uniform = space.uniform(precision)
        assert len(near) >= 5
        assert all(1 <= sum(a[group] != uniform[group] for group in a) <= 4 for a in near)


# -- figures ---------------------------------------------------------------------------------------------------------


SHARES = {
    **dict(zip(("build_s", "load_s", "latency_s", "run_s"), (2.0, 0.25, 0.5, 0.25), strict=True)),
    **{"wall_s": 4.0, "between_s": 0.75, "other_s": 1.0, "other_share": 0.25, "steady_per_hour": 900.0},
}
STAGES = {"lower": 0.5, "build": 1.5, "load": 0.125, "audit": 0.125, "latency": 0.5, "run": 0.25}


def test_shares_of_the_time_leave_out_pauses_for_other_measurements() -> None:
    made = evaluation(total_s=3.25, stage_s=STAGES)
    found = timing.shares([(end, made) for end in (10.0, 14.0, 18.0, 60.0, 64.0)])
    assert found["steady_per_hour"] == pytest.approx(900)
    assert (found["build_s"], found["load_s"], found["latency_s"], found["run_s"]) == (2.0, 0.25, 0.5, 0.25)
    assert (found["other_s"], found["other_share"]) == (pytest.approx(1.0), pytest.approx(0.25))
    assert (found["between_s"], found["timed"]) == (pytest.approx(0.75), 3)
    assert timing.shares([(10.0, made)]) == {}


def test_the_verdict_is_of_loss_won_back_and_latency() -> None:
    figures = {
        "fp32": {"ms": 1.0, "loss": 0.0},
        "int8": {"ms": 0.4, "loss": 0.10},
        "pick": {"ms": 0.44, "loss": 0.01},
        "free": {"ms": 0.40, "loss": 0.09},
        "match": {"ms": 0.32, "loss": 0.08},
    }
    found = search.verdict(figures)
    assert found["won_back"] == pytest.approx(0.9)
    assert found["pick_over_int8"] == pytest.approx(1.1)
    assert found["free_over_match"] == pytest.approx(1.25)
    assert "won_back" not in search.verdict({**figures, "int8": {"ms": 0.4, "loss": 0.0}})


# -- tables ----------------------------------------------------------------------------------------------------------


def test_tables_show_what_there_is() -> None:
    verdict = {"won_back": 0.96, "pick_over_int8": 1.04, "pick_over_fastest": 1.04, "free_over_match": 1.2}
    shown = results()
    shown["compare"]["verdict"] = verdict
    text = tables.text([shown])
    assert "| ResNet-18, all INT8 | 0.5000 ms | 0.40 % | 95.0 % | 1.00 ± 1.00 points | 12.0 s | 3 | 0 |" in text
    assert "| ResNet-18, the search's pick (2 INT8, 1 FP16) | 0.5200 ms |" in text
    assert "| ResNet-18 |  | 96.0 % | 1.040× | 1.040× | 1.200× | met |" in text
    assert "an hour" not in text


def test_tables_of_every_step() -> None:
    shown = results(
        throughput={"evaluations": 60, "seconds": 240.0, "per_hour": 900.0, "shares": SHARES},
        mixes={"asked": 100, "built": 99},
        obedience={"counts": {"i obeyed": 1999, "i not obeyed": 1}, "exceptions": {"fc: asked i, got h": 1}},
    )
    text = tables.text([shown])
    times = "2.00 s | 0.25 s | 0.50 s | 0.25 s | 1.00 s | 0.75 s | 25.0 %"
    assert "| ResNet-18 | 60 in 240 s | 900 | 900 |" in text
    assert f"| ResNet-18 | 900 | {times} |" in text
    assert "| ResNet-18 | 99 of 100 | INT8 | 1,999 | 1 | 0 | 100.0 % |" in text
    assert "- ResNet-18: fc: asked i, got h (1×)" in text


def test_evaluations_of_a_search_are_counted_with_its_baselines() -> None:
    assert tables.evaluations(results(search={"runs": [{"evaluations": 20}, {"evaluations": 6}]})) == 29
    assert tables.evaluations(results(search={"total": 60, "runs": [{"evaluations": 26}]})) == 60


def test_tables_are_put_between_their_marks() -> None:
    page = "before\n<!-- a begin: made so -->\nold\n<!-- a end -->\nafter\n"
    assert replace_section(page, "a", "new") == page.replace("old", "new")
    for bad in ("before\nafter\n", page + page):
        with pytest.raises(ValueError, match="once each"):
            replace_section(bad, "a", "new")


def test_the_page_has_its_place_for_tables() -> None:
    page = DOCS.read_text()
    assert replace_section(page, "h200", tables.text(tables.read(RESULTS))) == page


# -- data ------------------------------------------------------------------------------------------------------------


def test_scenes_are_the_same_however_they_are_drawn() -> None:
    rng = np.random.RandomState(0)
    digits, values = rng.randint(0, 17, (20, 8, 8)).astype(np.uint8), rng.randint(0, 10, 20)
    images, labels = scenes.draw(digits, values, 3, range(6), 32)
    assert (images.shape, images.dtype) == ((6, 3, 32, 32), np.float16)
    assert np.abs(images).max() <= 2
    again, classes = scenes.draw(digits, values, 3, range(4, 6), 32)
    assert np.array_equal(images[4:], again)
    assert np.array_equal(labels[4:], classes)
    assert set(labels // scenes.FILLS) <= set(values)


# -- the steps, for real ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_network_from_its_search_to_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(scenes.FOLDER_VARIABLE, "")
    monkeypatch.setattr(network_folder, "bitfront", lambda *words, shown: ok(*words))
    monkeypatch.setattr(search, "FACTOR", 10.0)  # there is a pick, however much slower a busy machine measures
    work = [str(tmp_path), "tiny", "--tiny"]
    with quick():
        search.main([*work, "--trials", "4"])
        samplers.main([*work, "--samplers", "guided", "--trials", "4"])
        mixes.main([*work, "--mixes", "2"])
        mixes.main([*work, "--mixes", "3"])
    page, into = tmp_path / "page.md", tmp_path / "into"
    page.write_text("".join(f"<!-- {name} begin: so -->\n<!-- {name} end -->\n" for name in ("h200", "h200 fronts")))
    publish.main([str(tmp_path), "tiny", "--into", str(into), "--page", str(page)])
    [found] = tables.read(into / "results")
    assert (found["search"]["total"], found["throughput"]["evaluations"], found["mixes"]["asked"]) == (4, 4, 3)
    assert found["mixes"]["built"] == 3
    assert found["obedience"]["built"] == 11
    assert set(found["compare"]["together"]) == {"fp32", "int8", "pick"}
    kept = json.loads((into / "data" / "tiny.json").read_text())
    assert [row["source"] for row in kept["rows"]] == ["study"] * 4 + ["fresh"] * 4 + ["mixes"] * 3
    assert set(kept["workers"]) == {"here"}
    assert all(len(row["a"]) == len(kept["groups"]) for row in kept["rows"])
    assert "| tiny, all INT8 |" in page.read_text()
