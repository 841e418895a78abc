"""Which ranges are narrowed by the error of the outputs, and how far."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.recovery.int8.narrow_ranges import narrow_ranges
from evaluators.recovery.int8.tensor_ranges import _Choice
from search.values import Ranges, TensorRange
from tests.support.networks import loaded, observed
from tests.support.recovery_context import context_of, output_error, widen

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def ranges() -> Ranges:
    known = {"image": TensorRange(0.0, 8.0), "twin": TensorRange(0.0, 8.0), "swish": TensorRange(-0.4, 4.0)}
    return replace(observed(loaded("residual")), tensors=known)


def errors_of(ranges: Ranges) -> Floats:
    """Least where `image` reaches to about 2 and `swish` as far as it does."""
    reach, swish = ranges.tensors["image"].high, ranges.tensors["swish"].high
    spread = np.linspace(0.9, 1.1, 40)
    return spread * (reach**2 + 16 / reach**2 + (4 - swish) ** 2)


def test_a_range_is_narrowed_as_long_as_the_error_falls(ranges: Ranges) -> None:
    found, count = narrow_ranges(ranges, [["image", "twin"], ["swish"]], errors_of, has_time=lambda: True)
    assert count == 1
    assert found.tensors["image"] == found.tensors["twin"], "they have one scale"
    assert found.tensors["image"].high == pytest.approx(8 * 0.7**4)
    assert found.tensors["swish"] == ranges.tensors["swish"]


def test_the_short_side_of_a_range_stays(ranges: Ranges) -> None:
    tries = iter([True, True, True, False])

    def errors(ranges: Ranges) -> Floats:
        return np.linspace(0.9, 1.1, 40) * ranges.tensors["swish"].high

    found, _ = narrow_ranges(ranges, [["swish"]], errors, has_time=lambda: next(tries))
    assert found.tensors["swish"] == TensorRange(-0.4, 4.0 * 0.7 * 0.7)


def test_gains_that_may_be_chance_narrow_nothing(ranges: Ranges) -> None:
    random = np.random.default_rng(0)

    def errors(ranges: Ranges) -> Floats:
        return 1.0 + 0.1 * random.standard_normal(40)

    assert narrow_ranges(ranges, [["image"], ["swish"]], errors, has_time=lambda: True) == (ranges, 0)


def test_without_time_nothing_is_tried(ranges: Ranges) -> None:
    assert narrow_ranges(ranges, [["image"]], errors_of, has_time=lambda: False) == (ranges, 0)


def test_ranges_that_the_user_set_stay_and_few_samples_narrow_nothing_by_chance() -> None:
    model = loaded("residual")
    ranges = observed(model)
    choice = _Choice(context_of(model), replace(ranges, fixed=tuple(ranges.tensors)))
    assert choice.narrowed(ranges) == (ranges, 0)
    assert _Choice(context_of(model), ranges).narrowed(ranges) == (ranges, 0)


def test_a_range_that_is_far_too_wide_is_narrowed_by_the_outputs_of_the_network() -> None:
    model = loaded("residual")
    context = context_of(model, batches=24)
    ranges = observed(model)
    wide = replace(ranges, tensors={**ranges.tensors, "image": widen(ranges, 16.0).tensors["image"]})
    found, count = _Choice(context, wide).narrowed(wide)
    assert count == 1
    assert found.tensors["image"].high < 0.5 * wide.tensors["image"].high
    assert output_error(context, found) < 0.6 * output_error(context, wide)
