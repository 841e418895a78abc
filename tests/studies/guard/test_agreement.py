"""The agreement of two answers: classes, values with their scale and offset, boxes, and outputs that cannot agree."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from search.errors import ConfigError
from studies.guard import GuardError, GuardOptions
from studies.guard.agreement import Agreement, all_finite
from studies.guard.options import BOXES, CLASSES, THRESHOLDS, VALUES

Outputs = dict[str, NDArray[Any]]


def agreement(fast: Outputs, safe: Outputs, kind: str | None = VALUES) -> float:
    return Agreement(kind, None).measure(fast, safe)


def one(values: Any, dtype: Any = np.float64) -> Outputs:
    return {"y": np.asarray(values, dtype)}


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
@pytest.mark.parametrize(("wrong", "expected"), [(1.0, 1.0), (1.2, 0.8), (0.5, 0.5), (-1.0, 0.0)])
def test_a_wrong_scale_is_seen_whatever_the_size_of_values(size: float, wrong: float, expected: float) -> None:
    safe = np.array([3.0, -4.0, 1.0]) * size
    assert agreement(one(safe * wrong), one(safe)) == pytest.approx(expected)


def test_an_engine_that_is_a_fifth_too_large_or_shifted_by_as_much_is_left_by_default() -> None:
    safe = np.random.default_rng(0).normal(size=(2, 3, 8, 8))
    for wrong in (1.2 * safe, safe + 0.2):
        assert agreement(one(wrong), one(safe)) < THRESHOLDS[VALUES]
    noise = np.random.default_rng(1).normal(size=safe.shape)
    assert agreement(one(safe + 0.1 * noise), one(safe)) > THRESHOLDS[VALUES]


def test_an_output_that_is_nearly_zero_for_once_is_held_against_its_usual_size() -> None:
    compared = Agreement(VALUES, None)
    for _ in range(3):
        assert compared.measure(one(np.ones(4)), one(np.ones(4))) == 1
    assert compared.measure(one(np.full(4, 0.01)), one(np.zeros(4))) == pytest.approx(0.99)
    assert agreement(one(np.full(4, 0.01)), one(np.zeros(4))) == 0
    assert agreement(one(np.zeros(4)), one(np.zeros(4))) == 1


def test_rows_that_nobody_said_are_classes_agree_no_more_than_their_scale() -> None:
    safe = np.random.default_rng(0).normal(size=(1, 4))
    assert agreement(one(1.2 * safe), one(safe), None) == pytest.approx(0.8)
    assert agreement(one(1.2 * safe), one(safe), CLASSES) == 1
    compared, noise = Agreement(None, None), np.random.default_rng(1)
    found = []
    for _ in range(60):
        safe = noise.normal(size=(1, 4)) + np.array([3.0, 0, 0, 0])
        found.append(compared.measure(one(safe + 0.2 * noise.normal(size=safe.shape)), one(safe)))
    assert compared.kind == CLASSES
    assert np.mean(found) > 0.95  # rounding alone is no other scale


@pytest.mark.parametrize("kind", [CLASSES, VALUES])
def test_whole_numbers_and_texts_agree_with_no_numbers(kind: str) -> None:
    for fast in (np.ones((1, 4), np.int8), np.full((1, 4), "a"), np.full((1, 4), None)):
        assert agreement({"y": fast}, one(np.ones((1, 4)), np.float32), kind) == 0


def test_the_worst_of_all_outputs_counts() -> None:
    fast, safe = {"a": np.ones(2), "b": np.array([1.5])}, {"a": np.ones(2), "b": np.array([1.0])}
    assert agreement(fast, safe) == 0.5


@pytest.mark.parametrize("kind", [CLASSES, VALUES])
@pytest.mark.parametrize("wrong", [np.ones((1, 4)), np.array([[1.0, np.nan, 1.0]]), np.array([[1.0, -np.inf, 1.0]])])
def test_other_outputs_agree_not_at_all(wrong: NDArray[Any], kind: str) -> None:
    assert agreement({"y": wrong}, {"y": np.ones((1, 3))}, kind) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_every_float_type_is_one(dtype: Any) -> None:
    safe = one([[1.0, 2.0, 3.0]], dtype)
    assert agreement(safe, safe, None) == 1
    assert agreement(one([[2.0, 4.0, 6.0]], dtype), safe) == 0
    assert not all_finite(one([1.0, np.nan], dtype))
    assert agreement(one([[1.0, np.nan, 3.0]], dtype), safe) == 0


def test_sums_that_overflow_are_looked_at_again() -> None:
    assert all_finite({"y": np.full(4, 3e38, np.float32)})
    assert not all_finite({"y": np.array([np.inf, -np.inf, 1.0])})
    assert all_finite({"y": np.array([1, 2])})
    assert agreement(one([1.7e308]), one([-1.7e308])) == 0


def test_empty_answers_agree_and_equal_ones_agree_by_no_more_than_one() -> None:
    empty = {"y": np.zeros((0, 4), np.float32)}
    assert agreement(empty, empty, CLASSES) == agreement(empty, empty) == 1.0
    rng = np.random.default_rng(0)
    for _ in range(200):
        same = {"y": rng.standard_normal((3, 7)).astype(np.float32)}
        assert agreement(same, same) == 1.0


def test_outputs_without_floats_agree_by_the_share_of_equal_elements() -> None:
    assert agreement({"y": np.array([1, 2, 3, 4])}, {"y": np.array([1, 2, 3, 5])}) == 0.75


BOX = [10.0, 10.0, 30.0, 30.0, 0.9, 2.0]
OTHER = [50.0, 50.0, 90.0, 70.0, 0.6, 1.0]
PADDING = [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("fast", "expected"),
    [
        ([BOX, OTHER, PADDING], 1.0),
        ([OTHER, PADDING, BOX], 1.0),  # in another order
        ([BOX, PADDING, PADDING], 2 / 3),  # one of two is missed
        ([BOX, OTHER, [50.0, 10.0, 60.0, 20.0, 0.8, 1.0]], 0.8),  # one is found where there is none
        ([[*BOX[:5], 3.0], OTHER, PADDING], 0.5),  # of another class
        ([[10.0, 10.0, 30.0, 26.0, 0.9, 2.0], OTHER, PADDING], 0.9),  # an overlap of 0.8
        ([[x + 15 for x in BOX[:4]] + BOX[4:], OTHER, PADDING], 0.5),  # elsewhere
        ([[*OTHER[:4], 0.3, 1.0], BOX, [1.0, 1.0, 2.0, 2.0, 0.2, 1.0]], 1.0),  # scores are lower, and one is noise
        (
            [[2 * x for x in BOX[:4]] + BOX[4:], [2 * x for x in OTHER[:4]] + OTHER[4:], PADDING],
            0.0,
        ),  # of another scale
    ],
)
def test_boxes_agree_by_their_matched_overlap(fast: list[list[float]], expected: float) -> None:
    safe = {"y": np.array([[BOX, OTHER, PADDING]], np.float32)}
    compared = Agreement(None, None)
    assert compared.measure({"y": np.array([fast], np.float32)}, safe) == pytest.approx(expected)
    assert compared.kind == BOXES


def test_a_first_request_without_boxes_decides_nothing() -> None:
    compared = Agreement(None, None)
    empty = {"y": np.zeros((1, 3, 6), np.float32)}
    assert compared.measure(empty, empty) == 1
    assert compared.kind is None
    found = {"y": np.array([[BOX, OTHER, PADDING]], np.float32)}
    assert (compared.measure(empty, found), compared.kind) == (0, BOXES)
    values = {"y": np.full((1, 3, 6), -2.5, np.float32)}
    values["y"][..., 5] = 0.5
    compared = Agreement(None, None)
    assert (compared.measure(values, values), compared.kind) == (1, VALUES)


def test_boxes_may_be_decoded() -> None:
    def decode(outputs: Any, count: int) -> list[NDArray[Any]]:
        assert count == 2
        return [np.hstack([rows, np.full((len(rows), 1), 0.9), np.zeros((len(rows), 1))]) for rows in outputs["boxes"]]

    compared = Agreement(GuardOptions(decode=decode).outputs or BOXES, decode)
    safe = {"boxes": np.array([[BOX[:4]], [OTHER[:4]]])}
    assert compared.measure(safe, safe) == 1
    assert compared.measure({"boxes": safe["boxes"][:, :, :3]}, safe) == 0  # another shape
    with pytest.raises(GuardError, match=r"expected a float output of shape \(n, k, 6\)"):
        agreement(safe, safe, BOXES)
    with pytest.raises(ConfigError, match="decode makes boxes, but outputs are said to be classes"):
        GuardOptions(decode=decode, outputs="classes")
    with pytest.raises(ConfigError, match="expected outputs to be one of classes, boxes, values, got 'logits'"):
        GuardOptions(outputs="logits")
