"""Samplers side by side on real searches: the sampler that solves once and climbs, the shares, and a whole run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import DOCS
from benchmarks.samplers.one_shot import BEFORE_CLIMBING, sweep_of
from benchmarks.samplers.real import run, tables, verdicts
from benchmarks.samplers.real.networks import Files, Network
from benchmarks.samplers.real.searches import METHODS, Searches
from tests.support.known_problem import Search, make_problem


def search(*candidates: tuple[float, float, str]) -> dict[str, Any]:
    """A search of FP32, INT8 and some candidates."""
    rows = [[1.0, 0.0, True, "00"], [0.5, 0.1, True, "11"], *([ratio, loss, True, c] for ratio, loss, c in candidates)]
    return {"rows": rows, "uniform": [0, 1], "band": 0.01, "ranges": "r" * 64}


def test_the_sampler_measures_the_sweep_and_then_changes_one_decision_of_what_was_best() -> None:
    problem = make_problem(groups=10)
    points = [tuple(codes.tolist()) for codes in sweep_of(problem.layout, problem.priors())]
    found = Search(problem, METHODS["one-shot"][0]).run(40)
    names = [v.id for v in problem.layout.space.variables]
    tried = [tuple(trial.params[name] for name in names) for trial in found.study.get_trials()]
    assert len(set(tried)) == 40
    uniform = set(tried[:3])
    expected = [codes for codes in points[:BEFORE_CLIMBING] if codes not in uniform]
    assert tried[3 : 3 + len(expected)] == expected
    for place in range(3 + len(expected), 40):
        assert min(np.count_nonzero(np.subtract(tried[place], before)) for before in tried[:place]) == 1


def test_a_share_is_what_is_gained_over_the_uniform_assignments() -> None:
    runs = {"guided-0": search((0.7, 0.01, "01")), "tpe-0": search((0.9, 0.05, "10"), (0.7, 0.01, "01"))}
    shares = verdicts.shares(runs)
    assert shares["guided-0"] == [pytest.approx(shares["tpe-0"][0]), 0.0, 1.0]
    assert 0 < shares["tpe-0"][2] < shares["tpe-0"][3] == 1.0


def test_losses_of_some_of_the_samples_count_for_nothing() -> None:
    lucky = search((0.4, 0.0, "01"))
    lucky["rows"][2][2] = False
    assert verdicts.shares({"guided-0": lucky, "tpe-0": search((0.7, 0.01, "10"))})["guided-0"][-1] == 0
    assert verdicts.codes_of_front(lucky) == ["11", "00"]


def test_fronts_are_judged_by_what_was_measured_of_them_again() -> None:
    """A mix that seemed best by luck is worth what it is worth on fresh samples."""
    runs = {"guided-0": search((0.7, 0.01, "01")), "tpe-0": search((0.6, 0.0, "10"))}
    again = search((0.7, 0.01, "01"), (0.6, 0.09, "10"))
    found = verdicts.shares_again(runs, again)
    assert found["guided-0"] > found["tpe-0"] > 0
    (at_1, at_03) = verdicts.picks(runs["tpe-0"], again)
    assert (at_1["search"], at_1["again"], at_1["at"]) == ([0.6, 0.0], [0.6, 0.09], 3)
    assert at_03["search"] == [0.6, 0.0]
    assert verdicts.picks(runs["guided-0"], again)[1]["search"] == [1.0, 0.0]


def test_tables_have_every_seed_and_what_is_missing_is_left_empty() -> None:
    runs = {f"encoder/{method}-{seed}": search((0.7, 0.01, "01")) for method in METHODS for seed in (0, 1)}
    text = tables.text({"runs": runs, "again": {"encoder": search((0.72, 0.012, "01"))}})
    assert "| `encoder` | guided | 2 |  |  |  |  | 100 / 100 |" in text
    assert "| 1.0% | guided | 0.700 / 0.700 | 1.00 / 1.00 | 0.720 / 0.720 | 1.20 / 1.20 | 3 / 3 |" in text
    assert "0.50 × FP32, 10.00" in text
    assert "|  |  |" in tables.text({"runs": runs, "again": {}})


def test_searches_of_different_engines_are_not_compared() -> None:
    runs = {"encoder/guided-0": search(), "encoder/tpe-0": {**search(), "ranges": "s" * 64}}
    with pytest.raises(ValueError, match="encoder: searches with different INT8 ranges"):
        run.check_ranges("encoder", {"runs": runs, "again": {"encoder": search()}})


def test_the_page_has_the_tables() -> None:
    assert tables.text(json.loads(run.OUT.read_text())) in DOCS.read_text()


@pytest.mark.slow
def test_no_sample_is_in_two_files(tmp_path: Path) -> None:
    files = Files(Network("encoder", "none", samples=40, fresh=30), tmp_path)
    parts = [np.load(path)["signal"] for path in (files.search, files.final, files.fresh, files.calibration)]
    assert [len(part) for part in parts] == [40, 500, 30, 500]
    assert len({sample.tobytes() for part in parts for sample in part}) == 1070


@pytest.mark.slow
def test_searches_run_and_their_fronts_are_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searches = Searches(Network("encoder", "none", samples=40, fresh=40, backend="fake"), tmp_path)
    trials, out = {"guided": 5, "one-shot": 6, "tpe": 4}, tmp_path / "out.json"
    for _ in range(2):  # the second time all of it is there
        run.run_network(searches, trials, 1, out)
    assert capsys.readouterr().out.count("evaluations") == 4
    found = run.stored(out)
    assert {name: len(each["rows"]) for name, each in found["runs"].items()} == {
        f"encoder/{method}-0": count for method, count in trials.items()
    }
    again = {row[3] for row in found["again"]["encoder"]["rows"]}
    for each in found["runs"].values():
        assert again.issuperset(verdicts.codes_of_front(each))
    assert tables.text(found).count("| `encoder` |") == 1 + 3 + 6
