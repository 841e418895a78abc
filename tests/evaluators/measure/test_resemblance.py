"""Whether an engine has anything in common with FP32: constants have nothing, whatever their level; rounding has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.measure.resemblance import SAMPLES, VALUES, Excerpt, first_rows, load, resemblance, save, spread_rows

RNG = np.random.default_rng(0)
MANY = RNG.normal(5.0, 1.0, size=(64, 30)).astype(np.float32)


def alike(theirs: NDArray[Any], mine: NDArray[Any]) -> float | None:
    return resemblance({"y": theirs}, {"y": mine})


def test_equal_outputs_are_alike_and_so_are_rounded_ones() -> None:
    assert alike(MANY, MANY) == pytest.approx(1.0)
    found = alike(MANY, MANY.astype(np.float16))
    assert found is not None
    assert found > 0.999
    coarse = alike(MANY, np.round(MANY))
    assert coarse is not None
    assert 0.9 < coarse < 1.0


def test_a_constant_has_nothing_in_common_however_near_its_level() -> None:
    """Without centring every element the means of the elements would look alike: 0.99 here."""
    uneven = MANY + 100 * np.arange(30, dtype=np.float32)
    mean = np.tile(uneven.mean(axis=0), (64, 1))
    assert np.corrcoef(uneven.ravel(), mean.ravel())[0, 1] > 0.99
    assert alike(uneven, mean) == 0.0
    assert alike(MANY, np.zeros_like(MANY)) == 0.0
    assert alike(MANY[:2, :1], np.ones((2, 1), np.float32)) == 0.0, "however few there are"


def test_a_bias_of_every_element_counts_for_nothing() -> None:
    assert alike(MANY, 0.5 * MANY + np.arange(30)) == pytest.approx(1.0)


def test_unrelated_values_are_near_nothing() -> None:
    other = alike(MANY, RNG.normal(5.0, 1.0, size=MANY.shape))
    assert other is not None
    assert abs(other) < 0.1


def test_the_least_over_outputs_counts_and_those_that_never_vary_do_not() -> None:
    anchors = np.tile(np.arange(30, dtype=np.float32), (64, 1))
    theirs = {"y": MANY, "anchors": anchors, "z": MANY}
    assert resemblance(theirs, {"y": MANY, "anchors": anchors * 0, "z": MANY}) == pytest.approx(1.0)
    assert resemblance(theirs, {"y": MANY, "anchors": anchors, "z": 0 * MANY}) == 0.0
    rounding = anchors * (1 + 1e-7 * RNG.normal(size=anchors.shape))
    assert resemblance({"anchors": rounding}, {"anchors": anchors}) is None


def test_too_few_values_tell_nothing_of_what_varies() -> None:
    assert alike(np.array([[1.0], [2.0], [3.0]]), np.array([[3.0], [2.0], [1.5]])) is None
    assert alike(MANY[:1], MANY[:1]) is None
    assert resemblance({}, {}) is None


def test_of_an_engine_that_was_stopped_early_the_samples_seen_count() -> None:
    assert alike(MANY, MANY[:20]) == pytest.approx(1.0)


def collected(outputs: Mapping[str, NDArray[Any]], rows: NDArray[np.int64], size: int) -> dict[str, NDArray[Any]]:
    excerpt, total = Excerpt(rows), len(next(iter(outputs.values())))
    for start in range(0, total, size):
        part = {name: array[start : start + size] for name, array in outputs.items()}
        excerpt.add(part, start, min(size, total - start))
    return excerpt.arrays()


@pytest.mark.parametrize("size", [1, 7, 200])
def test_rows_are_collected_over_batches_of_any_size(size: int) -> None:
    outputs = {"y": RNG.normal(size=(150, 3, 2)), "class": np.arange(150), "half": np.ones((150, 4), np.float16)}
    for rows in (first_rows(), spread_rows(150)):
        assert len(rows) == SAMPLES
        found = collected(outputs, rows, size)
        assert found.keys() == {"y", "half"}, "of float outputs alone"
        np.testing.assert_array_equal(found["y"], outputs["y"][rows].reshape(SAMPLES, -1))
        assert found["half"].dtype == np.float16
    assert spread_rows(150)[[0, -1]].tolist() == [0, 149]
    assert len(collected(outputs, first_rows(10), size)["y"]) == 10


def test_large_outputs_are_thinned_alike_and_uneven_ones_left_out() -> None:
    large = {"a": RNG.normal(size=(4, 5, 20000)).astype(np.float32), "b": RNG.normal(size=(4, 3)).astype(np.float32)}
    found = collected(large, first_rows(4), 2)
    assert found["a"].shape == (4, VALUES // 2)
    assert found["b"].shape == (4, 3)
    assert resemblance(found, collected(large, first_rows(4), 4)) == pytest.approx(1.0)
    excerpt = Excerpt(first_rows(4))
    excerpt.add({"boxes": np.ones((2, 3)), "total": np.array(1.0), "found": np.ones((5, 7))}, 0, 2)
    excerpt.add({"boxes": np.ones((2, 4)), "total": np.array(1.0), "found": np.ones((3, 7))}, 2, 2)
    assert excerpt.arrays() == {}


def test_an_excerpt_is_found_again(tmp_path: Path) -> None:
    excerpt = Excerpt(spread_rows(100))
    excerpt.add({"a/b:0": MANY, "file": 2 * MANY}, 0, 64)
    save(excerpt, tmp_path / "excerpt.npz")
    rows, arrays = load(tmp_path / "excerpt.npz")
    np.testing.assert_array_equal(rows, spread_rows(100))
    np.testing.assert_array_equal(arrays["file"], excerpt.arrays()["file"])
