"""Passes in blocks give what NumPy gives on whole arrays, in every type, at every size around a block."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.metrics.array_passes import comparable, count_non_finite, largest_class, row_blocks

RNG = np.random.default_rng(0)
EVERY_HALF = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE_HALF = EVERY_HALF[np.isfinite(EVERY_HALF)]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 200_000])
def test_values_that_are_not_finite_are_counted_wherever_they_are(kind: type, size: int) -> None:
    values = RNG.normal(size=size).astype(kind)
    assert count_non_finite(values) == 0
    places = {0, size // 2, size - 1}
    for place, bad in zip(sorted(places), (np.nan, np.inf, -np.inf), strict=False):
        values[place] = bad
    assert count_non_finite(values) == len(places)
    assert count_non_finite(values.reshape(1, -1)[:, ::2]) == sum(place % 2 == 0 for place in places)


def test_of_half_floats_every_bit_pattern_is_told() -> None:
    assert count_non_finite(EVERY_HALF) == len(EVERY_HALF) - len(FINITE_HALF)
    assert count_non_finite(np.empty((0, 3), np.float32)) == 0


def test_half_floats_are_ordered_by_integers_and_zeros_are_equal() -> None:
    wide, order = FINITE_HALF.astype(np.float64), comparable(FINITE_HALF).astype(int)
    by_value = np.argsort(wide, kind="stable")
    np.testing.assert_array_equal(np.sign(np.diff(wide[by_value])), np.sign(np.diff(order[by_value])))
    assert comparable(np.array([0.0, -0.0], np.float16)).tolist() == [0, 0]


def scores(kind: type, *shape: int) -> NDArray[np.generic]:
    """With many ties, of both zeros too."""
    return (RNG.integers(-3, 4, shape) * np.float64(0.5) * RNG.choice([-1.0, 1.0], shape)).astype(kind)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int64])
@pytest.mark.parametrize(
    "shape",
    [(3, 2), (40, 1000), (5, 7, 3), (5, 7, 8, 8), (3, 2, 300, 300), (9, 5, 70, 1), (2, 300, 8, 9), (0, 4, 8, 8)],
)
def test_the_largest_class_is_that_of_argmax(kind: type, shape: tuple[int, ...]) -> None:
    given = scores(kind, *shape)
    found = largest_class(given)
    np.testing.assert_array_equal(found, given.argmax(axis=1))
    assert found.itemsize == (1 if shape[1] <= 255 else 2)


def test_row_blocks_cover_every_row_once() -> None:
    for shape in [(1, 1), (5, 65536), (5, 200_000), (1000, 100), (3,), (0, 4), (4, 0)]:
        rows = [row for part in row_blocks(np.empty(shape)) for row in np.arange(shape[0])[part]]
        assert rows == list(range(shape[0]))
