"""How small a loss the samples of a study can tell, and what is said where the limits ask for less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.measure.intervals import paired_interval
from evaluators.measure.mean_bounds import sample_losses
from studies.judging.findings.sample_size import Z_ONE_SIDED, Spread, spread_of_interval
from tests.support.command_line import invoke, ok, write_inputs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("samples", [30, 1000, 20000])
def test_where_no_answer_changes_the_bound_is_the_smallest_loss(samples: int) -> None:
    smallest = Spread(shares=True).smallest_loss(samples)
    assert sample_losses(np.zeros(samples), 1.0).upper(0.05) == pytest.approx(smallest)


def test_about_three_over_the_samples_and_clusters_count_as_samples() -> None:
    assert Spread(shares=True).smallest_loss(1000) == pytest.approx(0.003, rel=0.02)
    assert Spread(shares=True).smallest_loss(10_000, 1000) == Spread(shares=True).smallest_loss(1000)
    assert Spread(shares=True).needed_samples(0.01, 100) == 300, "299 to two digits"


@given(st.floats(1e-4, 0.2), st.integers(10, 10_000), st.sampled_from([None, 5, 100]), st.booleans())
def test_so_many_samples_as_are_needed_are_enough(
    loss: float, samples: int, clusters: int | None, shares: bool
) -> None:
    spread = Spread(shares, deviation=0.5)
    needed = spread.needed_samples(loss, samples, clusters)
    assert needed is not None
    each = None if clusters is None else clusters / samples
    assert spread.smallest_loss(needed, None if each is None else needed * each) <= loss * 1.001
    fewer = 0.8 * needed - 2
    if fewer > 4 and (each is None or fewer * each > 10):
        assert spread.smallest_loss(fewer, None if each is None else fewer * each) > loss


def test_the_spread_of_a_measure_comes_from_its_interval() -> None:
    row = np.random.default_rng(0).normal(5.0, 2.0, 400)
    low, high = paired_interval(row, ratio=False)
    spread = spread_of_interval(low, high, 400, None)
    assert spread.deviation == pytest.approx(float(np.std(row, ddof=1)))
    assert spread.smallest_loss(100) == pytest.approx(Z_ONE_SIDED * spread.deviation / 10)


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
        == "30 search samples can at best show that a loss is below about 9.5 %, 18 final samples below about 15 %"
    )
    warnings = [line for line in lines if line.startswith("WARNING: the allowed loss")]
    assert warnings == [
        "WARNING: the allowed loss of 1 % is smaller than what 30 search samples (about 9.5 %) and 18 final samples "
        "(about 15 %) can show at best, so chance decides which candidates seem to keep the limit. At least about 300 "
        "search samples and 300 final samples are needed"
    ]
    assert lines.index(warnings[0]) < next(n for n, line in enumerate(lines) if line.startswith("calibrating"))
    again = invoke("resume", "model", "--trials", 4)
    assert again.exit_code == 0, again.output
    assert "is smaller than" not in again.stderr
    ok("report", "model", "--out", "report.html")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "30 search samples can at best show that a loss is below about 9.5 %" in page
    assert "The allowed loss of 1 % is smaller than what 30 search samples (about 9.5 %) and 18 final samples" in page


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
    said = next(n for n, line in enumerate(lines) if "search samples can at best show" in line)
    assert lines[said - 1].startswith("2/3 ")
    assert " dB, 18 final samples below about " in lines[said]
    assert not any("smaller than" in line for line in lines)


def test_clusters_count_as_samples(here: Path) -> None:
    lines = told("--max-drop", "1%", clusters=True)
    said = next(line for line in lines if "can at best show" in line)
    assert said.startswith("30 search samples (15 clusters) can at best show that a loss is below about 18 %")
