"""Local search from a proposal's candidates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.sampler.climbing import climb
from search.space.layout import Codes, Precisions


def around(codes: Codes) -> tuple[Codes, Precisions]:
    """Every single change of 0 to 1 or back."""
    changed = np.concatenate([np.abs(row - np.eye(codes.shape[1], dtype=np.int64)) for row in codes])
    return changed, changed.astype(np.int8)


def everything(precisions: Precisions) -> NDArray[np.int64]:
    return np.arange(len(precisions))


def test_changes_are_followed_as_long_as_they_gain() -> None:
    wanted = np.array([1, 0, 1, 1, 0, 0, 0, 0])

    def rate(precisions: Precisions) -> NDArray[np.float64]:
        return np.asarray((precisions == wanted).sum(axis=1, dtype=np.float64))

    start = np.zeros((1, 8), dtype=np.int64)
    assert climb(start, rate(start.astype(np.int8)), around, everything, rate).tolist() == wanted.tolist()


def test_the_best_of_all_rounds_is_taken_if_changes_only_lose() -> None:
    codes = np.array([[0, 1, 0], [1, 1, 1]], dtype=np.int64)

    def rate(precisions: Precisions) -> NDArray[np.float64]:
        return np.zeros(len(precisions))

    assert climb(codes, np.array([1.0, 2.0]), around, everything, rate).tolist() == [1, 1, 1]


def test_nothing_new_beside_the_candidates_leaves_them() -> None:
    codes = np.array([[0, 1, 0]], dtype=np.int64)

    def nothing(codes: Codes) -> tuple[Codes, Precisions]:
        return codes[:0], codes[:0].astype(np.int8)

    def rate(precisions: Precisions) -> NDArray[np.float64]:
        raise AssertionError

    assert climb(codes, np.array([1.0]), nothing, everything, rate).tolist() == [0, 1, 0]
