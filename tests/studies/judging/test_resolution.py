"""How small a loss the samples of a study can tell, and what is said where the limits ask for less."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.measure.intervals import bootstrap_interval, paired_interval
from evaluators.measure.mean_bounds import batch_losses, sample_losses
from search.values import bound_level
from studies.judging.findings.sample_size import Spread, deviation_of
from tests.support.command_line import invoke, ok, write_inputs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("samples", [30, 1000, 20000])
def test_where_no_answer_changes_the_bound_is_the_smallest_loss(samples: int) -> None:
    smallest = Spread(ratio=True).smallest_loss(samples)
    assert sample_losses(np.zeros(samples), 1.0).upper(0.05) == pytest.approx(smallest)


def test_about_three_over_the_samples_and_clusters_count_as_samples() -> None:
    assert Spread(ratio=True).smallest_loss(1000) == pytest.approx(0.003, rel=0.02)
    assert Spread(ratio=True).smallest_loss(10_000, 1000) == pytest.approx(Spread(ratio=True).smallest_loss(1000))
    assert Spread(ratio=True).needed_samples(0.01, 100) == 300, "299 to two digits"
    assert Spread(ratio=True).needed_samples(0.01, 100, tries=6) == 480, "log(1 - 0.95 ** (1 / 6)) / log(0.99)"


@pytest.mark.parametrize(("clusters", "ratio", "batch"), [(None, True, None), (20, True, None), (None, False, 8)])
def test_so_many_samples_as_are_needed_are_enough(clusters: int | None, ratio: bool, batch: int | None) -> None:
    spread, each = Spread(ratio, 0.2, batch), None if clusters is None else clusters / 100
    needed = spread.needed_samples(0.02, 100, clusters, 6)
    assert needed is not None
    assert spread.smallest_loss(needed, None if each is None else needed * each, 6) <= 0.0201
    fewer = 0.9 * needed
    assert spread.smallest_loss(fewer, None if each is None else fewer * each, 6) > 0.02


def test_without_a_known_worst_loss_three_hundred_samples_are_the_least() -> None:
    assert Spread(ratio=False, deviation=0.001).needed_samples(1.0, 100) == 300
    assert Spread(ratio=False, deviation=0.001).smallest_loss(100) == np.inf


def test_the_spread_of_a_measure_comes_from_its_interval() -> None:
    row = np.random.default_rng(0).normal(5.0, 2.0, 400)
    low, high = paired_interval(row, ratio=False)
    deviation = deviation_of(low, high, 400, None)
    assert deviation == pytest.approx(float(np.std(row, ddof=1)))
    bound = sample_losses(row - row.mean(), None).upper(0.05)
    assert Spread(ratio=False, deviation=deviation).smallest_loss(400) == pytest.approx(bound, rel=0.1)


@pytest.mark.parametrize(("changed", "tries"), [(0.02, 1), (0.02, 6), (0.1, 6)])
def test_a_pick_that_loses_nothing_is_kept_by_so_many_samples_and_hardly_by_half(changed: float, tries: int) -> None:
    """Seeded final splits: a share of answers changes, as many for the better as for the worse, and 1 % is allowed."""
    rng, level, limit = np.random.default_rng(0), bound_level(tries), 0.01
    needed = Spread(True, changed**0.5).needed_samples(limit, 100, tries=tries)
    assert needed is not None

    def kept(samples: int) -> float:
        draws = rng.choice([-1.0, 0.0, 1.0], (300, samples), p=[changed / 2, 1 - changed, changed / 2])
        return float(np.mean([sample_losses(row, 1.0).chance_below(limit) <= level for row in draws]))

    assert kept(needed) >= 0.45
    assert kept(needed // 2) <= 0.25
    at_best = Spread(True).needed_samples(limit, 100)
    assert at_best is not None
    assert at_best < needed / 1.5
    assert kept(at_best) <= 0.3, "what one candidate of which nothing changes needs promises too much"


@pytest.mark.parametrize("batches", [20, 60])
def test_of_a_metric_over_batches_the_bound_of_the_verdict_is_foretold(batches: int) -> None:
    """As of `map`: the loss of a whole split varies like batches, and one sample may lose everything."""
    rng, batch = np.random.default_rng(1), 8
    losses, counts = rng.normal(0, 0.05, batches), np.full(batches, batch, float)
    low, high = bootstrap_interval(losses, counts, 0.0)
    deviation = deviation_of(low, high, batches * batch, None, batch)
    foretold = Spread(True, deviation, batch).smallest_loss(batches * batch, tries=6)
    found = batch_losses(losses, counts, 0.0, 1.0).upper(bound_level(6))
    assert foretold == pytest.approx(found, rel=0.25)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(*options: Any, samples: int = 60, clusters: bool = False, trials: int = 3) -> list[str]:
    """What a search says on standard error."""
    write_inputs(Path(), samples=samples)
    if clusters:
        with np.load("data.npz") as stored:
            np.savez("data.npz", **dict(stored), clusters=np.arange(samples) // 2)
    result = invoke("search", "model.onnx", "--data", "data.npz", "--trials", trials, "--sensitivity-time", "1s", "-v",
                    *options)  # fmt: skip
    assert result.exit_code == 0, result.output
    return result.stderr.splitlines()


def test_it_is_said_before_the_first_evaluation_and_warned_of(here: Path) -> None:
    lines = told("--max-drop", "1%")
    said = next(n for n, line in enumerate(lines) if "search samples can at best show" in line)
    first = next(n for n, line in enumerate(lines) if line.startswith("1/3 "))
    assert said < first
    assert (
        lines[said]
        == "30 search samples can at best show that a loss is below about 9.5 %, 18 final samples below about 23 %"
    )
    warnings = [line for line in lines if line.startswith("WARNING: the allowed loss")]
    assert warnings == [
        "WARNING: the allowed loss of 1 % is smaller than what 30 search samples (about 9.5 %) and 18 final samples "
        "(about 23 %) can show at best, so chance decides which candidates seem to keep the limit. At least about 300 "
        "search samples and 480 final samples are needed"
    ]
    assert lines.index(warnings[0]) < next(n for n, line in enumerate(lines) if line.startswith("calibrating"))
    again = invoke("resume", "model", "--trials", 4)
    assert again.exit_code == 0, again.output
    assert "is smaller than" not in again.stderr
    ok("report", "model", "--out", "report.html")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "of a mix that differs from FP32 in as many samples as all INT8" in page
    found = re.search(r"The allowed loss of 1 % is smaller than what 30 search samples \(about ([\d.]+) %\)", page)
    assert found is not None
    assert float(found[1]) > 9.5, "it knows by then how much samples vary"


def test_what_the_samples_can_tell_is_not_warned_of(here: Path) -> None:
    lines = told("--max-drop", "30%")
    assert any("search samples can at best show" in line for line in lines)
    assert not any("smaller than" in line for line in lines)


def test_without_limits_there_is_nothing_to_warn_of(here: Path) -> None:
    lines = told()
    assert any("search samples can at best show" in line for line in lines)
    assert not any("smaller than" in line for line in lines)


def test_an_accuracy_limit_counts_as_a_loss_once_fp32_is_known(here: Path) -> None:
    lines = told("--accuracy-limit", "99%")  # labels are what the float model says, so FP32 has 100 %
    said = next(n for n, line in enumerate(lines) if "search samples can at best show" in line)
    assert lines[said - 1].startswith("1/3 ")
    assert any("the allowed loss of 1 % is smaller than what 30 search samples" in line for line in lines)


def test_other_metrics_wait_for_a_uniform_assignment(here: Path) -> None:
    lines = told("--metric", "sqnr", "--accuracy-limit", "10dB")
    said = next(n for n, line in enumerate(lines) if "search samples are too few" in line)
    assert lines[said - 1].startswith("2/3 ")
    assert "30 search samples are too few for any bound, 18 final samples are too few for any bound" in lines[said]
    (warning,) = [line for line in lines if line.startswith("WARNING: 30 search samples")]
    assert warning.endswith("are too few for any bound of a loss, so no pick can be called kept. At least about 300 "
                            "search samples and 300 final samples are needed")  # fmt: skip


def test_clusters_count_as_samples(here: Path) -> None:
    lines = told("--max-drop", "1%", clusters=True)
    said = next(line for line in lines if "can at best show" in line)
    assert said.startswith("30 search samples (15 clusters) can at best show that a loss is below about 18 %")
