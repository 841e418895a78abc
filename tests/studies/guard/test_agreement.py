"""The agreement of two answers: shares of classes, cosines of any size, and outputs that cannot agree."""

from __future__ import annotations

import numpy as np
import pytest

from studies.guard.agreement import agreement, all_finite


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_a_cosine_does_not_depend_on_the_size_of_values(size: float) -> None:
    one, two = np.array([3.0, 4.0]) * size, np.array([4.0, 3.0])
    assert agreement({"y": one}, {"y": two}, classes=False) == pytest.approx(0.96)
    assert agreement({"y": one}, {"y": -one}, classes=False) == pytest.approx(-1)


def test_zeros_agree_with_zeros_alone() -> None:
    zeros, ones = {"y": np.zeros(3)}, {"y": np.ones(3)}
    assert agreement(zeros, zeros, classes=False) == 1
    assert agreement(zeros, ones, classes=False) == agreement(ones, zeros, classes=False) == 0


def test_the_least_cosine_of_all_outputs_counts() -> None:
    fast, safe = {"a": np.ones(2), "b": np.array([1.0, 0.0])}, {"a": np.ones(2), "b": np.array([0.0, 1.0])}
    assert agreement(fast, safe, classes=False) == 0


@pytest.mark.parametrize("wrong", [{"z": np.ones(3)}, {"y": np.ones(4)}, {"y": np.array([1.0, np.nan, 1.0])}])
def test_other_outputs_agree_not_at_all(wrong: dict[str, np.ndarray]) -> None:
    assert agreement(wrong, {"y": np.ones(3)}, classes=False) == 0


def test_sums_that_overflow_are_looked_at_again() -> None:
    assert all_finite({"y": np.full(4, 3e38, np.float32)})
    assert not all_finite({"y": np.array([np.inf, -np.inf, 1.0])})
    assert all_finite({"y": np.array([1, 2])})


def test_empty_answers_agree_and_equal_ones_agree_by_no_more_than_one() -> None:
    empty = {"y": np.zeros((0, 4), np.float32)}
    assert agreement(empty, empty, classes=True) == agreement(empty, empty, classes=False) == 1.0
    rng = np.random.default_rng(0)
    for _ in range(200):
        same = {"y": rng.standard_normal((3, 7)).astype(np.float32)}
        assert 1 - 1e-12 <= agreement(same, same, classes=False) <= 1.0
