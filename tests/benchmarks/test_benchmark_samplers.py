"""Benchmarks that set samplers against one another: what is judged by what, and that they run and go on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import DOCS
from benchmarks.samplers import large
from benchmarks.samplers.real import digits


def run(*candidates: tuple[float, float], trials: int = 5) -> dict[str, Any]:
    """A search of FP32, INT8 and some candidates."""
    rows = [[1.0, 0.0, True], [0.5, 0.1, True], *([ratio, loss, True] for ratio, loss in candidates)]
    return {"rows": rows, "uniform": [0, 1], "final": [[2, 0.004]], "band": 0.01, "trials": trials}


def test_searches_are_held_against_the_front_of_all_of_them() -> None:
    runs = {"guided-0": run((0.6, 0.005)), "tpe-0": run((0.9, 0.05), (0.55, 0.09))}
    found = digits.judged(runs)
    assert found["guided-0"]["shares"][0] == found["tpe-0"]["shares"][0]
    assert found["guided-0"]["shares"][-1] > found["tpe-0"]["shares"][-1]
    assert found["guided-0"]["shares"][-1] < 1  # the other search found one point that it did not
    assert found["guided-0"]["pick_ratio"] == 0.6
    assert found["guided-0"]["pick_at"] == 3
    assert found["guided-0"]["pick_final_loss"] == 0.004
    assert (found["tpe-0"]["pick_ratio"], found["tpe-0"]["pick_at"]) == (1.0, 1)


def test_losses_of_some_of_the_samples_do_not_count() -> None:
    lucky = run((0.4, 0.0))
    lucky["rows"][2][2] = False
    found = digits.judged({"guided-0": lucky, "tpe-0": run((0.8, 0.001))})
    assert found["guided-0"]["shares"][-1] == found["guided-0"]["shares"][1]
    assert found["guided-0"]["pick_ratio"] == 1.0


def test_the_table_says_how_many_trials_the_others_need() -> None:
    runs = {"guided-0": run((0.6, 0.005)), "tpe-0": run((0.9, 0.05), (0.6, 0.004)), "tpe-1": run((0.9, 0.05))}
    text = digits.text({"runs": runs})
    assert "| guided | 1 |" in text
    assert "1.67× FP32 (1.67 to 1.67)" in text
    assert "by seed: tpe: 4, never." in text


def test_the_table_has_the_final_losses_of_the_picks_that_were_scored_there() -> None:
    unscored = {**run((0.7, 0.008), (0.6, 0.005)), "final": [[2, 0.5]]}  # another mix than the fastest
    found = {"guided-0": run((0.6, 0.005)), "guided-1": unscored, "tpe-0": unscored}
    guided, tpe = digits.text({"runs": found}).splitlines()[2:4]
    assert guided.endswith("| 0.4% (1 of 2 scored) |")
    assert tpe.startswith("| TPE, multivariate |")
    assert tpe.endswith("| none scored |")


def test_the_page_has_the_table() -> None:
    made = digits.text(json.loads(digits.OUT.read_text()))
    assert made.partition("\n\n")[0] in DOCS.read_text()


@pytest.mark.slow
def test_searches_and_proposals_of_large_models_are_measured_and_shown() -> None:
    runs = {
        f"search|{name}|0": large.searched(26, method, 0, 10, told)
        for name, method, told in (("guided", "guided", True), ("random", "random", True), ("untold", "guided", False))
    }
    runs["proposal|18|12"] = large.proposed(18, 12, limited=False)
    runs["proposal|18|12|budget"] = large.proposed(18, 12, limited=True)
    text = large.tables({"runs": runs, "best_known": large.best_known(26)})
    lines = [line.split(" | ") for line in text.splitlines()]
    assert lines[0][:3] == ["| 26 groups", "seeds", "after 10"]
    assert [line[0] for line in lines[2:5]] == ["| guided", "| random", "| untold"]
    assert float(lines[2][2].partition("%")[0]) > float(lines[3][2].partition("%")[0])
    assert lines[-2][:3] == ["| 18", "12", "none"]
    assert lines[-1][:3] == ["| 18", "12", "budget"]
    assert float(lines[-1][5].removesuffix(" s")) > 0
    del runs["proposal|18|12"]["cpu_s"]  # as measured before that was noted
    assert " s |  | " in large.tables({"runs": runs, "best_known": large.best_known(26)})
