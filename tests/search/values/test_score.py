"""The weighted sum of accuracy and latency, by hand."""

from __future__ import annotations

import pytest

from search.values.score import Score, loss_unit


def test_a_score_is_0_6_of_the_accuracy_less_0_4_of_the_latency() -> None:
    """FP32 takes 10 ms. Half of that at 5 points of loss: −0.6 · 0.05 + 0.4 · 0.5 = 0.17."""
    found = Score().of([10.0, 5.0, 12.0], [0.0, 0.05, -0.01], fp32_ms=10.0, unit=1.0)
    assert found == pytest.approx([0.0, 0.17, 0.6 * 0.01 - 0.4 * 0.2])


def test_the_weights_are_free() -> None:
    assert Score(20, 1).of([5.0], [0.02], fp32_ms=10.0, unit=1.0) == pytest.approx([-0.4 + 0.5])
    assert Score(0, 1).of([5.0], [0.9], fp32_ms=10.0, unit=1.0) == pytest.approx([0.5])


def test_a_ratio_counts_as_it_is_and_other_losses_by_the_worst_uniform_assignment() -> None:
    assert loss_unit(True, [0.0, 0.25]) == 1.0
    assert loss_unit(False, [0.0, 8.0, 20.0, float("nan")]) == 20.0
    assert loss_unit(False, [0.0, -1.0]) == 1.0
    assert Score().of([5.0], [5.0], fp32_ms=10.0, unit=20.0) == pytest.approx([-0.6 * 0.25 + 0.4 * 0.5])


def test_weights_are_read_and_written() -> None:
    assert Score.parse("0.6,0.4") == Score() == Score.parse(str(Score()))
    assert str(Score.parse("20, 1.50")) == "20,1.5"


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "0,0", "-1,2", "a,b", "inf,1", "nan,1"])
def test_what_is_no_pair_of_weights_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not two weights|could not convert"):
        Score.parse(text)
